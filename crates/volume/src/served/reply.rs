//! What completes a task of a volume, beside the storages below: parts of its token.

/// Parts from here on are the volume's. Those below are for the storages under it, which know nothing of one another: a task waits
/// for one of them at a time.
const OWN: u16 = 1 << 15;

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// What another thread has done for the task, with how it went.
    Job,
    /// The task holds the lead, and decides when the next commit begins.
    Lead,
    /// The end of a commit: the task's request is in the log, or an error.
    Commit,
    /// The deadline of a wait for company, or a turn of it.
    Late,
    /// A reply of the task's own that was not needed.
    Echo,
    /// There is room: slots, or the end of a pass of write-back. Or an error.
    Room,
}

impl Event {
    const ALL: [Event; 6] = [Event::Job, Event::Lead, Event::Commit, Event::Late, Event::Echo, Event::Room];

    pub(super) const fn part(self) -> u16 {
        OWN + self as u16
    }

    /// `None` for a completion of a storage below.
    pub(super) fn of(part: u16) -> Option<Event> {
        Event::ALL.get(usize::from(part.checked_sub(OWN)?)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tell_events_from_storages_below() {
        for event in Event::ALL {
            assert_eq!(Event::of(event.part()), Some(event));
        }
        assert_eq!([Event::of(0), Event::of(OWN - 1)], [None, None]);
    }
}
