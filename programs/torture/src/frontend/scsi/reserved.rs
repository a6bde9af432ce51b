//! What a unit must say of reservations, over servers that come and go (SPC-5, "PERSISTENT RESERVE IN command").
//!
//! The frontend has registered for good (APTPL) and holds a reservation. Now and then it takes another key, one change at a time. When a
//! server is lost with one under way, nobody knows which of both keys is kept: the next server says that it may have been done
//! (ABORTED COMMAND), and what it shows from then on is one of both, always the same.

use anyhow::{Result, ensure};

/// Types of persistent reservations: all that there are.
pub(super) const TYPES: [u8; 6] = [1, 3, 5, 6, 7, 8];
/// These have no holder, but all who are registered.
const ALL_REGISTRANTS: [u8; 2] = [7, 8];

/// What may be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    key: u64,
    /// PRGENERATION.
    generation: u32,
}

/// A change under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// What is there once it is made on this connection.
    now: State,
    /// What is there, one of these, if it was made on an earlier one.
    earlier: Vec<State>,
}

/// Registration and reservation of the frontend.
#[derive(Debug)]
pub(super) struct Reserved {
    kind: u8,
    /// One of these is there, unless a change is under way.
    states: Vec<State>,
    coming: Option<Change>,
    /// What may have been there, moment by moment: an answer may be looked at when another queue has told of a change already.
    trail: Vec<Vec<State>>,
    /// The first moment of this connection.
    begun: usize,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Keys,
    Reservation,
}

impl Reserved {
    /// This key is registered, the first time, and a reservation of this type is held.
    pub(super) fn new(kind: u8, key: u64) -> Self {
        let states = vec![State { key, generation: 1 }];
        Self { kind, trail: vec![states.clone()], states, coming: None, begun: 0 }
    }

    /// The moment that there is now.
    pub(super) fn moment(&self) -> usize {
        self.trail.len() - 1
    }

    /// What may be there from now on.
    fn note(&mut self) {
        let coming = self.coming.iter().flat_map(|change| change.earlier.iter().chain([&change.now]));
        self.trail.push(self.states.iter().chain(coming).copied().collect());
    }

    /// The key that is registered, if that is known and nothing is under way.
    pub(super) fn key(&self) -> Option<u64> {
        match (self.states.as_slice(), &self.coming) {
            ([state], None) => Some(state.key),
            _ => None,
        }
    }

    /// A connection begins. A loss of power takes PRGENERATION with it; without one, the server may have made a change of now on
    /// the connection before.
    pub(super) fn begin(&mut self, power_lost: bool) {
        match (power_lost, &mut self.coming) {
            (false, Some(change)) if !change.earlier.contains(&change.now) => change.earlier.push(change.now),
            (true, Some(change)) => {
                change.earlier = vec![State { generation: 0, ..change.now }];
                change.now.generation = 1;
            }
            _ => {}
        }
        if power_lost {
            for state in &mut self.states {
                state.generation = 0;
            }
            self.states.dedup();
        }
        self.begun = self.trail.len();
        self.note();
    }

    /// A change of the key is sent.
    pub(super) fn change(&mut self, key: u64) {
        if let [state] = self.states.as_slice() {
            let next = State { key, generation: state.generation + 1 };
            self.coming = Some(Change { now: next, earlier: Vec::new() });
        }
        self.note();
    }

    /// It was made, on this connection or an earlier one.
    pub(super) fn changed(&mut self, earlier: bool) {
        if let Some(change) = self.coming.take() {
            self.states = if earlier { change.earlier } else { vec![change.now] };
        }
        self.note();
    }

    /// It was not.
    pub(super) fn not_begun(&mut self) {
        self.coming = None;
        self.note();
    }

    /// An earlier server may have made it, and this one has not.
    pub(super) fn may_be_changed(&mut self) {
        self.states.extend(self.coming.take().into_iter().flat_map(|change| change.earlier));
        self.note();
    }

    /// The answer that belongs to a state.
    fn says(&self, asked: Asked, state: State) -> Vec<u8> {
        let generation = state.generation.to_be_bytes();
        match asked {
            Asked::Keys => [&generation[..], &8_u32.to_be_bytes(), &state.key.to_be_bytes()].concat(),
            Asked::Reservation => {
                let key = if ALL_REGISTRANTS.contains(&self.kind) { 0 } else { state.key };
                [&generation[..], &16_u32.to_be_bytes(), &key.to_be_bytes(), &[0, 0, 0, 0, 0, self.kind, 0, 0]].concat()
            }
        }
    }

