//! Locks of a tree whose client goes to another host: they are let go before it can be there, and taken again if it comes back.

use crate::lock::{self, Holding, LockKind};
use crate::sync::lock;
use crate::{Handle, Node, Tree};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// How long locks are waited for that another daemon may still have, and how often they are tried.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// The locks that were let go.
#[derive(Debug, Default)]
pub struct LetGo {
    owners: Vec<Holding>,
    flocks: Vec<(Handle, LockKind)>,
}

/// A lock that could not be had again. The files that it is about are closed: nobody uses them in the belief that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTaken {
    /// Whose file it was on.
    pub node: Node,
    /// The open file by which it came. All that the client has open of the same inode are closed.
    pub handle: Handle,
    /// Why.
    pub error: Errno,
}

impl Tree {
    /// Lets the locks of its client go, for another host to take them. No operation is under way.
    pub fn let_locks_go(&self) -> LetGo {
        let owners = self.locks.holdings();
        self.locks.let_go();
        let mut flocks = Vec::new();
        for (handle, file) in self.files.all() {
            if let Some(kind) = lock(&file.flock).kind
                && lock::flock(file.as_fd(), LockKind::Unlock).is_ok()
            {
                flocks.push((handle, kind));
            }
        }
        LetGo { owners, flocks }
    }

    /// Takes them again, and waits a while for whoever has them. Those that are not to be had are told.
    pub fn take_locks_again(&self, let_go: LetGo, is_wanted: &dyn Fn() -> bool) -> Vec<NotTaken> {
        let LetGo { mut owners, mut flocks } = let_go;
        let end = Instant::now() + PATIENCE;
        loop {
            let refused = self.locks.take_again(&owners);
            let refused_flocks = self.take_flocks_again(&flocks);
            let all_wait =
                refused.iter().map(|(_, error)| *error).chain(refused_flocks.iter().map(|(_, error)| *error));
            if !all_wait.into_iter().any(|error| error == Errno::AGAIN) || Instant::now() >= end || !is_wanted() {
                let owners = refused.into_iter().map(|(owner, error)| (owner.node, owner.handle, error));
                let flocks = refused_flocks.into_iter().filter_map(|((handle, _), error)| {
                    self.files.get(handle).ok().map(|file| (file.node(), handle, error))
                });
                let lost = owners.chain(flocks).map(|(node, handle, error)| NotTaken { node, handle, error });
                let lost: Vec<NotTaken> = lost.collect();
                self.lose_files_of(&lost.iter().map(|lost| lost.node).collect());
                return lost;
            }
            (owners, flocks) = (
                refused.into_iter().map(|(owner, _)| owner).collect(),
                refused_flocks.into_iter().map(|(flock, _)| flock).collect(),
            );
            thread::sleep(PAUSE);
        }
    }

    fn take_flocks_again(&self, flocks: &[(Handle, LockKind)]) -> Vec<((Handle, LockKind), Errno)> {
        let take = |&(handle, kind): &(Handle, LockKind)| {
            // Nobody closes it while no ring runs.
            let file = self.files.get(handle).ok()?;
            lock::flock(file.as_fd(), kind).err().map(|error| ((handle, kind), error))
        };
        flocks.iter().filter_map(take).collect()
    }

    /// Nothing of these nodes is open or locked any more: nobody could unlock it.
    pub(super) fn lose_files_of(&self, nodes: &HashSet<Node>) {
        if nodes.is_empty() {
            return;
        }
        for (handle, _) in self.files.all().iter().filter(|(_, file)| nodes.contains(&file.node())) {
            self.files.remove(*handle);
        }
        for holding in self.locks.holdings().iter().filter(|holding| nodes.contains(&holding.node)) {
            self.locks.drop_owner(holding.node, holding.owner);
        }
    }
}
