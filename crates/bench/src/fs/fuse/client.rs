//! A mounted server: INIT, and requests one by one, as setting a job up and checking data need them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;

use super::device::{Device, FORGET_BYTES};
use super::port::{Port, Reply, Request};
use super::wire::{
    ATTR_BYTES, ENTRY_BYTES, FORGET_ONE_BYTES, Granted, INIT_BYTES, OPEN_BYTES, ROOT, WRITE_BYTES, opcode,
};
use crate::bytes::{Encoder, u32_at, u64_at};
use crate::fs::patience::{NO_ENTRY, NOT_IMPLEMENTED, error, wait_for};

/// What Linux asks for as read-ahead.
const READAHEAD_BYTES: u32 = 128 << 10;
/// Most nodes in a BATCH_FORGET here.
const FORGETS_MAX: usize = FORGET_BYTES / FORGET_ONE_BYTES;

/// An open file or directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) node: u64,
    /// `None` when the server keeps no state for opens (FUSE_NO_OPEN_SUPPORT).
    pub(crate) fh: Option<u64>,
    /// Flags of open(2).
    pub(crate) flags: u32,
}

impl Open {
    /// The handle that requests name.
    pub(crate) fn handle(&self) -> u64 {
        self.fh.unwrap_or(0)
    }
}

/// A server behind which a file system was initialized.
pub(crate) struct Client {
    pub(crate) device: Device,
    pub(crate) granted: Granted,
    pub(crate) server_pid: Option<u32>,
}

impl Client {
    /// INIT on a fresh connection.
    pub(crate) fn new(mut device: Device, server_pid: Option<u32>) -> Result<Self> {
        let port = device.ports.first_mut().context("a request queue")?;
        let request = Request { opcode: opcode::INIT, args_in: INIT_BYTES, ..Request::default() };
        let reply = call(port, server_pid, request, &[], |args| _ = args.init(READAHEAD_BYTES))?;
        ensure!(reply.errno == 0, "INIT: {}", error(reply.errno));
        let granted = Granted::parse(port.args(reply)).context("INIT")?;
        Ok(Self { device, granted, server_pid })
    }

