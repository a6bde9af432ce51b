//! Descriptors that go from one program to the next, by their numbers.

use super::state::Number;
use crate::service::take_descriptor;
use rustix::io::{FdFlags, fcntl_setfd};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The thread that closes what would have gone along, and what nobody has taken.
pub(super) const END_THREAD: &str = "upgrade-close";

/// On their way out. Files are the descriptors that their users have: a duplicate more is a close more, and execve closes one of the
/// two, which is work for some file systems (FUSE, NFS) while guests wait. Sockets, eventfds and memory may be duplicates: their close is
/// nothing as long as there is another descriptor. Whoever uses them goes on with them if the way ends here.
#[derive(Default)]
pub(super) struct Outgoing {
    descriptors: Vec<(Arc<OwnedFd>, String)>,
    lent: Vec<passthrough::Descriptor>,
}

impl Outgoing {
    /// Takes one along, and says under which number the next program finds it.
    pub(super) fn give(&mut self, fd: impl Into<Arc<OwnedFd>>, meaning: String) -> Number {
        let fd = fd.into();
        let number = fd.as_raw_fd();
        self.descriptors.push((fd, meaning));
        number
    }

    /// Takes one along that others use, and there may be many of these, so that it is neither duplicated nor described.
    pub(super) fn lend(&mut self, fd: passthrough::Descriptor) -> Number {
        let number = fd.as_fd().as_raw_fd();
        self.lent.push(fd);
        number
    }

    /// Sees to it that each is named once: the next program takes each once, and would lose whatever names it a second time.
    ///
    /// # Errors
    /// One has two users.
    pub(super) fn check_once(&self) -> Result<(), String> {
        let named = self.descriptors.iter().map(|(fd, meaning)| (fd.as_raw_fd(), meaning.as_str()));
        let lent = self.lent.iter().map(|fd| (fd.as_fd().as_raw_fd(), "a file of a directory"));
        let mut seen = HashMap::new();
        for (number, meaning) in named.chain(lent) {
            if let Some(first) = seen.insert(number, meaning) {
                return Err(format!(
                    "descriptor {number} is {first} and {meaning}, and goes along once: this is a bug of the daemon"
                ));
            }
        }
        Ok(())
    }

    /// What they are, by their numbers, but for those that are lent.
    pub(super) fn meanings(&self) -> BTreeMap<Number, String> {
        self.descriptors.iter().map(|(fd, meaning)| (fd.as_raw_fd(), meaning.clone())).collect()
    }

    /// Lets exactly these stay open in the program that this process becomes.
    pub(super) fn stay_open(&self) -> io::Result<()> {
        for (fd, _) in &self.descriptors {
            fcntl_setfd(fd, FdFlags::empty())?;
        }
        for fd in &self.lent {
            fcntl_setfd(fd.as_fd(), FdFlags::empty())?;
        }
        Ok(())
    }

    /// Undoes [`Outgoing::stay_open`]: no child is to have them.
    pub(super) fn close_again(&self) {
        let named = self.descriptors.iter().map(|(fd, _)| fd.as_fd());
        for fd in named.chain(self.lent.iter().map(|fd| fd.as_fd())) {
            // It is open: it is kept so here.
            let _ = fcntl_setfd(fd, FdFlags::CLOEXEC);
        }
    }

    /// Closes the duplicates, and waits for that for as long as `patience` at most: a frontend chooses what it passes.
    ///
    /// # Errors
    /// One is still being closed.
    pub(super) fn end(self, patience: Duration) -> Result<(), String> {
        if close_apart(self, patience) {
            return Ok(());
        }
        Err("a descriptor that a frontend has passed is being closed, and that lasts: look at what the frontends pass, and try again".to_owned())
    }
}

/// Closes `what` on a thread of its own, and waits for that for as long as `patience` at most; whether it is closed. Without another
/// thread it is closed here.
fn close_apart(what: impl Send + 'static, patience: Duration) -> bool {
    let (closes, closed) = channel::<()>();
    let close = move || {
        drop(what);
        drop(closes);
    };
    let started = std::thread::Builder::new().name(END_THREAD.to_owned()).spawn(close);
    // What could not be started has been dropped.
    started.is_err() || closed.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
}

/// Left open by the program before. Each can be taken once; what is not taken is closed in the end.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    left: BTreeMap<Number, OwnedFd>,
}

