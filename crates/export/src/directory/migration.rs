//! A directory's session on its way to another host: what INIT agreed on, and the tree with all that the guest knows and has
//! (docs/formats/device-state.md).

use super::Directory;
use super::service::FuseSession;
use passthrough::{LetGo, Saved};
use std::fmt::Display;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

/// What a state begins with.
const MAGIC: [u8; 8] = *b"VRINGFS\0";
/// The version of all that follows, the tree's part too.
const VERSION: u32 = 1;
/// Requests that were interrupted and have not come: as many as count.
const INTERRUPTED_MAX: usize = 64;

/// Why a state that has come is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
enum NoState {
    /// the device state is none of vringd's; both sides of a migration have to be
    Magic,
    /// the device state is of version {0}, and this program knows version 1
    Version(u32),
    /// the device state is cut off
    Short,
}

/// Takes bytes from the front.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Result<&'a [u8; N], NoState> {
    let (front, rest) = bytes.split_first_chunk().ok_or(NoState::Short)?;
    *bytes = rest;
    Ok(front)
}

/// What stands before the tree.
fn encode(session: &FuseSession) -> Vec<u8> {
    let FuseSession { agreed, interrupted } = session;
    // No version has number 0.
    let (minor, flags) = agreed.unwrap_or_default();
    let count = interrupted.len().min(INTERRUPTED_MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(minor.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend((count as u32).to_le_bytes());
    bytes.extend(interrupted.iter().take(count).flat_map(|unique| unique.to_le_bytes()));
    bytes
}

/// What stands before the tree, and the tree.
fn decode(mut bytes: &[u8]) -> Result<(FuseSession, &[u8]), NoState> {
    let front = &mut bytes;
    if *take(front).map_err(|_| NoState::Magic)? != MAGIC {
        return Err(NoState::Magic);
    }
    match u32::from_le_bytes(*take(front)?) {
        VERSION => {}
        other => return Err(NoState::Version(other)),
    }
    let (minor, flags) = (u32::from_le_bytes(*take(front)?), u64::from_le_bytes(*take(front)?));
    let count = u32::from_le_bytes(*take(front)?) as usize;
    let mut interrupted = Vec::new();
    for _ in 0..count.min(INTERRUPTED_MAX) {
        interrupted.push(u64::from_le_bytes(*take(front)?));
    }
    if count > INTERRUPTED_MAX {
        return Err(NoState::Short);
    }
    let agreed = (minor != 0).then_some((minor, flags));
    Ok((FuseSession { agreed, interrupted }, bytes))
}

fn words(error: impl Display) -> String {
    error.to_string()
}

impl Directory {
    fn away(&self) -> MutexGuard<'_, Option<LetGo>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its state has gone to another host, and no ring has started since.
    pub(super) fn is_away(&self) -> bool {
        self.away().is_some()
    }

    /// The guest is gone: it does not come back to its locks.
    pub(super) fn forget_away(&self) {
        *self.away() = None;
    }

    /// The state, for another host, which can have the guest's locks from now on.
    pub(crate) fn save_state(&self, is_wanted: &dyn Fn() -> bool) -> Result<Vec<Vec<u8>>, String> {
        let begun = Instant::now();
        let Saved { bytes, nodes, files, owners, lost } = self.service.tree().save(is_wanted).map_err(words)?;
        *self.away() = Some(self.service.tree().let_locks_go());
        let took_ms = begun.elapsed().as_millis() as u64;
        tracing::info!(nodes, files, lock_owners = owners, lost, took_ms, "the guest's state leaves for another host");
        let mut pieces = vec![encode(&self.service.hand_over())];
        pieces.extend(bytes);
        Ok(pieces)
    }

    /// Goes on with the state of another host. What the guest has no more, in words.
    pub(crate) fn load_state(&self, state: &[u8], is_wanted: &dyn Fn() -> bool) -> Result<Option<String>, String> {
        self.end();
        let begun = Instant::now();
        let (session, tree) = decode(state).map_err(words)?;
        self.service.may_adopt(&session)?;
        let loaded = self.service.tree().load(tree, is_wanted).map_err(words)?;
        self.service.adopt(&session);
        let took_ms = begun.elapsed().as_millis() as u64;
        let (nodes, files, lock_owners, lost) = (loaded.nodes, loaded.files, loaded.owners, loaded.lost);
        tracing::info!(
            nodes,
            files,
            lock_owners,
            lost,
            took_ms,
            "the guest goes on here with the state of another host"
        );
        Ok(loaded.first_lost.map(|first| format!("the guest came without {lost} of what it had: {first}")))
    }

    /// The migration has come to nothing, if there was one: the guest has its locks again, or loses the files it had them on. Those, in
    /// words.
    pub(super) fn come_back(&self, is_wanted: &dyn Fn() -> bool) -> Option<String> {
        let let_go = self.away().take()?;
        let lost = self.service.tree().take_locks_again(let_go, is_wanted);
        let first = lost.first()?;
        Some(format!(
            "{} of the guest's locks are not had again after the migration that failed, and their files are closed: inode {}: {}",
            lost.len(),
            first.node,
            first.error
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_session_is_read_as_it_was_written(
            minor in 0_u32..50, flags: u64, interrupted in proptest::collection::vec(any::<u64>(), 0..80), tree: Vec<u8>,
        ) {
            let session = FuseSession { agreed: (minor != 0).then_some((minor, flags)), interrupted };
            let bytes = [encode(&session), tree.clone()].concat();
            let (mut read, rest) = decode(&bytes).unwrap();
            prop_assert_eq!(rest, &tree);
            read.interrupted.extend(session.interrupted.iter().skip(64));
            prop_assert_eq!(read, session);
        }
    }

    #[test]
    fn what_is_not_ours_is_named() {
        let bytes = encode(&FuseSession { agreed: Some((38, 1)), interrupted: vec![7] });
        for length in 0..bytes.len() {
            let error = if length < MAGIC.len() { NoState::Magic } else { NoState::Short };
            assert_eq!(decode(&bytes[..length]), Err(error));
        }
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(decode(&newer), Err(NoState::Version(2)));
        assert_eq!(decode(b"another daemon's"), Err(NoState::Magic));
        let mut many = bytes;
        many[24] = 65;
        many.resize(1000, 0);
        assert_eq!(decode(&many), Err(NoState::Short));
    }
}
