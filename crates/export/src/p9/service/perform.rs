//! Which operation answers which request.

use super::session::Session;
use crate::calls::{Answer, Outcome, Scene};
use device::p9::{Dialect, Header, Request};
use rustix::io::Errno;

impl Session {
    /// Executes a request here and now.
    ///
    /// # Errors
    /// What the client is to be told; nothing stands in the reply then.
    pub(crate) fn perform(&self, _header: &Header, request: &Request<'_>, scene: &mut Scene<'_>) -> Outcome {
        let outcome = self.answer(request, scene);
        if outcome.is_err() {
            scene.reply.clear();
        }
        outcome
    }

    fn answer(&self, request: &Request<'_>, scene: &mut Scene<'_>) -> Outcome {
        let done = |()| Answer::Reply;
        match *request {
            Request::Read { fid, offset, count } => self.read(fid, offset, count, scene),
            Request::Write { fid, offset, count } => self.write(fid, offset, count, scene),
            Request::Version { msize, version } => self.version(msize, version, scene.reply),
            _ if self.dialect() == Dialect::Unknown => Err(Errno::PROTO),
            // Nobody has to say who he is. Clients take no other error for that (diod's libnpclient).
            Request::Auth(_) => Err(Errno::NOENT),
            Request::Attach(ref attach) => self.attach(attach, scene.reply),
            // Who answers later knows what is under way; here nothing is.
            Request::Flush { .. } => Ok(Answer::Reply),
            Request::Walk { fid, newfid, ref names } => self.walk(fid, newfid, names, scene.reply),
            Request::Clunk { fid } => self.clunk(fid).map(done),
            Request::GetAttr { fid, mask } => self.get_attributes(fid, mask, scene.reply),
            Request::SetAttr(ref set) => self.set_attributes(set).map(done),
            Request::Lopen { fid, flags } => self.lopen(fid, flags, scene.reply),
            Request::Lcreate(ref new) => self.lcreate(new, scene.reply),
            Request::ReadDir { fid, offset, count } => self.read_dir(fid, offset, count, scene),
            Request::Mkdir(ref new) => self.mkdir(new, scene.reply),
            Request::Symlink(ref new) => self.symlink(new, scene.reply),
            Request::Mknod(ref new) => self.mknod(new, scene.reply),
            Request::Link { dfid, fid, name } => self.link(dfid, fid, name).map(done),
            Request::UnlinkAt { dfid, name, flags } => self.unlink_at(dfid, name, flags).map(done),
            Request::Remove { fid } => self.remove(fid).map(done),
            Request::Rename { fid, dfid, name } => self.rename(fid, dfid, name).map(done),
            Request::RenameAt(ref rename) => self.rename_at(rename).map(done),
            Request::ReadLink { fid } => self.read_link(fid, scene.reply),
            Request::StatFs { fid } => self.statfs(fid, scene.reply),
            Request::Fsync { fid, datasync } => self.fsync(fid, datasync).map(done),
            Request::XattrWalk { fid, newfid, name } => self.xattr_walk(fid, newfid, name, scene.reply),
            Request::XattrCreate(ref new) => self.xattr_create(new).map(done),
            Request::Lock(ref lock) => self.set_lock(lock, scene.reply),
            Request::GetLock(ref lock) => self.get_lock(lock, scene.reply),
            Request::Open { fid, mode } => self.open(fid, mode, scene.reply),
            Request::Create(ref new) => self.create(new, scene.reply),
            Request::Stat { fid } => self.stat(fid, scene.reply),
            Request::WriteStat { fid, ref stat } => self.write_stat(fid, stat).map(done),
            Request::Unsupported(_) => Err(Errno::OPNOTSUPP),
        }
    }
}
