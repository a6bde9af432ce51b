//! Which locks this program has. A program that takes its place by an execve is the same process to the kernel, and has none of them: what
//! its forerunner was about to open goes on being locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses of the clients that have them.
static HELD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<String>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that this program has.
#[derive(Debug)]
pub(crate) struct Held {
    address: String,
}

impl Held {
    /// By the client at this address.
    pub(crate) fn by(address: &str) -> Held {
        held().push(address.to_owned());
        Held { address: address.to_owned() }
    }
}

impl Held {
    /// The client that has it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(at) = held.iter().position(|address| *address == self.address) {
            held.swap_remove(at);
        }
    }
}

/// Whether the client at this address is one of this program's, with a lock.
pub(crate) fn is_held(address: &str) -> bool {
    held().iter().any(|other| other == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_until_it_is_given_up() {
        let address = "192.0.2.1:0/4711";
        let locks = [Held::by(address), Held::by(address)];
        let [one, other] = locks;
        drop(one);
        assert!(is_held(address) && !is_held("192.0.2.1:0/4712"));
        drop(other);
        assert!(!is_held(address));
    }
}
