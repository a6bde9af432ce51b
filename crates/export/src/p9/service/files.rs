//! Open files and their data.

use super::bound::Counted;
use super::fids::{Fid, Open, Use};
use super::place::{Place, lock};
use super::session::Session;
use crate::calls::{Answer, Outcome, Scene, data, files};
use device::p9::{READ_HEAD_BYTES, Request, WRITE_HEAD_BYTES, open_flag};
use passthrough::{Attributes, Handle, OpenFile};
use rustix::io::Errno;
use std::sync::Arc;

/// What a client may ask for beside the access mode, in its numbers and in this machine's. `O_NONBLOCK` means nothing for a
/// regular file, and a file that was walked to is no link to be followed. `O_DIRECT` is the client's own business: what it
/// sends lies behind a message's header, where no disk could read or write it.
const OPEN_FLAGS: [(u32, i32); 5] = [
    (open_flag::TRUNC, libc::O_TRUNC),
    (open_flag::APPEND, libc::O_APPEND),
    (open_flag::DSYNC, libc::O_DSYNC),
    (open_flag::SYNC, libc::O_SYNC),
    (open_flag::NOATIME, libc::O_NOATIME),
];

/// The host's `O_*` of a client's.
pub(super) fn open_flags(flags: u32) -> i32 {
    let access = match flags & open_flag::ACCESS {
        open_flag::RDONLY => libc::O_RDONLY,
        open_flag::WRONLY => libc::O_WRONLY,
        // "No access" asks for the right to do both and for neither; it is the client's kernel that refuses to use it.
        _ => libc::O_RDWR,
    };
    let set = OPEN_FLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    set.fold(access, |all, (_, host)| all | host)
}

impl Session {
    pub(super) fn lopen(&self, fid: u32, flags: u32, reply: &mut Vec<u8>) -> Outcome {
        let must_be_directory = flags & open_flag::DIRECTORY != 0;
        self.open_fid(fid, open_flags(flags), must_be_directory, false, reply)
    }

    /// Opens a file or a directory; `flags` are the host's.
    pub(super) fn open_fid(
        &self,
        fid: u32,
        flags: i32,
        must_be_directory: bool,
        remove_on_clunk: bool,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        let old = self.fids.get(fid)?;
        let place = old.unopened()?;
        let (tree, node) = (self.tree(), place.node());
        let counted = self.files.room()?;
        let handle = if place.is_directory() {
            if flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY {
                return Err(Errno::ISDIR);
            }
            tree.open_dir(node)?.handle
        } else if must_be_directory {
            return Err(Errno::NOTDIR);
        } else {
            tree.open(node, flags, old.uid != 0)?.handle
        };
        let attributes = tree.attributes(node, Some(handle)).inspect_err(|_| tree.release(handle, None))?;
        let open = self.opened(&old, place, (handle, counted), &attributes, remove_on_clunk)?;
        let qid = self.qids().of(&attributes)?;
        self.fids.replace(fid, &old, old.with(Use::Open(Box::new(open))))?;
        device::p9::open_out(reply, qid, self.iounit());
        Ok(Answer::Reply)
    }

    /// What a fid has when the tree has opened a file for it. The file is released with it, and when there is an error.
    pub(super) fn opened(
        &self,
        fid: &Fid,
        place: &Arc<Place>,
        (handle, counted): (Handle, Counted),
        attributes: &Attributes,
        remove_on_clunk: bool,
    ) -> Result<Open, Errno> {
        // The daemon writes as itself, which leaves these bits alone; a client's kernel does not always drop them either.
        let kill_privileges = fid.uid != 0 && attributes.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        let locks = (counted, &self.locks);
        Open::new(place, handle, attributes.device, (kill_privileges, remove_on_clunk), locks)
    }

    /// The file of a request that may go by io_uring; `None` for one that has to be performed by a call.
    pub(crate) fn file_for_uring(&self, request: &Request<'_>) -> Option<Arc<OpenFile>> {
        let (fid, writes) = match *request {
            Request::Read { fid, .. } | Request::Fsync { fid, .. } => (fid, false),
            Request::Write { fid, .. } => (fid, true),
            _ => return None,
        };
        let file = self.fids.with(fid, |fid| {
            let open = fid.open()?;
            // Dropping set-id bits is a matter of the calling thread's capabilities. Appending writes find their place by
            // themselves: two at once could change places.
            if writes && (open.kill_privileges || open.file.appends()) {
                return Err(Errno::INVAL);
            }
            open.data().cloned()
        });
        let file = file.ok()?;
        self.tree().pause();
        if writes {
            // An error is told by the call that is made instead.
            self.tree().before_write(&file).ok()?;
        }
        Some(file)
    }

