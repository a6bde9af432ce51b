//! What 9P2000.u does in another way: open modes of one byte, one request that makes everything, attributes that have the name
//! among them, and directories that are read as files. (9P2000.u specification; intro(5), open(5), stat(5) and read(5) of
//! Plan 9.)

use super::fids::{Open, Reading, Use};
use super::place::{Name, lock};
use super::session::Session;
use crate::calls::{Answer, Outcome, Scene};
use device::p9::{Create, Dialect, DirWriter, Qid, READ_HEAD_BYTES, Stat, open_mode, perm};
use passthrough::{Attributes, Change, DirEntry, Node, SetTime, Time};
use rustix::io::Errno;
use std::ffi::CString;
use std::fmt::Write;

/// What `perm` says of the type, and the type of a mode that it stands for.
const TYPES: [(u32, u32); 5] = [
    (perm::DIR, libc::S_IFDIR),
    (perm::SYMLINK, libc::S_IFLNK),
    (perm::NAMED_PIPE, libc::S_IFIFO),
    (perm::SOCKET, libc::S_IFSOCK),
    (perm::DEVICE, libc::S_IFCHR),
];

/// What `perm` says beside permissions, and the mode's bit.
const BITS: [(u32, u32); 3] =
    [(perm::SETUID, libc::S_ISUID), (perm::SETGID, libc::S_ISGID), (perm::SETVTX, libc::S_ISVTX)];

/// The most bytes that a read of a directory is answered with: every name is looked up for it.
const LISTING_BYTES_MAX: u32 = 65_536;

/// The host's `O_*` of an open mode.
fn open_flags(mode: u8) -> i32 {
    let access = match mode & open_mode::ACCESS {
        open_mode::WRITE => libc::O_WRONLY,
        open_mode::RDWR => libc::O_RDWR,
        // To execute is to read.
        _ => libc::O_RDONLY,
    };
    let also = |bit: u8, flag: i32| if mode & bit == 0 { 0 } else { flag };
    access | also(open_mode::TRUNC, libc::O_TRUNC) | also(open_mode::APPEND, libc::O_APPEND)
}

/// Permissions (0o7777) of a `perm`.
fn permissions(perm: u32) -> u32 {
    BITS.iter().filter(|(bit, _)| perm & bit != 0).fold(perm & 0o777, |mode, (_, bit)| mode | bit)
}

/// The `perm` of a mode.
fn perm_of(mode: u32) -> u32 {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFBLK => libc::S_IFCHR,
        kind => kind,
    };
    let types = TYPES.iter().filter(|(_, of)| *of == kind).map(|(bit, _)| bit);
    let bits = BITS.iter().filter(|(_, of)| mode & of != 0).map(|(bit, _)| bit);
    types.chain(bits).fold(mode & 0o777, |perm, bit| perm | bit)
}

/// A device by its extension: "b 8 1" or "c 1 3".
fn device(extension: &[u8]) -> Option<(u32, (u32, u32))> {
    let mut words = std::str::from_utf8(extension).ok()?.split_ascii_whitespace();
    let kind = match words.next()? {
        "b" => libc::S_IFBLK,
        "c" => libc::S_IFCHR,
        _ => return None,
    };
    let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some((kind, numbers))
}

impl Session {
    pub(super) fn open(&self, fid: u32, mode: u8, reply: &mut Vec<u8>) -> Outcome {
        self.open_fid(fid, open_flags(mode), false, mode & open_mode::RCLOSE != 0, reply)
    }

