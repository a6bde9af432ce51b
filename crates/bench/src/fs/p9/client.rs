//! A mounted server: Tversion, Tattach, and requests one by one, as setting a job up and checking data need them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::channel::{Channel, Reply, Request};
use super::wire::{
    ATTR_BYTES, ATTR_QID_AT, ATTR_SIZE_AT, IO_HEADER_BYTES, NO_FID, QID_BYTES, STATS_BASIC, VERSION, kind, qid_path_at,
    string_at, walked,
};
use crate::bytes::{Encoder, u32_at, u64_at};
use crate::fs::patience::{NOT_IMPLEMENTED, NOT_SUPPORTED, error};

/// The fid of the directory that a server shares.
const ROOT: u32 = 0;
/// The smallest msize that Linux takes.
const MSIZE_MIN: u32 = 4096;
/// Names of a Twalk (`P9_MAXWELEM`).
const NAMES_MAX: usize = 16;
/// A name that no server has.
const NOWHERE: &[u8] = b"bench-fs-has-no-such-name";

/// What was agreed on with a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Granted {
    /// The longest message, in bytes.
    pub(crate) msize: u32,
    /// Whether it has Tunlinkat and Trenameat, which Linux does without where it must.
    pub(crate) has_at: bool,
}

impl Granted {
    /// Most bytes of a Tread, Twrite or Treaddir.
    pub(crate) fn io_bytes_max(&self) -> usize {
        (self.msize - IO_HEADER_BYTES) as usize
    }
}

/// Which file a fid stands for, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) path: u64,
    pub(crate) size_bytes: u64,
}

impl Attributes {
    /// Reads Rgetattr's fields.
    pub(crate) fn parse(fields: &[u8]) -> Result<Self> {
        ensure!(fields.len() == ATTR_BYTES, "Rgetattr has {} bytes", fields.len());
        Ok(Self { path: qid_path_at(fields, ATTR_QID_AT)?, size_bytes: u64_at(fields, ATTR_SIZE_AT)? })
    }
}

/// A way to a server with a session on it.
pub(crate) struct Client {
    pub(crate) channel: Channel,
    pub(crate) granted: Granted,
    pub(crate) server_pid: Option<u32>,
    /// Fids that were taken and not given back, besides the root's.
    fids: Vec<u32>,
}

impl Client {
    /// Begins a session: Tversion with at most `msize`, and Tattach to `aname` as the user that runs this.
    pub(crate) fn mount(channel: Channel, aname: &str, msize: u32, server_pid: Option<u32>) -> Result<Self> {
        let granted = Granted { msize, has_at: true };
        let mut client = Self { channel, granted, server_pid, fids: Vec::new() };
        let reply = client.call(kind::TVERSION, |f| _ = f.u32(msize).string(VERSION)).context("Tversion")?;
        client.granted.msize = parse_version(client.channel.fields(reply), msize).context("Tversion")?;
        let uid = rustix::process::geteuid().as_raw();
        client
            .call(kind::TATTACH, |f| _ = f.u32(ROOT).u32(NO_FID).string(b"").string(aname.as_bytes()).u32(uid))
            .with_context(|| format!("Tattach to {aname:?}"))?;
        client.granted.has_at = client.find_out_about_at()?;
        Ok(client)
    }

    /// Whether the server has Tunlinkat. Trenameat came into the protocol with it.
    fn find_out_about_at(&mut self) -> Result<bool> {
        let reply = self.ask(kind::TUNLINKAT, |f| _ = f.u32(ROOT).string(NOWHERE).u32(0))?;
        match reply.errno {
            NOT_SUPPORTED | NOT_IMPLEMENTED => Ok(false),
            0 => bail!("Tunlinkat removed a name that is not there"),
            _ => Ok(true),
        }
    }

    /// Another way into the session of `self`.
    pub(crate) fn beside(&self, channel: Channel) -> Self {
        Self { channel, granted: self.granted, server_pid: self.server_pid, fids: Vec::new() }
    }

