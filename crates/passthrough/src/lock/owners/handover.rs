//! The locks of a tree that goes on in another program. What holds them stays open, so nobody can take them in between.

use super::{Key, LockKind, Locks, Owner, Place, Ranges, State};
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
        let owners: Vec<(Key, Arc<Owner>)> =
            self.table.owners().iter().map(|(&key, owner)| (key, Arc::clone(owner))).collect();
        let mut forms = Vec::with_capacity(owners.len());
        for ((node, number), owner) in owners {
            let (held, pid) = {
                let state = owner.state();
                let held = state.held.pieces().map(|(start, end, kind)| (start, end, kind == LockKind::Write));
                (held.collect::<Vec<_>>(), state.pid)
            };
            let handle = owner.handle.load(Ordering::Relaxed);
            if !held.is_empty() {
                forms.push(OwnerForm { node, owner: number, pid, handle, place: out.place(owner), held });
            }
        }
        forms
    }

    /// An owner holds what the kernel has granted to another program on this file.
    ///
    /// # Errors
    /// As [`Place::of`].
    pub(crate) fn adopt(&self, form: &OwnerForm, file: OwnedFd) -> Result<()> {
        let place = Place::of(&file)?;
        let mut held = Ranges::default();
        for &(start, end, exclusive) in &form.held {
            held.set(start, end, if exclusive { LockKind::Write } else { LockKind::Read });
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
