//! The locks of a tree whose client is migrated: another daemon takes them, and this one takes them again if nothing comes of it.

use super::{Holding, LockKind, Locks};
use crate::Result;
use crate::lock::kernel::{self, Span};
use std::os::fd::AsFd;

impl Locks {
    /// What all owners hold.
    pub(crate) fn holdings(&self) -> Vec<Holding> {
        self.holders().into_iter().map(|(_, holding)| holding).collect()
    }

    /// The kernel holds nothing for them any more. What they had is remembered.
    pub(crate) fn let_go(&self) {
        for (owner, _) in self.holders() {
            // As in `drop_locks`.
            let _ = kernel::set(owner.file.as_fd(), LockKind::Unlock, Span::ALL);
        }
    }

    /// What was let go is taken again, without waiting. Those who do not get all of theirs, with why: they have nothing any more.
    pub(crate) fn take_again(&self, wanted: &[Holding]) -> Vec<(Holding, rustix::io::Errno)> {
        let mut refused = Vec::new();
        for holding in wanted {
            if let Err(error) = self.take_all_again(holding) {
                refused.push((holding.clone(), error));
            }
        }
        refused
    }

    fn take_all_again(&self, holding: &Holding) -> Result<()> {
        // Nobody unlocks while no ring runs.
        let Some(owner) = self.table.find((holding.node, holding.owner)) else { return Ok(()) };
        let take =
            |&(start, end, kind): &(u64, u64, LockKind)| kernel::set(owner.file.as_fd(), kind, Span::new(start, end)?);
        holding.ranges.iter().try_for_each(take).inspect_err(|_| {
            // All or nothing: whoever asks once more begins anew.
            let _ = kernel::set(owner.file.as_fd(), LockKind::Unlock, Span::ALL);
        })
    }
}
