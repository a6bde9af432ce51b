//! The order of writes that find their place by themselves.
//!
//! What is appended on several threads could change places. So appends of one open file that are left to threads take their turns in the
//! order in which they were left, and others know that there are some.

use crate::file::{OpenFile, Turns};
use crate::sync::lock;
use std::sync::{Arc, PoisonError};

/// A place in the line, until this is dropped.
#[derive(Debug)]
pub struct Append {
    file: Arc<OpenFile>,
    /// So many are before it.
    place: u64,
}

impl Append {
    /// Waits for all that were left to threads before.
    #[must_use]
    pub fn wait(self) -> Append {
        let line = &self.file.line;
        let before = |turns: &mut Turns| turns.ended < self.place;
        drop(line.next.wait_while(lock(&line.turns), before).unwrap_or_else(PoisonError::into_inner));
        self
    }
}

impl Drop for Append {
    fn drop(&mut self) {
        lock(&self.file.line.turns).ended += 1;
        self.file.line.next.notify_all();
    }
}

impl OpenFile {
    /// Leaves an append to a thread by `leave`, which is to make no other wait: threads take what is left in this order, so that
    /// nobody waits for who has no thread yet.
    pub fn append_in_line<T>(self: &Arc<OpenFile>, leave: impl FnOnce(Append) -> T) -> T {
        let mut turns = lock(&self.line.turns);
        let place = turns.left;
        turns.left += 1;
        leave(Append { file: Arc::clone(self), place })
    }

    /// Whether appends are left to threads, before which another one must not come.
    #[must_use]
    pub fn has_line(&self) -> bool {
        let turns = lock(&self.line.turns);
        turns.ended < turns.left
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, ROOT, Source, Tree};
    use std::sync::Mutex;

    #[test]
    fn appends_take_turns_in_the_order_in_which_they_were_left() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "").unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let node = tree.lookup(ROOT, c"file").unwrap().node;
        let file = tree.file(tree.open(node, libc::O_WRONLY | libc::O_APPEND, false).unwrap().handle).unwrap();
        assert!(file.appends() && !file.has_line());
        let places: Vec<_> = (0..20).map(|_| file.append_in_line(|append| append)).collect();
        assert!(file.has_line());
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (number, append) in places.into_iter().enumerate().rev() {
                let done = &done;
                scope.spawn(move || {
                    let _append = append.wait();
                    done.lock().unwrap().push(number);
                });
            }
        });
        assert_eq!(done.into_inner().unwrap(), (0..20).collect::<Vec<_>>());
        assert!(!file.has_line());
    }
}