    /// One request without data, waited for; an errno is a reply.
    pub(crate) fn ask(&mut self, kind: u8, encode: impl FnOnce(&mut Encoder<'_>)) -> Result<Reply> {
        self.exchange(Request { kind, ..Request::default() }, encode)
    }

    /// One request without data, waited for; an errno is an error.
    pub(crate) fn call(&mut self, kind: u8, encode: impl FnOnce(&mut Encoder<'_>)) -> Result<Reply> {
        ok(self.ask(kind, encode)?)
    }

    fn exchange(&mut self, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) -> Result<Reply> {
        let slot = self.channel.slots().free().context("a free slot")?;
        self.channel.submit(slot, request, encode);
        self.channel.publish()?;
        self.wait_for_reply()
    }

    /// The reply to the only request in flight.
    pub(crate) fn wait_for_reply(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = self.channel.take()? {
                return Ok(reply);
            }
            self.channel.wait(self.server_pid)?;
        }
    }

    fn fresh_fid(&mut self) -> u32 {
        let fid = ROOT + 1 + self.fids.len() as u32;
        self.fids.push(fid);
        fid
    }

    /// A fid for a relative path, with as few Twalk as it takes.
    pub(crate) fn walk(&mut self, path: &Path) -> Result<u32> {
        let names: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
        let fid = self.fresh_fid();
        let lost = || format!("the server does not have {path:?}; does it share --dir?");
        let first = &names[..names.len().min(NAMES_MAX)];
        self.walk_names(ROOT, fid, first).with_context(lost)?;
        for more in names[first.len()..].chunks(NAMES_MAX) {
            self.walk_names(fid, fid, more).with_context(lost)?;
        }
        Ok(fid)
    }

    /// A fid for `name` in the directory `dir`, and which file it is.
    pub(crate) fn walk_one(&mut self, dir: u32, name: &[u8]) -> Result<(u32, u64)> {
        let fid = self.fresh_fid();
        let path = self.walk_names(dir, fid, &[name]).with_context(|| format!("{:?}", OsStr::from_bytes(name)))?;
        Ok((fid, path))
    }

    fn walk_names(&mut self, fid: u32, newfid: u32, names: &[&[u8]]) -> Result<u64> {
        let reply = self.call(kind::TWALK, |f| _ = f.walk(fid, newfid, names)).context("Twalk")?;
        walked(self.channel.fields(reply), names.len() as u16)
    }

    /// Tgetattr.
    pub(crate) fn attributes(&mut self, fid: u32) -> Result<Attributes> {
        let reply = self.call(kind::TGETATTR, |f| _ = f.u32(fid).u64(STATS_BASIC)).context("Tgetattr")?;
        Attributes::parse(self.channel.fields(reply))
    }

    /// Tlopen.
    pub(crate) fn open(&mut self, fid: u32, flags: u32) -> Result<()> {
        let reply = self.call(kind::TLOPEN, |f| _ = f.u32(fid).u32(flags)).context("Tlopen")?;
        ensure!(reply.len == QID_BYTES + 4, "Rlopen has {} bytes", reply.len);
        Ok(())
    }

    /// Tread of at most `len` bytes, which are no more than fit.
    pub(crate) fn read(&mut self, fid: u32, offset: u64, len: usize) -> Result<&[u8]> {
        self.read_with(kind::TREAD, fid, offset, len).with_context(|| format!("Tread at {offset}"))
    }

    /// Treaddir of at most `len` bytes, which are no more than fit.
    pub(crate) fn read_dir(&mut self, fid: u32, offset: u64, len: usize) -> Result<&[u8]> {
        self.read_with(kind::TREADDIR, fid, offset, len).with_context(|| format!("Treaddir at {offset}"))
    }

    fn read_with(&mut self, kind: u8, fid: u32, offset: u64, len: usize) -> Result<&[u8]> {
        let request = Request { kind, data_in: len, ..Request::default() };
        let reply = ok(self.exchange(request, |f| _ = f.span(fid, offset, len as u32))?)?;
        Ok(self.channel.data(reply))
    }

    /// Twrite of all of `data`, which is no more than fits.
    pub(crate) fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len();
        let slot = self.channel.slots().free().context("a free slot")?;
        self.channel.data_mut(slot)[..len].copy_from_slice(data);
        let request = Request { kind: kind::TWRITE, data_out: len, ..Request::default() };
        let reply = self.exchange(request, |f| _ = f.span(fid, offset, len as u32)).and_then(ok);
        let reply = reply.with_context(|| format!("Twrite at {offset}"))?;
        let written = u32_at(self.channel.fields(reply), 0)?;
        ensure!(written as usize == len, "Twrite at {offset}: {written} bytes of {len}");
        Ok(())
    }

    /// Gives back every fid that was taken.
    pub(crate) fn clunk_all(&mut self) -> Result<()> {
        for fid in std::mem::take(&mut self.fids) {
            self.call(kind::TCLUNK, |f| _ = f.u32(fid)).context("Tclunk")?;
        }
        Ok(())
    }
}

/// A reply that is no error.
pub(crate) fn ok(reply: Reply) -> Result<Reply> {
    match reply.errno {
        0 => Ok(reply),
        errno => Err(error(errno).into()),
    }
}

/// The msize of Rversion's fields.
fn parse_version(fields: &[u8], asked: u32) -> Result<u32> {
    let msize = u32_at(fields, 0)?;
    let (version, _) = string_at(fields, 4)?;
    ensure!(version == VERSION, "the server speaks {:?}, not 9P2000.L", OsStr::from_bytes(version));
    ensure!((MSIZE_MIN..=asked).contains(&msize), "the server grants msize {msize}, of {asked}");
    Ok(msize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::encoded;

    #[test]
    fn a_version_is_ours_and_an_msize_within_what_was_asked() {
        let fields = |msize, version: &[u8]| encoded(|e| _ = e.u32(msize).string(version));
        assert_eq!(parse_version(&fields(8192, VERSION), 65536).unwrap(), 8192);
        assert!(parse_version(&fields(8192, b"unknown"), 65536).unwrap_err().to_string().contains("unknown"));
        assert!(parse_version(&fields(65537, VERSION), 65536).is_err());
        assert!(parse_version(&fields(100, VERSION), 65536).is_err());
        assert_eq!(Granted { msize: 65536, has_at: true }.io_bytes_max(), 65512);
    }

    #[test]
    fn attributes_are_read_where_they_are() {
        // valid[8] qid[13] mode[4] uid[4] gid[4] nlink[8] rdev[8] size[8]
        let mut fields = encoded(|e| {
            e.u64(STATS_BASIC).u8(0).u32(1).u64(77).u32(0o100_644).u32(0).u32(0).u64(1).u64(0).u64(4096);
        });
        assert!(Attributes::parse(&fields).is_err());
        fields.resize(ATTR_BYTES, 0);
        assert_eq!(Attributes::parse(&fields).unwrap(), Attributes { path: 77, size_bytes: 4096 });
    }
}
