//! Which operation answers which request.

use super::files::{open_dir_flags_of, open_flags_of};
use super::{Answer, Outcome, Scene, Service};
use device::fs::spec::GROUPS_MAX;
use device::fs::{Dialect, Extensions, InHeader, Opcode, Open, Release, Request, SetAttr};
use passthrough::{Caller, Change, SecurityContext, SetTime, Whence};
use rustix::io::Errno;

/// `lseek(2)`: SEEK_DATA and SEEK_HOLE.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Who asks for a new file, with room for the groups of the request.
struct Asker {
    uid: u32,
    gid: u32,
    groups: [u32; GROUPS_MAX],
    count: usize,
}

impl Asker {
    fn new(header: &InHeader, extensions: &Extensions<'_>) -> Asker {
        let mut asker = Asker { uid: header.uid, gid: header.gid, groups: [0; GROUPS_MAX], count: 0 };
        for (place, group) in asker.groups.iter_mut().zip(extensions.groups.iter()) {
            *place = group;
            asker.count += 1;
        }
        asker
    }

    fn caller(&self) -> Caller<'_> {
        Caller { uid: self.uid, gid: self.gid, groups: &self.groups[..self.count] }
    }
}

/// The label of a new file. Linux sends one at most; others, which no file could have beside it, are left out.
fn label<'a>(extensions: &Extensions<'a>) -> Option<SecurityContext<'a>> {
    let label = extensions.security.iter().next()?;
    Some(SecurityContext { name: label.name, value: label.value })
}

