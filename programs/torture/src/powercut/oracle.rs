//! What a disk may hold after a power cut.
//!
//! A sector holds what some operation left there. One operation is *behind* another if it was asked for after the other was
//! answered; operations that were in flight together have no order. An operation is *sure* once it was answered and was
//! durable, or once a flush was answered that was asked for after it was answered. A sector may hold what any operation left
//! that was asked for, unless a sure one is behind it. Whoever discards a sector does not care: until something sure is behind
//! that, it may hold anything that was ever written to it.
//!
//! Nothing more is promised: a write that is not sure may be there in part.

use std::collections::HashMap;

use super::stamp::Content;
use super::trace::{Kind, Known, NEVER, Operation, Time};

/// The operation that stands for a new disk: zeroes everywhere.
pub(super) const NEW: u32 = 0;

/// What an operation may have left in a sector.
#[derive(Clone, Copy, Debug)]
struct Version {
    operation: u32,
    asked: Time,
    answered: Time,
}

/// A read in flight.
struct Look {
    /// Operations that it may show, sector by sector.
    visible: Vec<Vec<u32>>,
    /// Later ones may show too.
    operations: u32,
}

/// The permitted contents of a disk between two events.
pub(super) struct Oracle {
    sectors: Vec<Vec<Version>>,
    /// When each operation was asked for.
    asked: Vec<Time>,
    /// Answered and not sure: the operation and when.
    unsure: Vec<(u32, Time)>,
    looks: HashMap<u32, Look>,
    disk_bytes: (u64, u64),
    /// Whether every change is durable.
    always: bool,
}

impl Oracle {
    /// A disk of which this is `known`, after `operations` operations.
    pub(super) fn new(known: &Known, sectors_max: usize, operations: u32, always: bool) -> Self {
        let version = |operation| Version { operation, asked: 0, answered: 0 };
        let mut sectors: Vec<Vec<_>> =
            known.sectors.iter().map(|list| list.iter().copied().map(version).collect()).collect();
        sectors.resize(sectors_max.max(sectors.len()), vec![version(NEW)]);
        let asked = vec![0; operations as usize];
        let disk_bytes = known.disk_bytes;
        Self { sectors, asked, unsure: Vec::new(), looks: HashMap::new(), disk_bytes, always }
    }

    /// What is known after a cut, which ends whatever was in flight.
    pub(super) fn known(&self) -> Known {
        let list = |versions: &Vec<Version>| versions.iter().map(|version| version.operation).collect();
        Known { sectors: self.sectors.iter().map(list).collect(), disk_bytes: self.disk_bytes }
    }

    /// How many operations have been asked for.
    pub(super) fn operations(&self) -> u32 {
        self.asked.len() as u32
    }

    /// Least and most bytes that the disk may have.
    pub(super) fn disk_bytes(&self) -> (u64, u64) {
        self.disk_bytes
    }

    /// The disk is about to grow.
    pub(super) fn growing(&mut self, disk_bytes: u64) {
        self.disk_bytes.1 = disk_bytes;
    }

    /// The disk has grown.
    pub(super) fn grown(&mut self, disk_bytes: u64) {
        self.disk_bytes = (disk_bytes, disk_bytes);
    }

    /// The load is about to ask.
    pub(super) fn asked(&mut self, number: u32, operation: &Operation, now: Time) {
        // Numbers are given in the order of asking.
        self.asked.push(now);
        if operation.changes() {
            for sector in operation.sectors() {
                self.sectors[sector as usize].push(Version { operation: number, asked: now, answered: NEVER });
            }
        }
        if operation.kind == Kind::Read {
            let visible = operation.sectors().map(|sector| visible(&self.sectors[sector as usize])).collect();
            self.looks.insert(number, Look { visible, operations: number });
        }
    }

    /// The load was answered.
    pub(super) fn answered(&mut self, number: u32, operations: &[Operation], now: Time) {
        let operation = &operations[number as usize];
        if operation.changes() {
            for sector in operation.sectors() {
                for version in &mut self.sectors[sector as usize] {
                    if version.operation == number {
                        version.answered = now;
                    }
                }
            }
            self.unsure.push((number, now));
            if operation.durable || self.always {
                self.make_sure(operations, |(other, _)| other == number);
            }
        }
        if operation.kind == Kind::Flush {
            let asked = self.asked[number as usize];
            self.make_sure(operations, |(_, answered)| answered < asked);
        }
    }

    /// The volume was closed: all that was answered is sure.
    pub(super) fn closed(&mut self, operations: &[Operation]) {
        self.make_sure(operations, |_| true);
    }

