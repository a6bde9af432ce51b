//! Open files and their data.

use super::{Answer, Outcome, Scene, Service};
use crate::calls::{data, files};
use crate::directory::policy::Policy;
use device::fs::{CopyFileRange, Fsync, InHeader, OUT_HEADER_BYTES, Request, WRITE_HEAD_BYTES, Write, open_flags};
use engine::monotonic_ns;
use passthrough::OpenFile;
use rustix::io::Errno;
use std::sync::Arc;
use values::CachePolicy;

impl Service {
    /// The file of a request that may go by io_uring; `None` for one that has to be performed by a call.
    pub(crate) fn file_for_uring(&self, header: &InHeader, request: &Request<'_>) -> Option<Arc<OpenFile>> {
        let handle = match request {
            Request::Read(read) => read.fh,
            // Dropping set-id bits is a matter of the calling thread's capabilities.
            Request::Write(write) if !write.kill_priv() => write.fh,
            Request::Fsync(sync) => sync.fh,
            _ => return None,
        };
        self.tree.pause();
        let file = self.file(header.nodeid, handle).ok()?;
        if matches!(request, Request::Write(_)) {
            // Appending writes find their place by themselves: two at once could change places.
            if file.appends() {
                return None;
            }
            // An error is told by the call that is made instead.
            self.tree.before_write(&file).ok()?;
        }
        Some(file)
    }

    /// Whether a transfer goes to the disk itself (O_DIRECT, where the export allows it). The file knows, whatever a guest says.
    #[inline]
    pub(crate) fn past_the_cache(&self, request: &Request<'_>) -> bool {
        let handle = match request {
            Request::Read(read) => read.fh,
            Request::Write(write) => write.fh,
            _ => return false,
        };
        self.tree.allows_direct_io() && self.tree.file(handle).is_ok_and(|file| file.is_direct())
    }

    /// Whether a write waits for the disk, or for appends that are left to threads.
    pub(super) fn write_is_long(&self, write: &Write) -> bool {
        let waits = |file: &OpenFile| file.is_synchronous() && !file.is_direct() || file.appends() && file.has_line();
        self.tree.file(write.fh).is_ok_and(|file| waits(&file))
    }

    /// The file that a request appends to.
    pub(crate) fn appends(&self, request: &Request<'_>) -> Option<Arc<OpenFile>> {
        let Request::Write(write) = request else { return None };
        self.tree.file(write.fh).ok().filter(|file| file.appends())
    }

    /// The open file, or for a guest that need not open files the node's own.
    fn file(&self, node: u64, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        if handle == 0 && self.policy.no_open {
            return self.tree.node_file(node);
        }
        self.tree.file(handle)
    }

    pub(super) fn read(&self, node: u64, handle: u64, (offset, size): (u64, u32), scene: &mut Scene<'_>) -> Outcome {
        let began_ns = monotonic_ns();
        self.tree.pause();
        let file = self.file(node, handle)?;
        data::payload(scene.writable, OUT_HEADER_BYTES, size as usize, scene.data);
        files::read(&file, scene.data, offset, began_ns, scene.moved).map(Answer::Data)
    }

    pub(super) fn write(&self, node: u64, write: &Write, scene: &mut Scene<'_>) -> Outcome {
        let began_ns = monotonic_ns();
        self.tree.pause();
        let file = self.file(node, write.fh)?;
        data::payload(scene.readable, WRITE_HEAD_BYTES, write.size as usize, scene.data);
        let target = (&*self.tree, &*file);
        let bytes = files::write(target, scene.data, write.offset, write.kill_priv(), began_ns, scene.moved)?;
        device::fs::write_out(scene.reply, bytes as u32);
        Ok(Answer::Reply)
    }

    pub(super) fn sync(&self, node: u64, sync: &Fsync) -> Result<(), Errno> {
        if sync.fh == 0 && self.policy.no_open {
            // Nothing was written through a tree that is only read.
            return self.tree.node_file(node).map(|_| ());
        }
        self.tree.sync_file(sync.fh, sync.data_only)
    }

    pub(super) fn copy_range(&self, copy: &CopyFileRange, reply: &mut Vec<u8>) -> Outcome {
        // What a narrow answer cannot count must not be copied.
        let len = if copy.wide { copy.len } else { copy.len.min(u64::from(u32::MAX)) };
        let flags = u32::try_from(copy.flags).map_err(|_| Errno::INVAL)?;
        let (from, to) = ((copy.fh_in, copy.offset_in), (copy.fh_out, copy.offset_out));
        let copied = self.tree.copy_range(from.0, from.1, to.0, to.1, len, flags)?;
        if copy.wide {
            device::fs::copy_file_range_out(reply, copied);
        } else {
            device::fs::write_out(reply, copied as u32);
        }
        Ok(Answer::Reply)
    }
}

/// What an OPEN of a file is answered with: FOPEN_* of linux/fuse.h.
pub(super) fn open_flags_of(policy: &Policy) -> u32 {
    // Writes of one file that go past the guest's cache need not wait for each other there: the host orders them.
    let always = open_flags::PARALLEL_DIRECT_WRITES;
    always
        | match policy.cache {
            CachePolicy::Never | CachePolicy::Metadata => open_flags::DIRECT_IO,
            CachePolicy::Auto => 0,
            CachePolicy::Always => open_flags::KEEP_CACHE,
        }
}

/// What an OPENDIR is answered with.
pub(super) fn open_dir_flags_of(policy: &Policy) -> u32 {
    match policy.cache {
        CachePolicy::Never | CachePolicy::Auto => 0,
        CachePolicy::Metadata | CachePolicy::Always => open_flags::KEEP_CACHE | open_flags::CACHE_DIR,
    }
}