impl Service {
    /// Executes a request here and now.
    ///
    /// # Errors
    /// What the guest's program is to be told.
    pub(crate) fn perform(
        &self,
        dialect: Option<Dialect>,
        header: &InHeader,
        request: &Request<'_>,
        scene: &mut Scene<'_>,
    ) -> Outcome {
        match request {
            Request::Init(init) => return self.init(init, scene.reply),
            // A device without a mount knows no node: what is forgotten is forgotten, everything else comes too early.
            Request::Forget { .. } | Request::BatchForget(_) if dialect.is_none() => return Ok(Answer::Silence),
            _ if dialect.is_none() => return Err(Errno::IO),
            _ => {}
        }
        let (tree, node) = (&*self.tree, header.nodeid);
        let done = |()| Answer::Reply;
        match request {
            Request::Lookup { name } => self.lookup(node, name, scene.reply),
            Request::Forget { nlookup } => {
                tree.forget(node, *nlookup);
                self.forgotten(Some(node));
                Ok(Answer::Silence)
            }
            Request::BatchForget(forgets) => {
                forgets.iter().for_each(|(node, count)| tree.forget(node, count));
                self.forgotten(None);
                Ok(Answer::Silence)
            }
            Request::GetAttr { fh } => self.get_attributes(node, *fh, scene.reply),
            Request::Statx(statx) => self.statx(node, statx.fh, scene.reply),
            Request::SetAttr(set) => self.set_attributes(node, set.fh, &change(set), scene.reply),
            Request::ReadLink => tree.read_link(node, scene.reply).map(done),
            Request::Symlink(new) => {
                let asker = Asker::new(header, &new.extensions);
                let label = label(&new.extensions);
                let entry = tree.symlink(asker.caller(), node, new.name, new.target, label)?;
                self.answer_entry(&entry, scene.reply)
            }
            Request::Mknod(new) => {
                let asker = Asker::new(header, &new.extensions);
                let label = label(&new.extensions);
                let entry = tree.mknod(asker.caller(), node, new.name, new.mode, new.rdev, new.umask, label)?;
                self.answer_entry(&entry, scene.reply)
            }
            Request::Mkdir(new) => {
                let asker = Asker::new(header, &new.extensions);
                let label = label(&new.extensions);
                let entry = tree.mkdir(asker.caller(), node, new.name, new.mode, new.umask, label)?;
                self.answer_entry(&entry, scene.reply)
            }
            Request::Link { nodeid, name } => {
                let entry = tree.link(*nodeid, node, name)?;
                self.answer_entry(&entry, scene.reply)
            }
            Request::Unlink { name } => tree.unlink(node, name).map(done),
            Request::Rmdir { name } => tree.rmdir(node, name).map(done),
            Request::Rename(rename) => {
                tree.rename(node, rename.name, rename.new_nodeid, rename.new_name, rename.flags).map(done)
            }
            Request::Open(open) => self.open(node, open, scene.reply),
            Request::OpenDir(_) => {
                let opened = tree.open_dir(node)?;
                device::fs::open_out(scene.reply, opened.handle, open_dir_flags_of(&self.policy));
                Ok(Answer::Reply)
            }
            Request::Create(new) => {
                let asker = Asker::new(header, &new.extensions);
                let label = label(&new.extensions);
                let (entry, opened) = tree.create(
                    asker.caller(),
                    node,
                    new.name,
                    new.flags,
                    new.mode,
                    new.umask,
                    new.kill_suidgid,
                    label,
                )?;
                self.answer_created(&entry, opened, scene.reply)
            }
            Request::TmpFile(new) => {
                let asker = Asker::new(header, &new.extensions);
                let label = label(&new.extensions);
                let (entry, opened) = tree.tmpfile(asker.caller(), node, new.flags, new.mode, new.umask, label)?;
                self.answer_created(&entry, opened, scene.reply)
            }
            Request::Read(read) => self.read(node, read.fh, (read.offset, read.size), scene),
            Request::Write(write) => self.write(node, write, scene),
            Request::Flush { fh, lock_owner } => tree.flush(node, *fh, *lock_owner).map(done),
            Request::Release(release) => self.release(node, release),
            Request::ReleaseDir(release) => {
                tree.release_dir(release.fh);
                Ok(Answer::Reply)
            }
            Request::Fsync(sync) => self.sync(node, sync).map(done),
            Request::FsyncDir(sync) => tree.sync_dir(sync.fh, sync.data_only).map(done),
            Request::SyncFs => tree.sync_fs(node).map(done),
            Request::ReadDir(read) => self.read_dir(read.fh, read.offset, read.size, scene),
            Request::ReadDirPlus(read) => self.read_dir_plus(read.fh, read.offset, read.size, scene),
            Request::StatFs => self.statfs(node, scene.reply),
            Request::GetXattr { name, size } => self.get_xattr(node, name, *size, scene),
            Request::ListXattr { size } => self.list_xattr(node, *size, scene),
            Request::SetXattr(set) => {
                self.need_xattr()?;
                tree.set_xattr(node, set.name, set.value, set.flags, set.acl_kill_sgid).map(done)
            }
            Request::RemoveXattr { name } => {
                self.need_xattr()?;
                tree.remove_xattr(node, name).map(done)
            }
            Request::Access { mask } => {
                let caller = Caller { uid: header.uid, gid: header.gid, groups: &[] };
                tree.access(caller, node, *mask).map(done)
            }
            Request::Fallocate(space) => tree.fallocate(space.fh, space.mode, space.offset, space.len).map(done),
            Request::Lseek(seek) => {
                let whence = match seek.whence {
                    SEEK_DATA => Whence::Data,
                    SEEK_HOLE => Whence::Hole,
                    _ => return Err(Errno::INVAL),
                };
                device::fs::lseek_out(scene.reply, tree.seek(seek.fh, seek.offset, whence)?);
                Ok(Answer::Reply)
            }
            Request::CopyFileRange(copy) => self.copy_range(copy, scene.reply),
            Request::Ioctl(ioctl) => self.ioctl(ioctl.fh, ioctl.command, ioctl.input, ioctl.out_size, scene),
            Request::GetLk(lock) => self.get_lock(header, lock, scene.reply),
            Request::SetLk(lock) => self.set_lock(header, lock),
            // A ring waits for locks on its own; whoever gets here cannot wait.
            Request::SetLkw(lock) => self.set_lock(header, lock),
            Request::Interrupt { unique } => {
                self.interrupt(*unique);
                Ok(Answer::Silence)
            }
            Request::Destroy => {
                self.end_session();
                self.wait_until_window_is_empty();
                Ok(Answer::Reply)
            }
            // Files and directories are always ready (poll(2)); a guest that hears ENOSYS knows and never asks again.
            Request::Poll(_) | Request::Unsupported(_) | Request::Init(_) => Err(Errno::NOSYS),
            // A ring waits for the window on its own; whoever gets here has none.
            Request::SetupMapping(_) | Request::RemoveMapping(_) => Err(Errno::NOSYS),
        }
    }

    fn open(&self, node: u64, open: &Open, reply: &mut Vec<u8>) -> Outcome {
        if self.policy.no_open {
            // The guest takes it for "no need to open" (FUSE_NO_OPEN_SUPPORT) and never asks again.
            return Err(Errno::NOSYS);
        }
        let opened = self.tree.open(node, open.flags, open.kill_suidgid)?;
        device::fs::open_out(reply, opened.handle, open_flags_of(&self.policy));
        Ok(Answer::Reply)
    }

    fn release(&self, node: u64, release: &Release) -> Outcome {
        if release.flush {
            // What a failed flush would say has no reader any more.
            let _ = self.tree.flush(node, release.fh, release.lock_owner);
        }
        self.tree.release(release.fh, release.flock_unlock.then_some(release.lock_owner));
        Ok(Answer::Reply)
    }
}

/// Whether a failure is the guest's to hear of: forgetting has no answer.
pub(crate) fn counts_as_error(opcode: u32) -> bool {
    Opcode::from_raw(opcode).is_none_or(Opcode::has_reply)
}

fn change(set: &SetAttr) -> Change {
    let time = |time: device::fs::SetTime| match time {
        device::fs::SetTime::Now => SetTime::Now,
        device::fs::SetTime::At(at) => {
            SetTime::At(passthrough::Time { seconds: at.seconds, nanoseconds: at.nanoseconds })
        }
    };
    Change {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        kill_suid_sgid: set.kill_suidgid,
    }
}