    /// Whether a write waits for the disk, or for appends that are left to threads.
    pub(super) fn write_is_long(&self, fid: u32) -> bool {
        let waits = |file: &OpenFile| file.is_synchronous() || file.appends() && file.has_line();
        self.fids.with(fid, |fid| Ok(waits(&fid.open()?.file))).unwrap_or(false)
    }

    /// The file that a request appends to.
    pub(crate) fn appends(&self, request: &Request<'_>) -> Option<Arc<OpenFile>> {
        let Request::Write { fid, .. } = *request else { return None };
        let file = self.fids.with(fid, |fid| Ok(Arc::clone(&fid.open()?.file)));
        file.ok().filter(|file| file.appends())
    }

    pub(super) fn read(&self, fid: u32, offset: u64, count: u32, scene: &mut Scene<'_>) -> Outcome {
        let began_ns = engine::monotonic_ns();
        let fid = self.fids.get(fid)?;
        let count = count.min(self.msize().saturating_sub(READ_HEAD_BYTES as u32));
        match &fid.used {
            Use::Open(open) if !open.directory => {
                self.tree().pause();
                data::payload(scene.writable, READ_HEAD_BYTES, count as usize, scene.data);
                let bytes = files::read(&open.file, scene.data, offset, began_ns, scene.moved)?;
                Ok(Answer::Data(bytes))
            }
            Use::Open(open) => self.read_stats(open, offset, count, scene),
            Use::Value(value) => {
                let room = scene.room(READ_HEAD_BYTES, count);
                let rest =
                    usize::try_from(offset).ok().and_then(|offset| value.bytes.get(offset..)).unwrap_or_default();
                let part = rest.get(..room).unwrap_or(rest);
                device::p9::read_count_out(scene.reply, part.len() as u32);
                scene.reply.extend_from_slice(part);
                Ok(Answer::Reply)
            }
            Use::Place | Use::NewValue(_) => Err(Errno::BADF),
        }
    }

    pub(super) fn write(&self, fid: u32, offset: u64, count: u32, scene: &mut Scene<'_>) -> Outcome {
        let began_ns = engine::monotonic_ns();
        let fid = self.fids.get(fid)?;
        let count = count.min(self.msize().saturating_sub(WRITE_HEAD_BYTES as u32));
        let bytes = match &fid.used {
            Use::Open(open) => {
                self.tree().pause();
                let file = open.data()?;
                data::payload(scene.readable, WRITE_HEAD_BYTES, count as usize, scene.data);
                let target = (&**self.tree(), &**file);
                files::write(target, scene.data, offset, open.kill_privileges, began_ns, scene.moved)?
            }
            Use::NewValue(value) => {
                let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
                let end = offset.checked_add(count as usize).ok_or(Errno::INVAL)?;
                let mut new = lock(&value.bytes);
                let part = new.bytes.get_mut(offset..end).ok_or(Errno::NOSPC)?;
                let copied = vring::copy::read_at(scene.readable, WRITE_HEAD_BYTES as u64, part);
                new.written(offset, copied);
                copied
            }
            Use::Place | Use::Value(_) => return Err(Errno::BADF),
        };
        device::p9::write_out(scene.reply, bytes as u32);
        Ok(Answer::Reply)
    }

    pub(super) fn fsync(&self, fid: u32, data_only: bool) -> Result<(), Errno> {
        self.tree().sync_file(self.fids.get(fid)?.open()?.handle, data_only)
    }

    /// A fid is given back, and with it what it has open. It is gone in any case.
    pub(super) fn clunk(&self, fid: u32) -> Result<(), Errno> {
        let fid = self.fids.remove(fid)?;
        match &fid.used {
            Use::Place | Use::Value(_) => Ok(()),
            Use::NewValue(value) => self.set_value(&fid.place, value),
            Use::Open(open) => {
                // Some file systems tell of failed writes when a file is closed: to who asks before.
                let written = open.file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
                let flushed = if written { self.tree().flush(fid.place.node(), open.handle, 0) } else { Ok(()) };
                if open.remove_on_clunk { flushed.and(fid.place.remove()) } else { flushed }
            }
        }
    }
}
