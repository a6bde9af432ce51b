//! Files and directories that a long call is changing.
//!
//! The kernel holds an inode's lock while it truncates a file or allocates and frees parts of it, for seconds if there is much to
//! do; a directory's while it looks whether one in it is empty, or waits there for the lock of a file that loses a name. Whatever else
//! needs that lock waits: a write, a change of the mode or of an extended attribute, a name that comes, goes, or is looked up.
//! A thread that serves others asks here first, and leaves such a call to where the long one is.

use crate::lock::Place;
use crate::stat::Key;
use crate::sync::lock;
use rustix::fs::Statx;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// A file or directory that is changed, by whatever nodes and names a client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject(pub(crate) Place);

impl Subject {
    /// What a client knows.
    pub(crate) fn known(key: &Key) -> Subject {
        Subject(Place::known(key))
    }

    /// What was found under a name.
    pub(crate) fn found(found: &Statx) -> Subject {
        Subject(Place::found(found))
    }
}

/// What is being changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    state: Mutex<State>,
    /// A call that had these is over.
    ended: Condvar,
    /// How many subjects there are.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// By how many calls, those that wait for a thread included: no more than there are requests.
    subjects: HashMap<Subject, usize>,
    /// Those of the calls that run.
    running: HashSet<Subject>,
}

impl Changes {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn has(&self, subject: Subject) -> bool {
        lock(&self.state).subjects.contains_key(&subject)
    }

    /// A long call is about to change these.
    pub(crate) fn begin(self: &Arc<Changes>, subjects: Vec<Subject>) -> Changing {
        let mut state = lock(&self.state);
        subjects.iter().for_each(|subject| *state.subjects.entry(*subject).or_default() += 1);
        self.count.store(state.subjects.len(), Ordering::Relaxed);
        drop(state);
        Changing { changes: Arc::clone(self), subjects }
    }

    /// Waits until no call runs that has one of these, and has them until it is dropped. A call that waited for another within the
    /// kernel would keep the locks of directories meanwhile.
    fn run(self: &Arc<Changes>, subjects: Vec<Subject>) -> Running {
        let state = lock(&self.state);
        let busy = |state: &mut State| subjects.iter().any(|subject| state.running.contains(subject));
        let mut state = self.ended.wait_while(state, busy).unwrap_or_else(PoisonError::into_inner);
        state.running.extend(&subjects);
        drop(state);
        Running { changes: Arc::clone(self), subjects }
    }

    /// As [`Changes::run`], for what was found.
    pub(crate) fn run_alone(self: &Arc<Changes>, found: &Statx) -> Running {
        self.run(vec![Subject::found(found)])
    }
}

/// A call runs that changes these.
#[derive(Debug)]
pub(crate) struct Running {
    changes: Arc<Changes>,
    subjects: Vec<Subject>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = lock(&self.changes.state);
        state.running.retain(|subject| !self.subjects.contains(subject));
        drop(state);
        self.changes.ended.notify_all();
    }
}

/// Files and directories are being changed until this is dropped.
#[derive(Debug)]
pub struct Changing {
    changes: Arc<Changes>,
    subjects: Vec<Subject>,
}