    /// Makes what `perm` says, and makes the fid its own. What can be opened is open then.
    pub(super) fn create(&self, new: &Create<'_>, reply: &mut Vec<u8>) -> Outcome {
        let special = perm::SYMLINK | perm::LINK | perm::NAMED_PIPE | perm::SOCKET | perm::DEVICE;
        let mode = permissions(new.perm);
        let remove_on_clunk = new.mode & open_mode::RCLOSE != 0;
        if new.perm & (special | perm::DIR) == 0 {
            // A name that is in use is refused (create(5)); who wants to open what is there walks to it.
            let flags = open_flags(new.mode) | libc::O_EXCL;
            return self.create_open(new.fid, new.name, flags, (mode, u32::MAX), remove_on_clunk, reply);
        }
        let dir = self.fids.get(new.fid)?;
        let parent = dir.unopened()?;
        let (tree, node, caller) = (self.tree(), parent.node(), dir.caller(u32::MAX));
        let name = Name::new(new.name)?;
        let name = name.as_c_str();
        let node_of = |kind: u32, rdev: (u32, u32)| tree.mknod(caller, node, name, mode | kind, rdev, 0, None);
        let entry = match new.perm & (special | perm::DIR) {
            perm::DIR => tree.mkdir(caller, node, name, mode, 0, None)?,
            perm::SYMLINK => {
                let target = CString::new(new.extension).map_err(|_| Errno::INVAL)?;
                tree.symlink(caller, node, name, &target, None)?
            }
            perm::LINK => tree.link(self.linked(new.extension)?, node, name)?,
            perm::NAMED_PIPE => node_of(libc::S_IFIFO, (0, 0))?,
            perm::SOCKET => node_of(libc::S_IFSOCK, (0, 0))?,
            perm::DEVICE => {
                let (kind, rdev) = device(new.extension).ok_or(Errno::INVAL)?;
                node_of(kind, rdev)?
            }
            // Several at once.
            _ => return Err(Errno::INVAL),
        };
        let (place, qid) = self.adopt(parent, name, &entry)?;
        self.fids.replace(new.fid, &dir, dir.at(place, Use::Place))?;
        if new.perm & perm::DIR != 0 {
            return self.open_fid(new.fid, libc::O_RDONLY, true, remove_on_clunk, reply);
        }
        device::p9::open_out(reply, qid, self.iounit());
        Ok(Answer::Reply)
    }

    /// The file that a new name is for, by its fid in decimal.
    fn linked(&self, extension: &[u8]) -> Result<Node, Errno> {
        let number = std::str::from_utf8(extension).ok().and_then(|text| text.trim().parse().ok());
        Ok(self.fids.get(number.ok_or(Errno::INVAL)?)?.place()?.node())
    }

    pub(super) fn stat(&self, fid: u32, reply: &mut Vec<u8>) -> Outcome {
        let fid = self.fids.get(fid)?;
        let place = fid.place()?;
        let attributes = self.tree().attributes(place.node(), fid.handle())?;
        let qid = self.qids().of(&attributes)?;
        let extension = self.extension(place.node(), &attributes);
        device::p9::stat_out(reply, &stat(qid, &attributes, place.name().to_bytes(), &extension));
        Ok(Answer::Reply)
    }

    /// What a file is beyond its permissions: a link's target, a device's numbers, and of others how many names they have.
    fn extension(&self, node: Node, attributes: &Attributes) -> Vec<u8> {
        let mut text = String::new();
        let (major, minor) = attributes.rdev;
        // A String takes all that is written to it.
        let _ = match attributes.mode & libc::S_IFMT {
            libc::S_IFLNK => {
                let mut target = Vec::new();
                // What has become something else meanwhile is told as it is now the next time.
                let _ = self.tree().read_link(node, &mut target);
                return target;
            }
            libc::S_IFCHR => write!(text, "c {major} {minor}"),
            libc::S_IFBLK => write!(text, "b {major} {minor}"),
            libc::S_IFREG => write!(text, "HARDLINKCOUNT {}", attributes.links),
            _ => Ok(()),
        };
        text.into_bytes()
    }

