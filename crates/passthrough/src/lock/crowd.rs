//! How many locks there are on each file. The kernel keeps those of one kind on one file in a list, and each call goes along it:
//! what a call may take is what that list may have.
//!
//! A file is counted by its inode on the host: a client that forgets a node and finds it again has another number for it.

use crate::Result;
use crate::stat::Key;
use crate::sync::lock;
use rustix::fs::{Statx, makedev};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// A file of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    device: u64,
    inode: u64,
}

impl Place {
    /// Where an open file lies. One system call.
    ///
    /// # Errors
    /// The kernel's, of a network file system that is gone.
    pub(crate) fn of(file: impl AsFd) -> Result<Place> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Place { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Where a file lies that is known by this key.
    pub(crate) fn known(key: &Key) -> Place {
        let (major, minor) = key.mount.device;
        Place { device: makedev(major, minor), inode: key.ino }
    }

    /// Where a file lies that was looked at.
    pub(crate) fn found(stat: &Statx) -> Place {
        Place { device: makedev(stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
    }
}

/// Counts something of each file.
#[derive(Debug)]
pub(crate) struct Crowds {
    counts: Mutex<HashMap<Place, usize>>,
    max: usize,
}

impl Crowds {
    /// At most `max` of each file.
    pub(crate) fn new(max: usize) -> Arc<Crowds> {
        Arc::new(Crowds { counts: Mutex::default(), max })
    }

    /// How many there are of a file.
    pub(crate) fn of(&self, place: Place) -> usize {
        lock(&self.counts).get(&place).copied().unwrap_or(0)
    }

    /// Whether so many more may come to a file.
    pub(super) fn has_room(&self, place: Place, more: usize) -> bool {
        self.of(place).saturating_add(more) <= self.max
    }

    /// So many of a file have become so many, whatever the bound.
    pub(super) fn change(&self, place: Place, before: usize, after: usize) {
        if before == after {
            return;
        }
        let mut counts = lock(&self.counts);
        let count = counts.entry(place).or_default();
        *count = count.saturating_add(after).saturating_sub(before);
        if *count == 0 {
            counts.remove(&place);
        }
    }

    /// One more of a file, unless there are as many as may be.
    pub(crate) fn join(self: &Arc<Crowds>, place: Place) -> Option<Joined> {
        self.has_room(place, 1).then(|| self.join_anyway(place))
    }

    /// One more of a file: for what is there already.
    pub(crate) fn join_anyway(self: &Arc<Crowds>, place: Place) -> Joined {
        self.change(place, 0, 1);
        Joined { crowds: Arc::clone(self), place }
    }
}

/// One of a file's. It is no more when this is dropped.
#[derive(Debug)]
pub(crate) struct Joined {
    crowds: Arc<Crowds>,
    place: Place,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.crowds.change(self.place, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_its_own_bound_and_what_goes_makes_room() {
        let [one, other] = [7, 8].map(|inode| Place { device: 1, inode });
        let crowds = Crowds::new(2);
        let first = crowds.join(one).unwrap();
        let beyond = [crowds.join(one).unwrap(), crowds.join_anyway(one)];
        assert!(crowds.join(one).is_none() && crowds.join(other).is_some());
        crowds.change(other, 0, 1);
        assert!(crowds.has_room(other, 1) && !crowds.has_room(other, 2));
        drop(beyond);
        assert_eq!(crowds.of(one), 1);
        assert!(crowds.join(one).is_some());
        drop(first);
        crowds.change(other, 1, 0);
        assert!(lock(&crowds.counts).is_empty(), "what has none is not remembered");
    }
}
