//! What long calls are changing, and who would wait for them.

use crate::stat::{component, stat};
use crate::{Changing, Handle, Node, Result, Subject, Tree};
use rustix::fs::Statx;
use std::ffi::CStr;
use std::os::fd::AsFd;

impl Tree {
    /// A long call is about to change these.
    #[must_use]
    pub fn change(&self, subjects: Vec<Subject>) -> Changing {
        self.changes.begin(subjects)
    }

    /// Whether anything is being changed.
    #[must_use]
    #[inline]
    pub fn changes_any(&self) -> bool {
        self.changes.any()
    }

    /// Whether a file or directory is being changed, and who needs its lock would wait. No system call.
    #[must_use]
    #[inline]
    pub fn is_changing(&self, node: Node) -> bool {
        self.changes.any() && self.subject(node).is_some_and(|subject| self.changes.has(subject))
    }

    /// Whether who looks a name up in a directory, or makes or removes one, would wait. No system call. Where owners and modes are
    /// records, a long call may have the locks of any.
    #[must_use]
    #[inline]
    pub fn names_are_changing(&self, dir: Node) -> bool {
        self.changes.any() && (self.mapped.is_some() || self.is_changing(dir))
    }

    /// Whether who looks at any node would wait, for a long call that has the locks of records. No system call.
    #[must_use]
    #[inline]
    pub fn records_are_changing(&self) -> bool {
        self.changes.any() && self.mapped.is_some()
    }

    /// Whether an open file is being changed, whatever node a client names with it. No system call.
    #[must_use]
    #[inline]
    pub fn file_is_changing(&self, handle: Handle) -> bool {
        self.changes.any() && self.subject_opened(handle).is_some_and(|subject| self.changes.has(subject))
    }

    /// What a node stands for, if the client knows it.
    #[must_use]
    pub fn subject(&self, node: Node) -> Option<Subject> {
        let inode = self.table.get(node).ok()?;
        Some(Subject::known(&inode.key))
    }

    /// What was opened as `handle`.
    #[must_use]
    pub fn subject_opened(&self, handle: Handle) -> Option<Subject> {
        self.files.get(handle).ok()?.at().map(Subject)
    }

    /// What is called `name` in `parent`. One system call, unless that would wait: then the call finds out when it has time; see
    /// [`crate::with_time`].
    #[must_use]
    pub fn subject_by_name(&self, parent: Node, name: &CStr) -> Option<Subject> {
        let look = (!self.names_are_changing(parent)).then(|| self.look(parent, name));
        Some(Subject::found(&look?.ok()?))
    }

    /// Looks at what may be changed by this name. One system call.
    pub(crate) fn look(&self, parent: Node, name: &CStr) -> Result<Statx> {
        component(name)?;
        self.writable()?;
        let dir = self.table.pin(&self.table.get(parent)?)?;
        stat(dir.as_fd(), name)
    }

    /// As [`Tree::is_changing`], for what was looked at.
    pub(crate) fn is_found_changing(&self, found: &Statx) -> bool {
        self.changes.any() && self.changes.has(Subject::found(found))
    }
}