    /// One request on the first request queue, waited for; `data` goes with it.
    pub(crate) fn call(
        &mut self,
        request: Request,
        data: &[u8],
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<Reply> {
        let port = self.device.ports.first_mut().context("a request queue")?;
        call(port, self.server_pid, request, data, encode)
    }

    /// The arguments of the reply to the last call.
    pub(crate) fn args(&self, reply: Reply) -> Result<&[u8]> {
        Ok(self.device.ports.first().context("a request queue")?.args(reply))
    }

    /// LOOKUP; `None` when there is no such name.
    pub(crate) fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<Option<u64>> {
        let request = Request { opcode: opcode::LOOKUP, node: parent, args_in: ENTRY_BYTES, ..Request::default() };
        let reply = self.call(request, &[], |args| _ = args.name(name))?;
        match reply.errno {
            0 => Ok(Some(u64_at(self.args(reply)?, 0)?).filter(|node| *node != 0)),
            NO_ENTRY => Ok(None),
            errno => bail!("LOOKUP {:?}: {}", OsStr::from_bytes(name), error(errno)),
        }
    }

    /// LOOKUP of each component of a relative path.
    pub(crate) fn walk(&mut self, path: &Path) -> Result<u64> {
        let mut node = ROOT;
        for name in path {
            let next = self.lookup(node, name.as_bytes())?;
            node = next.with_context(|| format!("the server does not have {path:?}; does it share --dir?"))?;
        }
        Ok(node)
    }

    /// Size of a file, by GETATTR.
    pub(crate) fn size_bytes(&mut self, node: u64) -> Result<u64> {
        let request = Request { opcode: opcode::GETATTR, node, args_in: ATTR_BYTES, ..Request::default() };
        let reply = self.call(request, &[], |args| _ = args.u32(0).u32(0).u64(0))?;
        ensure!(reply.errno == 0, "GETATTR: {}", error(reply.errno));
        // `struct fuse_attr` follows 16 bytes, and its second field is the size.
        u64_at(self.args(reply)?, 24)
    }

    /// OPEN or OPENDIR.
    pub(crate) fn open(&mut self, node: u64, flags: OFlags) -> Result<Open> {
        let is_dir = flags.contains(OFlags::DIRECTORY);
        let opcode = if is_dir { opcode::OPENDIR } else { opcode::OPEN };
        let request = Request { opcode, node, args_in: OPEN_BYTES, ..Request::default() };
        let flags = (flags | OFlags::LARGEFILE).bits();
        let reply = self.call(request, &[], |args| _ = args.u32(flags).u32(0))?;
        let fh = match reply.errno {
            0 => Some(u64_at(self.args(reply)?, 0)?),
            NOT_IMPLEMENTED => None,
            errno => bail!("{}: {}", if is_dir { "OPENDIR" } else { "OPEN" }, error(errno)),
        };
        Ok(Open { node, fh, flags })
    }

    /// READ of at most `len` bytes into the caller's hands.
    pub(crate) fn read(&mut self, file: &Open, offset: u64, len: usize) -> Result<&[u8]> {
        let request = Request { opcode: opcode::READ, node: file.node, data_in: len, ..Request::default() };
        let reply = self.call(request, &[], |args| _ = args.transfer(file.handle(), offset, len as u32, file.flags))?;
        ensure!(reply.errno == 0, "READ at {offset}: {}", error(reply.errno));
        Ok(self.device.ports.first().context("a request queue")?.data(reply))
    }

    /// WRITE of all of `data`.
    pub(crate) fn write(&mut self, file: &Open, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len();
        let request = Request {
            opcode: opcode::WRITE,
            node: file.node,
            data_out: len,
            args_in: WRITE_BYTES,
            ..Request::default()
        };
        let reply =
            self.call(request, data, |args| _ = args.transfer(file.handle(), offset, len as u32, file.flags))?;
        ensure!(reply.errno == 0, "WRITE at {offset}: {}", error(reply.errno));
        let written = u32_at(self.args(reply)?, 0)?;
        ensure!(written as usize == len, "WRITE at {offset}: {written} bytes of {len}");
        Ok(())
    }
}

fn call(
    port: &mut Port,
    server_pid: Option<u32>,
    request: Request,
    data: &[u8],
    encode: impl FnOnce(&mut Encoder<'_>),
) -> Result<Reply> {
    let slot = port.free_slot().context("a free slot")?;
    if !data.is_empty() {
        port.data_mut(slot)[..data.len()].copy_from_slice(data);
    }
    let request = Request { data_out: data.len(), ..request };
    port.submit(slot, request, encode);
    port.places.queue.publish()?;
    loop {
        if let Some(reply) = port.take()? {
            return Ok(reply);
        }
        wait(port, server_pid)?;
    }
}

/// Sleeps until the server has used a request.
///
/// # Errors
/// It died, or takes longer than a server may.
pub(crate) fn wait(port: &mut Port, server_pid: Option<u32>) -> Result<()> {
    wait_for(server_pid, port.in_flight, |limit| port.places.queue.wait(limit))
}

/// Sends FORGET for one look-up of each of `nodes`, on the high-priority queue: one request for each, as Linux's driver
/// does it, or BATCH_FORGET.
pub(crate) fn forget(port: &mut Port, server_pid: Option<u32>, nodes: &[u64], in_batches: bool) -> Result<()> {
    let chunk_len = if in_batches { FORGETS_MAX } else { 1 };
    for chunk in nodes.chunks(chunk_len) {
        let slot = loop {
            while port.take()?.is_some() {}
            match port.free_slot() {
                Some(slot) => break slot,
                None => {
                    port.places.queue.publish()?;
                    wait(port, server_pid)?;
                }
            }
        };
        if let ([node], false) = (chunk, in_batches) {
            let request = Request { opcode: opcode::FORGET, node: *node, is_mute: true, ..Request::default() };
            port.submit(slot, request, |args| _ = args.u64(1));
            continue;
        }
        let mut data = Encoder::new(port.data_mut(slot));
        for node in chunk {
            data.u64(*node).u64(1);
        }
        let data_out = data.len();
        let request = Request { opcode: opcode::BATCH_FORGET, data_out, is_mute: true, ..Request::default() };
        port.submit(slot, request, |args| _ = args.u32(chunk.len() as u32).u32(0));
    }
    port.places.queue.publish()
}

/// Waits until the server has used all that is in flight on the high-priority queue.
pub(crate) fn drain(port: &mut Port, server_pid: Option<u32>) -> Result<()> {
    while port.in_flight > 0 {
        if port.take()?.is_none() {
            wait(port, server_pid)?;
        }
    }
    Ok(())
}