    fn make_sure(&mut self, operations: &[Operation], which: impl Fn((u32, Time)) -> bool) {
        let sure: Vec<_> = self.unsure.extract_if(.., |entry| which(*entry)).collect();
        for (number, _) in sure {
            let asked = self.asked[number as usize];
            for sector in operations[number as usize].sectors() {
                self.sectors[sector as usize].retain(|version| version.answered >= asked);
            }
        }
    }

    /// The volume was opened, and its disk holds this for good.
    pub(super) fn fix(&mut self, contents: &[Content], disk_bytes: u64, now: Time) {
        self.disk_bytes = (disk_bytes, disk_bytes);
        for (versions, content) in self.sectors.iter_mut().zip(contents) {
            let operation = match content {
                Content::Of(operation) => *operation,
                Content::Zeroes | Content::Foreign => NEW,
            };
            *versions = vec![Version { operation, asked: now, answered: now }];
        }
    }

    /// Whether a sector may hold this after a cut.
    pub(super) fn permits(&self, sector: u32, content: Content, operations: &[Operation]) -> bool {
        let versions = self.sectors[sector as usize].iter().map(|version| version.operation);
        allows(versions, content, sector, operations, self.asked.len() as u32)
    }

    /// Whether a read may have found this, `index` sectors behind its first one.
    pub(super) fn permits_read(&self, number: u32, index: u32, content: Content, operations: &[Operation]) -> bool {
        let Some(look) = self.looks.get(&number) else { return false };
        let sector = operations[number as usize].first + index;
        // What was asked for meanwhile may or may not be seen.
        let later = (look.operations..self.asked.len() as u32).filter(|later| {
            let operation = &operations[*later as usize];
            operation.changes() && operation.sectors().contains(&sector)
        });
        let earlier = look.visible[index as usize].iter().copied();
        allows(earlier.chain(later), content, sector, operations, self.asked.len() as u32)
    }

    /// A read is over.
    pub(super) fn looked(&mut self, number: u32) {
        self.looks.remove(&number);
    }

    /// Says what a sector may hold.
    pub(super) fn describe(&self, sector: u32, operations: &[Operation]) -> String {
        let mut text = String::new();
        for version in &self.sectors[sector as usize] {
            if !text.is_empty() {
                text.push_str(" or ");
            }
            let Version { operation, asked, answered } = *version;
            if operation == NEW {
                text.push_str("zeroes as at first");
                continue;
            }
            text.push_str(&format!("operation {operation} ({}", operations[operation as usize]));
            match (asked, answered) {
                (0, _) => text.push_str("; before the last cut)"),
                (asked, NEVER) => text.push_str(&format!("; asked at {asked}, not answered)")),
                (asked, answered) if asked == answered => text.push_str("; found when the volume was opened)"),
                (asked, answered) => text.push_str(&format!("; asked at {asked}, answered at {answered})")),
            }
        }
        text
    }
}

/// The operations that a read may show which is asked for now: those that no answered one is behind.
fn visible(versions: &[Version]) -> Vec<u32> {
    // What is answered before this moment has a time; what is in flight has none.
    let newest = versions.iter().filter(|version| version.answered != NEVER).map(|version| version.asked).max();
    let hidden = |version: &Version| newest.is_some_and(|asked| version.answered < asked);
    versions.iter().filter(|version| !hidden(version)).map(|version| version.operation).collect()
}

