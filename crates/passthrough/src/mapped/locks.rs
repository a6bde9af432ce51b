//! Locks that make several system calls look like one to those who ask the same tree.
//!
//! They are taken in the order directories, inodes, and directories in the order of their parts.

use crate::node::Inode;
use crate::sync::{read, write};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many locks stand for all directories, and as many for all inodes.
const PARTS: usize = 16;

/// A name and what is recorded of it change together, and so do the parts of a record.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    names: [RwLock<()>; PARTS],
    records: [RwLock<()>; PARTS],
}

fn part(inode: &Inode) -> usize {
    // By what does not change when the client forgets the inode and finds it again.
    (inode.key.ino % PARTS as u64) as usize
}

impl Locks {
    /// Names of this directory stay what they are.
    pub(crate) fn names(&self, dir: &Inode) -> RwLockReadGuard<'_, ()> {
        // The remainder is below the length.
        read(&self.names[part(dir)])
    }

    /// Names of both stay what they are.
    pub(crate) fn names_of_both(
        &self,
        dir: &Inode,
        other: &Inode,
    ) -> (RwLockReadGuard<'_, ()>, Option<RwLockReadGuard<'_, ()>>) {
        let (first, second) = (part(dir).min(part(other)), part(dir).max(part(other)));
        (read(&self.names[first]), (first != second).then(|| read(&self.names[second])))
    }

    /// The caller alone changes names of this directory, and nobody looks.
    pub(crate) fn change_names(&self, dir: &Inode) -> RwLockWriteGuard<'_, ()> {
        write(&self.names[part(dir)])
    }

    /// As [`Locks::change_names`], for all directories.
    pub(crate) fn change_all_names(&self) -> [RwLockWriteGuard<'_, ()>; PARTS] {
        self.names.each_ref().map(write)
    }

    /// What is recorded of this inode stays as it is.
    pub(crate) fn record(&self, inode: &Inode) -> RwLockReadGuard<'_, ()> {
        read(&self.records[part(inode)])
    }

    /// The caller alone changes what is recorded of this inode, and nobody looks.
    pub(crate) fn change_record(&self, inode: &Inode) -> RwLockWriteGuard<'_, ()> {
        write(&self.records[part(inode)])
    }
}