impl Incoming {
    /// Takes all of them over.
    ///
    /// # Errors
    /// One that is not open; the others are closed then.
    pub(super) fn new(meanings: &BTreeMap<Number, String>) -> Result<Incoming, String> {
        let mut incoming = Incoming::default();
        for (number, meaning) in meanings {
            incoming.add(*number, meaning)?;
        }
        Ok(incoming)
    }

    /// Takes one more over, which `meaning` describes.
    ///
    /// # Errors
    /// One that is not open, or was taken over already.
    pub(super) fn add(&mut self, number: Number, meaning: &str) -> Result<(), String> {
        if self.left.contains_key(&number) {
            return Err(format!("descriptor {number} ({meaning}) is named twice"));
        }
        let found = (number > 2).then(|| take_descriptor(number)).flatten();
        let fd = found.ok_or_else(|| format!("descriptor {number} ({meaning}) is not open"))?;
        fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| format!("descriptor {number} ({meaning}): {error}"))?;
        self.left.insert(number, fd);
        Ok(())
    }

    /// The descriptor of this number.
    ///
    /// # Errors
    /// One that was not left, or was taken already.
    pub(super) fn take(&mut self, number: Number) -> Result<OwnedFd, String> {
        self.left.remove(&number).ok_or_else(|| format!("descriptor {number} is not there, or was named twice"))
    }

    /// Closes what was not taken, and waits for nobody who has to do with that.
    pub(super) fn end(self) {
        if self.left.is_empty() {
            return;
        }
        close_apart(self, Duration::ZERO);
    }

    /// As [`Incoming::take`], for one that need not be.
    pub(super) fn take_if(&mut self, number: Option<Number>) -> Result<Option<OwnedFd>, String> {
        number.map(|number| self.take(number)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::fcntl_getfd;

    #[test]
    fn what_goes_out_comes_in_once() {
        let mut out = Outgoing::default();
        let (reader, writer) = std::io::pipe().unwrap();
        let number = out.give(OwnedFd::from(reader), "a pipe".into());
        out.stay_open().unwrap();
        let meanings = out.meanings();
        assert_eq!(meanings, BTreeMap::from([(number, "a pipe".to_owned())]));
        // Here it would be another program that has it.
        for (fd, _) in out.descriptors {
            std::mem::forget(Arc::try_unwrap(fd).unwrap());
        }
        let mut incoming = Incoming::new(&meanings).unwrap();
        let fd = incoming.take(number).unwrap();
        assert!(fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        assert!(incoming.take(number).unwrap_err().contains("named twice"));
        drop(writer);
    }

    #[test]
    fn what_is_lent_is_as_before_if_nothing_comes_of_it() {
        let mut out = Outgoing::default();
        let (reader, _writer) = std::io::pipe().unwrap();
        let lent: passthrough::Descriptor = std::sync::Arc::new(reader);
        let number = out.lend(lent.clone());
        assert_eq!((number, out.meanings().len()), (lent.as_fd().as_raw_fd(), 0));
        out.stay_open().unwrap();
        assert!(!fcntl_getfd(lent.as_fd()).unwrap().contains(FdFlags::CLOEXEC));
        out.close_again();
        drop(out);
        assert!(fcntl_getfd(lent.as_fd()).unwrap().contains(FdFlags::CLOEXEC));
    }

    #[test]
    fn what_two_would_take_is_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (shared, lent): (_, passthrough::Descriptor) = (Arc::new(OwnedFd::from(reader)), Arc::new(writer));
        let mut out = Outgoing::default();
        let number = out.give(shared.clone(), "contents of a".into());
        out.lend(lent.clone());
        out.check_once().unwrap();
        out.give(shared, "contents of b".into());
        let why = out.check_once().unwrap_err();
        assert!(why.starts_with(&format!("descriptor {number} is contents of a and contents of b,")), "{why}");
        let mut out = Outgoing::default();
        out.lend(lent.clone());
        out.lend(lent);
        out.check_once().unwrap_err();
    }

    #[test]
    fn a_close_that_lasts_is_left_to_its_thread() {
        struct Lasts(std::sync::mpsc::Receiver<()>);
        impl Drop for Lasts {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let (ends, end) = channel();
        assert!(!close_apart(Lasts(end), Duration::from_millis(10)));
        drop(ends);
        assert!(close_apart((), Duration::from_secs(20)));
    }

    #[test]
    fn what_is_not_open_is_named() {
        for number in [-1, 0, 2, 1_000_000] {
            let error = Incoming::new(&BTreeMap::from([(number, "ring 0 of disk".to_owned())])).unwrap_err();
            assert!(error.contains(&format!("descriptor {number} (ring 0 of disk)")), "{error}");
        }
    }
}