/// Whether one of `versions` has left `content`. Of `operations`, the first `asked` have been asked for.
fn allows(
    mut versions: impl Iterator<Item = u32> + Clone,
    content: Content,
    sector: u32,
    operations: &[Operation],
    asked: u32,
) -> bool {
    let kind = |operation: u32| operations.get(operation as usize).map(|operation| operation.kind);
    let of_kind = |wanted| versions.clone().any(|operation| kind(operation) == Some(wanted));
    match content {
        Content::Foreign => false,
        Content::Zeroes => of_kind(Kind::WriteZeroes) || of_kind(Kind::Discard),
        Content::Of(found) => {
            let written = operations.get(found as usize).is_some_and(|operation| {
                found < asked && operation.kind == Kind::Write && operation.sectors().contains(&sector)
            });
            written && (of_kind(Kind::Discard) || versions.any(|operation| operation == found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: u32 = 3;

    /// An oracle of one sector's story, told step by step.
    struct Story {
        oracle: Oracle,
        operations: Vec<Operation>,
        now: Time,
    }

    impl Story {
        fn new() -> Self {
            let known = Known { sectors: vec![vec![NEW]; 8], disk_bytes: (4096, 4096) };
            let new = Operation { kind: Kind::WriteZeroes, first: 0, count: 8, durable: true, queue: 0 };
            Self { oracle: Oracle::new(&known, 8, 1, false), operations: vec![new], now: 0 }
        }

        fn ask(&mut self, kind: Kind, durable: bool) -> u32 {
            self.now += 1;
            let operation = Operation { kind, first: SECTOR, count: 1, durable, queue: 0 };
            self.operations.push(operation);
            let number = self.operations.len() as u32 - 1;
            self.oracle.asked(number, &operation, self.now);
            number
        }

        fn answer(&mut self, number: u32) {
            self.now += 1;
            self.oracle.answered(number, &self.operations, self.now);
        }

        fn done(&mut self, kind: Kind) -> u32 {
            let number = self.ask(kind, false);
            self.answer(number);
            number
        }

        fn permitted(&self) -> Vec<Content> {
            let all = (1..self.operations.len() as u32).map(Content::Of).chain([Content::Zeroes, Content::Foreign]);
            all.filter(|content| self.oracle.permits(SECTOR, *content, &self.operations)).collect()
        }
    }

    #[test]
    fn a_write_is_sure_behind_a_flush_that_began_after_its_answer() {
        let mut story = Story::new();
        let first = story.done(Kind::Write);
        let early = story.ask(Kind::Flush, false);
        let second = story.done(Kind::Write);
        assert_eq!(story.permitted(), [Content::Of(first), Content::Of(second), Content::Zeroes]);
        story.answer(early);
        assert_eq!(story.permitted(), [Content::Of(first), Content::Of(second)], "the first write is sure");
        story.done(Kind::Flush);
        assert_eq!(story.permitted(), [Content::Of(second)]);
    }

    #[test]
    fn a_durable_write_is_sure_with_its_answer() {
        let mut story = Story::new();
        let durable = story.ask(Kind::Write, true);
        assert_eq!(story.permitted(), [Content::Of(durable), Content::Zeroes]);
        story.answer(durable);
        assert_eq!(story.permitted(), [Content::Of(durable)]);
        let zeroes = story.ask(Kind::WriteZeroes, true);
        story.answer(zeroes);
        assert_eq!(story.permitted(), [Content::Zeroes]);
    }

    #[test]
    fn what_was_in_flight_together_has_no_order() {
        let mut story = Story::new();
        let (one, other) = (story.ask(Kind::Write, false), story.ask(Kind::Write, false));
        story.answer(other);
        story.answer(one);
        story.done(Kind::Flush);
        assert_eq!(story.permitted(), [Content::Of(one), Content::Of(other)]);
    }

    #[test]
    fn a_discard_lets_old_contents_come_back_until_something_sure_is_behind_it() {
        let mut story = Story::new();
        let old = story.done(Kind::Write);
        let newer = story.done(Kind::Write);
        story.done(Kind::Flush);
        story.done(Kind::Discard);
        assert_eq!(story.permitted(), [Content::Of(old), Content::Of(newer), Content::Zeroes]);
        let last = story.done(Kind::Write);
        story.done(Kind::Flush);
        assert_eq!(story.permitted(), [Content::Of(last)]);
    }

    #[test]
    fn a_read_shows_what_was_answered_before_it_or_anything_later() {
        let mut story = Story::new();
        let old = story.done(Kind::Write);
        let seen = story.done(Kind::Write);
        let read = story.ask(Kind::Read, false);
        let meanwhile = story.ask(Kind::Write, false);
        let may = |number| story.oracle.permits_read(read, 0, Content::Of(number), &story.operations);
        assert_eq!((may(old), may(seen), may(meanwhile)), (false, true, true));
        assert!(!story.oracle.permits_read(read, 0, Content::Zeroes, &story.operations));
    }

    #[test]
    fn a_cut_ends_what_is_in_flight() {
        let mut story = Story::new();
        let lost = story.ask(Kind::Write, false);
        let known = story.oracle.known();
        assert_eq!(known.sectors[SECTOR as usize], [NEW, lost]);
        let mut oracle = Oracle::new(&known, 8, story.operations.len() as u32, false);
        oracle.fix(&[Content::Zeroes; 8], 4096, 1);
        assert!(!oracle.permits(SECTOR, Content::Of(lost), &story.operations));
        assert!(oracle.permits(SECTOR, Content::Zeroes, &story.operations));
    }
}
