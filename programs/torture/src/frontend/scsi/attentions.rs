//! What a unit has to say first: once on each connection that it is power on or a reset, and nothing else, ever.
//!
//! A server that comes takes its units up as after a power cycle, and one that another connection is made to resets them: the first
//! command that it takes is told so, and no other one. A live upgrade is none of this, and says nothing. Who tells of a thing that has
//! not happened, or tells it twice, makes guests look at everything again, and clusters reserve again; who does not tell lets them go
//! on with what they have lost.

use anyhow::{Result, ensure};

use super::answer::Sense;

/// Sense key of unit attentions.
const UNIT_ATTENTION: u8 = 6;
/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: reservations may be left.
const RESET: Sense = Sense { key: UNIT_ATTENTION, code: (0x29, 0x00) };
/// POWER ON OCCURRED: nothing is left.
const POWER_ON: Sense = Sense { key: UNIT_ATTENTION, code: (0x29, 0x01) };

/// What one unit owes, and has told.
#[derive(Debug)]
pub(super) struct Attentions {
    unit: &'static str,
    /// What this connection hears first.
    owed: Sense,
    told: bool,
    /// A command that must have been told, or come behind one that was, has been answered on this connection.
    answered: bool,
    /// What earlier connections owed and had not told when they ended: it may have been published, and not seen.
    earlier: Vec<Sense>,
}

impl Attentions {
    pub(super) fn new(unit: &'static str) -> Self {
        // No connection yet.
        Self { unit, owed: POWER_ON, told: true, answered: false, earlier: Vec::new() }
    }

    /// Whether it is a unit attention.
    pub(super) fn is_one(sense: Sense) -> bool {
        sense.key == UNIT_ATTENTION
    }

    /// A connection begins, with somebody registered or nobody.
    pub(super) fn begin(&mut self, registered: bool) {
        if !self.told {
            self.earlier.push(self.owed);
        }
        (self.told, self.answered) = (false, false);
        self.owed = if registered { RESET } else { POWER_ON };
    }

    /// All that was published on earlier connections has been seen.
    pub(super) fn earlier_is_over(&mut self) {
        self.earlier.clear();
    }

    /// It has told of this.
    pub(super) fn tell(&mut self, sense: Sense, earlier: bool) -> Result<()> {
        let unit = self.unit;
        if earlier {
            let at = self.earlier.iter().position(|owed| *owed == sense);
            ensure!(at.is_some(), "{unit} told {sense:?} before it was lost, and owed {:?}", self.earlier);
            at.map(|at| self.earlier.swap_remove(at));
            return Ok(());
        }
        ensure!(!self.told, "{unit} tells {sense:?}, and nothing has happened since it told {:?}", self.owed);
        ensure!(sense == self.owed, "{unit} tells {sense:?}, and owes {:?}", self.owed);
        (self.told, self.answered) = (true, true);
        Ok(())
    }

    /// It has answered a command that is told first.
    pub(super) fn answered(&mut self, earlier: bool) {
        self.answered |= !earlier;
    }

    /// All commands have come back.
    pub(super) fn check_settled(&self) -> Result<()> {
        let missing = self.answered && !self.told;
        ensure!(
            !missing,
            "{} has answered commands on this connection, and told none of them {:?}",
            self.unit,
            self.owed
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(registered: bool) -> Attentions {
        let mut unit = Attentions::new("the unit");
        unit.begin(registered);
        unit
    }

    #[test]
    fn each_connection_is_told_once_what_it_is() {
        let mut unit = connected(false);
        assert!(unit.tell(RESET, false).is_err(), "nobody is registered");
        unit.tell(POWER_ON, false).unwrap();
        assert!(unit.tell(POWER_ON, false).is_err(), "twice");
        unit.begin(true);
        assert!(unit.tell(POWER_ON, false).is_err(), "somebody is registered");
        unit.tell(RESET, false).unwrap();
        unit.check_settled().unwrap();
    }

    #[test]
    fn what_is_not_told_is_missed() {
        let mut unit = connected(false);
        unit.check_settled().unwrap();
        unit.answered(true);
        unit.check_settled().unwrap();
        unit.answered(false);
        assert!(unit.check_settled().is_err());
    }

    #[test]
    fn what_was_published_before_may_be_seen_late_once() {
        let mut unit = connected(false);
        unit.begin(true);
        assert!(unit.tell(RESET, true).is_err(), "the earlier connection owed another one");
        unit.tell(POWER_ON, true).unwrap();
        assert!(unit.tell(POWER_ON, true).is_err(), "twice");
        unit.begin(true);
        unit.earlier_is_over();
        assert!(unit.tell(RESET, true).is_err(), "all of that has been seen");
    }
}
