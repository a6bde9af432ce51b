//! The locks of a tree that goes on in another program. What holds them stays open, so nobody can take them in between.

use super::{Holding, LockKind, Locks, Owner, Place, Ranges, State};
use crate::Result;
use crate::closing::{Closing, Sort};
use crate::handover::descriptors::Outgoing;
use crate::handover::form::OwnerForm;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

impl Locks {
    /// Who holds what. Nobody waits.
    pub(crate) fn hand_over(&self, out: &mut Outgoing) -> Vec<OwnerForm> {
        let form = |(owner, holding): (Arc<Owner>, Holding)| {
            let Holding { node, owner: number, pid, handle, ranges } = holding;
            let held = ranges.iter().map(|&(start, end, kind)| (start, end, kind.is_exclusive())).collect();
            OwnerForm { node, owner: number, pid, handle, place: out.place(owner), held }
        };
        self.holders().into_iter().map(form).collect()
    }

    /// An owner holds what the kernel has granted to another program on this file.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub(crate) fn adopt(&self, form: &OwnerForm, file: OwnedFd) -> Result<()> {
        let place = Place::of(&file)?;
        let mut held = Ranges::default();
        for &(start, end, exclusive) in &form.held {
            held.set(start, end, LockKind::exclusive(exclusive));
        }
        self.table.count_ranges(place, 0, held.len());
        let state = Mutex::new(State { held, pid: form.pid, ..State::default() });
        let (handle, taken) = (AtomicU64::new(form.handle), self.table.share.take_anyway());
        let file = Closing::new(file, taken, Sort::Write);
        let joined = self.table.owners_of_files.join_anyway(place);
        let mut owners = self.table.owners();
        owners.insert((form.node, form.owner), Arc::new(Owner { file, place, _joined: joined, handle, state }));
        self.table.count.store(owners.len(), Ordering::Release);
        Ok(())
    }
}