    /// Judges an answer to what was asked at some moment, of this connection or an earlier one.
    pub(super) fn judge(&mut self, asked: Asked, data: &[u8], moment: usize, earlier: bool) -> Result<()> {
        let moments = if earlier { moment..self.begun } else { moment.max(self.begun)..self.trail.len() };
        let is_new = moments.start == self.moment();
        let may_be: Vec<State> = self.trail.get(moments).unwrap_or_default().concat();
        let fits = |state: &State| self.says(asked, *state) == data;
        let when = if earlier { "before the server was lost" } else { "since it was asked" };
        ensure!(may_be.iter().any(fits), "{data:02x?} is no answer: {when} one of these was there: {may_be:x?}");
        // Nothing has happened since: what it says is there, and stays.
        if is_new && !earlier && self.coming.is_none() {
            let left: Vec<State> = self.states.iter().copied().filter(fits).collect();
            if let Some(now) = self.trail.last_mut() {
                now.clone_from(&left);
            }
            self.states = left;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(reserved: &Reserved, key: u64, generation: u32) -> Vec<u8> {
        reserved.says(Asked::Keys, State { key, generation })
    }

    fn is_said(reserved: &mut Reserved, key: u64, generation: u32) -> bool {
        let data = says(reserved, key, generation);
        reserved.judge(Asked::Keys, &data, reserved.moment(), false).is_ok()
    }

    #[test]
    fn what_is_registered_stays_over_a_kill_and_its_generation_does_not() {
        let mut reserved = Reserved::new(1, 7);
        assert!(is_said(&mut reserved, 7, 1) && !is_said(&mut reserved, 7, 0) && !is_said(&mut reserved, 8, 1));
        let nobody = [0, 0, 0, 1, 0, 0, 0, 0];
        assert!(reserved.judge(Asked::Keys, &nobody, 0, false).is_err());
        reserved.begin(false);
        assert!(is_said(&mut reserved, 7, 1));
        reserved.begin(true);
        assert!(is_said(&mut reserved, 7, 0) && !is_said(&mut reserved, 7, 1));
        let before = says(&reserved, 7, 1);
        reserved.judge(Asked::Keys, &before, 0, true).unwrap();
        assert!(reserved.judge(Asked::Keys, &before, 0, false).is_err(), "it was asked before, and answered after");
        let now = says(&reserved, 7, 0);
        assert!(reserved.judge(Asked::Keys, &now, 0, true).is_err());
    }

    #[test]
    fn an_answer_may_be_older_than_a_change_that_was_seen_first_but_not_than_its_question() {
        let mut reserved = Reserved::new(1, 7);
        let (asked, old) = (reserved.moment(), says(&reserved, 7, 1));
        reserved.change(8);
        reserved.changed(false);
        reserved.judge(Asked::Keys, &old, asked, false).unwrap();
        let behind = reserved.moment();
        assert!(reserved.judge(Asked::Keys, &old, behind, false).is_err());
        assert!(is_said(&mut reserved, 8, 2));
    }

    #[test]
    fn a_change_that_may_have_been_made_is_made_or_not_for_good() {
        for made in [false, true] {
            let mut reserved = Reserved::new(1, 7);
            reserved.change(8);
            assert_eq!(reserved.key(), None);
            assert!(is_said(&mut reserved, 7, 1) && is_said(&mut reserved, 8, 2));
            reserved.begin(true);
            reserved.may_be_changed();
            assert!(!is_said(&mut reserved, 8, 1), "this server has not made it");
            let (key, other) = if made { (8, 7) } else { (7, 8) };
            assert!(is_said(&mut reserved, key, 0));
            assert!(!is_said(&mut reserved, other, 0));
            assert_eq!(reserved.key(), Some(key));
        }
    }

    #[test]
    fn a_change_is_made_by_the_server_that_says_so() {
        for (earlier, generation) in [(true, 0), (false, 1)] {
            let mut reserved = Reserved::new(8, 7);
            reserved.change(8);
            reserved.begin(true);
            reserved.changed(earlier);
            assert!(is_said(&mut reserved, 8, generation) && !is_said(&mut reserved, 7, 0));
        }
        let mut reserved = Reserved::new(8, 7);
        reserved.change(8);
        reserved.not_begun();
        assert!(is_said(&mut reserved, 7, 1) && !is_said(&mut reserved, 8, 2));
    }

    #[test]
    fn a_server_that_lives_on_may_have_made_a_change_before_the_connection_was_lost() {
        let mut reserved = Reserved::new(8, 7);
        reserved.change(8);
        reserved.begin(true);
        reserved.begin(false);
        assert!(is_said(&mut reserved, 8, 1) && is_said(&mut reserved, 8, 0) && is_said(&mut reserved, 7, 0));
        reserved.changed(true);
        assert!(is_said(&mut reserved, 8, 1), "by it, or by the server that was killed");
        assert!(!is_said(&mut reserved, 8, 0), "always the same");
        reserved.change(9);
        reserved.begin(false);
        reserved.changed(true);
        assert!(is_said(&mut reserved, 9, 2) && !is_said(&mut reserved, 8, 1));
    }

    #[test]
    fn nobody_holds_what_all_hold() {
        let state = State { key: 0x0102, generation: 3 };
        let held = |kind| Reserved::new(kind, 0x0102).says(Asked::Reservation, state);
        assert_eq!(held(5), [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 5, 0, 0]);
        assert_eq!(held(7), [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0]);
    }
}
