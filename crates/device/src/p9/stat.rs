//! Attributes as 9P2000.u packs them: the answer to a `Tstat`, the body of a `Twstat`, and the entries of a directory that is
//! read.

use super::attr::Qid;
use super::malformed::Reason;
use super::spec::{STAT_HEAD_BYTES, STAT_TAIL_BYTES};
use super::wire::{Args, put_string, string_bytes};
use crate::wire::{le16, le32, le64, put};

/// A 9P2000.u `stat`. In a `Twstat`, a number with all bits set and an empty string leave what they stand for as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat<'a> {
    /// For the client's kernel.
    pub kind: u16,
    /// For the client's kernel.
    pub dev: u32,
    /// What tells it apart.
    pub qid: Qid,
    /// Permissions and [`perm`](super::perm)s.
    pub mode: u32,
    /// Last access, in seconds since the Unix epoch.
    pub atime: u32,
    /// Last change of the data, in seconds since the Unix epoch.
    pub mtime: u32,
    /// Size, in bytes; 0 of directories.
    pub length: u64,
    /// Last component of the path.
    pub name: &'a [u8],
    /// Name of the owner.
    pub uid: &'a [u8],
    /// Name of the group.
    pub gid: &'a [u8],
    /// Name of who changed it last.
    pub muid: &'a [u8],
    /// A link's target, a device's type and numbers; see [`perm`](super::perm).
    pub extension: &'a [u8],
    /// Number of the owner.
    pub n_uid: u32,
    /// Number of the group.
    pub n_gid: u32,
    /// Number of who changed it last.
    pub n_muid: u32,
}

impl<'a> Stat<'a> {
    /// What changes nothing.
    pub const UNTOUCHED: Stat<'static> = Stat {
        kind: u16::MAX,
        dev: u32::MAX,
        qid: Qid { kind: u8::MAX, version: u32::MAX, path: u64::MAX },
        mode: u32::MAX,
        atime: u32::MAX,
        mtime: u32::MAX,
        length: u64::MAX,
        name: b"",
        uid: b"",
        gid: b"",
        muid: b"",
        extension: b"",
        n_uid: u32::MAX,
        n_gid: u32::MAX,
        n_muid: u32::MAX,
    };

    /// All that is left of a `Twstat`: the length of what follows, and a `stat` of that length.
    pub(super) fn take(args: &mut Args<'a>) -> Result<Stat<'a>, Reason> {
        let outer = le16::<0, _>(args.take::<2>()?);
        let sent = args.rest().len();
        let fixed = args.take::<STAT_HEAD_BYTES>()?;
        let inner = usize::from(le16::<0, _>(fixed)) + 2;
        if usize::from(outer) != inner || inner != sent {
            return Err(Reason::BadStat);
        }
        let [name, uid, gid, muid] = [args.take_name()?, args.take_name()?, args.take_name()?, args.take_name()?];
        let extension = args.take_path()?;
        let numbers = args.take::<STAT_TAIL_BYTES>()?;
        let mut qid = [0; 13];
        qid.copy_from_slice(&fixed[8..21]);
        Ok(Stat {
            kind: le16::<2, _>(fixed),
            dev: le32::<4, _>(fixed),
            qid: Qid::decode(&qid),
            mode: le32::<21, _>(fixed),
            atime: le32::<25, _>(fixed),
            mtime: le32::<29, _>(fixed),
            length: le64::<33, _>(fixed),
            name,
            uid,
            gid,
            muid,
            extension,
            n_uid: le32::<0, _>(numbers),
            n_gid: le32::<4, _>(numbers),
            n_muid: le32::<8, _>(numbers),
        })
    }

    /// Bytes that it takes in a directory that is read; two more in an `Rstat`.
    pub fn bytes(&self) -> usize {
        let strings = [self.name, self.uid, self.gid, self.muid, self.extension];
        STAT_HEAD_BYTES + strings.into_iter().map(string_bytes).sum::<usize>() + STAT_TAIL_BYTES
    }

    /// Appends it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut head = [0; STAT_HEAD_BYTES];
        // Strings are cut off before this could have more than 16 bits.
        put::<0, _, _>(&mut head, ((self.bytes() - 2) as u16).to_le_bytes());
        put::<2, _, _>(&mut head, self.kind.to_le_bytes());
        put::<4, _, _>(&mut head, self.dev.to_le_bytes());
        put::<8, _, _>(&mut head, self.qid.encode());
        put::<21, _, _>(&mut head, self.mode.to_le_bytes());
        put::<25, _, _>(&mut head, self.atime.to_le_bytes());
        put::<29, _, _>(&mut head, self.mtime.to_le_bytes());
        put::<33, _, _>(&mut head, self.length.to_le_bytes());
        out.extend_from_slice(&head);
        for string in [self.name, self.uid, self.gid, self.muid, self.extension] {
            put_string(out, string);
        }
        for number in [self.n_uid, self.n_gid, self.n_muid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}