impl Changing {
    /// The call begins.
    pub(crate) fn run(&self) -> Running {
        self.changes.run(self.subjects.clone())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut state = lock(&self.changes.state);
        for subject in &self.subjects {
            if let Some(calls) = state.subjects.get_mut(subject) {
                *calls -= 1;
                if *calls == 0 {
                    state.subjects.remove(subject);
                }
            }
        }
        self.changes.count.store(state.subjects.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicUsize, Ordering, lock};
    use crate::{Options, ROOT, Security, Source, Tree};

    #[test]
    fn what_is_changed_is_known_by_node_and_name_until_all_have_ended() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            std::fs::write(directory.path().join(name), "text").unwrap();
        }
        std::fs::hard_link(directory.path().join("one"), directory.path().join("other")).unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let one = tree.lookup(ROOT, c"one").unwrap().node;
        let two = tree.lookup(ROOT, c"two").unwrap().node;
        assert!(!tree.changes_any());
        let [first, second] = [c"one", c"two"].map(|name| tree.subject_by_name(ROOT, name).unwrap());
        let (first, second) = (tree.change(vec![first]), tree.change(vec![first, second]));
        for name in [c"one", c"other", c"two"] {
            assert!(tree.removal_is_long(ROOT, name), "{name:?}");
        }
        assert_eq!(
            (tree.subject_by_name(ROOT, c"other"), tree.subject_by_name(ROOT, c"missing")),
            (tree.subject(one), None)
        );
        assert!(!tree.removal_is_long(ROOT, c"missing") && !tree.is_changing(ROOT));
        drop(second);
        assert!(tree.is_changing(one) && tree.truncation_is_long(one, None, 10) && !tree.is_changing(two));
        drop(first);
        assert!(!tree.changes_any() && !tree.is_changing(one) && !tree.removal_is_long(ROOT, c"one"));
    }

    #[test]
    fn names_of_a_directory_that_is_being_changed_are_not_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "text").unwrap();
        for security in [Security::Passthrough, Security::MappedFile { fmode: 0o600, dmode: 0o700 }] {
            let options = Options { security, ..Options::default() };
            let tree = Tree::new(Source::Path(directory.path().to_owned()), options).unwrap();
            let file = tree.lookup(ROOT, c"file").unwrap().node;
            let mapped = security != Security::Passthrough;
            assert!(!tree.names_are_changing(ROOT) && !tree.records_are_changing());
            let changing = tree.change(tree.subject(file).into_iter().collect());
            assert_eq!((tree.names_are_changing(ROOT), tree.records_are_changing()), (mapped, mapped));
            drop(changing);
            let changing = tree.change(tree.subject(ROOT).into_iter().collect());
            assert!(tree.names_are_changing(ROOT) && tree.removal_is_long(ROOT, c"missing"));
            assert!(!tree.is_changing(file));
            assert_eq!(tree.subject_by_name(ROOT, c"file"), None);
            drop(changing);
            assert_eq!(tree.subject_by_name(ROOT, c"file"), tree.subject(file));
        }
    }
    /// What a client has forgotten, and has open, is what it was.
    #[test]
    fn a_file_is_the_same_by_another_node() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "text").unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let node = tree.lookup(ROOT, c"file").unwrap().node;
        let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
        tree.forget(node, 1);
        let changing = tree.change(tree.subject_opened(handle).into_iter().collect());
        let again = tree.lookup(ROOT, c"file").unwrap().node;
        assert_ne!(node, again);
        assert!(tree.is_changing(again) && tree.removal_is_long(ROOT, c"file") && tree.file_is_changing(handle));
        assert!(!tree.is_changing(ROOT));
        drop(changing);
    }

    #[test]
    fn calls_that_change_the_same_run_one_after_the_other() {
        let directory = tempfile::tempdir().unwrap();
        ["one", "two"].iter().for_each(|name| std::fs::write(directory.path().join(name), "text").unwrap());
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let change = |names: &[&std::ffi::CStr]| {
            tree.change(names.iter().filter_map(|name| tree.subject_by_name(ROOT, name)).collect())
        };
        let (first, second) = (change(&[c"one"]), change(&[c"two", c"one"]));
        let running = first.run();
        // Who changes another does not wait.
        drop(change(&[c"two"]).run());
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let running = second.run();
                assert_eq!(over.load(Ordering::SeqCst), 1);
                drop(running);
                // As what loses its name.
                crate::with_time(None, || tree.unlink(ROOT, c"one").unwrap());
            });
            std::thread::yield_now();
            over.store(1, Ordering::SeqCst);
            drop(running);
            waits.join().unwrap();
        });
        assert!(lock(&tree.changes.state).running.is_empty());
    }
}