    /// Changes what the client has filled in. With nothing filled in, the file is made durable.
    pub(super) fn write_stat(&self, fid: u32, wanted: &Stat<'_>) -> Result<(), Errno> {
        let found = self.fids.get(fid)?;
        let place = found.place()?;
        if *wanted == Stat::UNTOUCHED {
            return match found.handle() {
                Some(handle) => self.tree().sync_file(handle, false),
                None => self.tree().sync_node(place.node()),
            };
        }
        let id = |id: u32| (id != u32::MAX).then_some(id);
        if let Some(mode) = id(wanted.mode)
            && (mode & perm::DIR != 0) != place.is_directory()
        {
            return Err(Errno::INVAL);
        }
        let time =
            |seconds: u32| id(seconds).map(|seconds| SetTime::At(Time { seconds: seconds.into(), nanoseconds: 0 }));
        let change = Change {
            mode: id(wanted.mode).map(permissions),
            uid: id(wanted.n_uid),
            gid: id(wanted.n_gid),
            size: (wanted.length != u64::MAX).then_some(wanted.length),
            atime: time(wanted.atime),
            mtime: time(wanted.mtime),
            kill_suid_sgid: false,
        };
        if change != Change::default() {
            self.tree().set_attributes(place.node(), found.handle(), &change)?;
        }
        if wanted.name.is_empty() || wanted.name == place.name().to_bytes() {
            return Ok(());
        }
        let (parent, _) = place.reached_by()?;
        self.rename_place(place, &parent, wanted.name)
    }

    /// Reads a directory as a file of attributes. Reading goes on where the last one ended, or from the start.
    pub(super) fn read_stats(&self, open: &Open, offset: u64, count: u32, scene: &mut Scene<'_>) -> Outcome {
        if self.dialect() != Dialect::U {
            return Err(Errno::ISDIR);
        }
        let room = scene.room(READ_HEAD_BYTES, count.min(LISTING_BYTES_MAX)) as u32;
        let mut reading = lock(&open.reading);
        if offset == 0 {
            *reading = Reading::default();
        } else if offset != reading.bytes {
            return Err(Errno::INVAL);
        }
        let mut writer = DirWriter::new(scene.reply, room);
        let mut next = reading.offset;
        let mut all_fit = true;
        let read = self.tree().read_dir(open.handle, reading.offset, &mut |entry: DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                all_fit = self.add_stat(open, entry.name, &mut writer);
            }
            if all_fit {
                next = entry.offset;
            }
            all_fit
        });
        let written = writer.count();
        if written == 0 {
            read?;
            if !all_fit {
                return Err(Errno::INVAL);
            }
        }
        *reading = Reading { bytes: offset.saturating_add(written.into()), offset: next };
        Ok(Answer::Reply)
    }

    /// Adds a name with its attributes to a listing; false when it does not fit. What is gone meanwhile, or cannot be looked at,
    /// is left out.
    fn add_stat(&self, open: &Open, name: &[u8], writer: &mut DirWriter<'_>) -> bool {
        let Ok(with_nul) = Name::new(name) else { return true };
        let Ok(entry) = self.tree().read_dir_entry(open.handle, with_nul.as_c_str()) else { return true };
        let fits = self.qids().of(&entry.attributes).map_or(true, |qid| {
            let extension = self.extension(entry.node, &entry.attributes);
            writer.add_stat(&stat(qid, &entry.attributes, name, &extension))
        });
        self.tree().forget(entry.node, 1);
        fits
    }
}

/// Attributes as this dialect has them. Who owns it is told by number alone.
fn stat<'a>(qid: Qid, attributes: &Attributes, name: &'a [u8], extension: &'a [u8]) -> Stat<'a> {
    let seconds = |time: Time| u32::try_from(time.seconds).unwrap_or(if time.seconds < 0 { 0 } else { u32::MAX });
    let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
    Stat {
        kind: 0,
        dev: 0,
        qid,
        mode: perm_of(attributes.mode),
        atime: seconds(attributes.atime),
        mtime: seconds(attributes.mtime),
        length: if is_file { attributes.size } else { 0 },
        name,
        uid: b"",
        gid: b"",
        muid: b"",
        extension,
        n_uid: attributes.uid,
        n_gid: attributes.gid,
        n_muid: u32::MAX,
    }
}
