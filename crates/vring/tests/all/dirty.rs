//! What a ring marks in a dirty log, against a frontend that moves its guest: it copies the pages that are marked, and has all of
//! them once the ring rests.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::common::{Driver, INDIRECT, NEXT, WRITE, get, memory, put};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vring::{
    Chain, DirtyLog, LOG_PAGE_BYTES as PAGE, Layout, Mapping, Memory, RingError, RingLog, RingPosition, SplitRing,
};

/// Two regions of data that touch, one apart, and the ring: what the driver writes of it, and the used ring, which lies on two pages.
const LOW: u64 = 0x1000;
const BORDER: u64 = 0x6000;
const END: u64 = 0xa000;
const FAR: u64 = 0x8_0000;
const RING: u64 = 0x2_0000;
const SIZE: u16 = 128;
const USED: u64 = RING + 0x4000 - 512;
const TABLES: u64 = 0x3_0000;
const MAP: [(u64, u64); 5] =
    [(LOW, BORDER - LOW), (BORDER, END - BORDER), (RING, 0x5000), (TABLES, 0x8000), (FAR, 0x4000)];
/// Bytes of a log for all of it, and where it begins in its file.
const LOG_BYTES: usize = ((FAR + 0x4000) / PAGE / 8) as usize + 1;
const LOG_AT: usize = 3;

fn layout(event_idx: bool) -> Layout {
    Layout { size: SIZE, desc: RING, avail: RING + 0x1000, used: USED, event_idx, indirect: true }
}

/// The frontend's side of a log.
struct Log {
    file: OwnedFd,
    shown: Arc<DirtyLog>,
}

impl Log {
    fn new(bytes: usize) -> Log {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE).unwrap();
        let mapping = Mapping::shared(&file, 0, PAGE as usize).unwrap();
        Log { file, shown: Arc::new(DirtyLog::new(mapping, LOG_AT, bytes).unwrap()) }
    }

    fn ring(&self, used: Option<u64>) -> Option<RingLog> {
        Some(RingLog { log: Arc::clone(&self.shown), used })
    }

    /// Takes the pages that are marked, and looks at what is around the log.
    fn take(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; PAGE as usize];
        assert_eq!(rustix::io::pread(&self.file, &mut bytes, 0).unwrap(), bytes.len());
        assert_eq!(rustix::io::pwrite(&self.file, &vec![0; bytes.len()], 0).unwrap(), bytes.len());
        let marked = |at: &usize| bytes[at / 8] >> (at % 8) & 1 != 0;
        let all: BTreeSet<_> = (0..bytes.len() * 8).filter(marked).collect();
        assert!(all.iter().all(|at| (LOG_AT..LOG_AT + LOG_BYTES).contains(&(at / 8))), "marks outside the log");
        all.into_iter().map(|at| (at - LOG_AT * 8) as u64).collect()
    }
}

/// A request in flight, and what may be written for it.
struct InFlight {
    head: u16,
    chain: Chain,
}

#[derive(Clone, Debug)]
enum Step {
    /// A chain of these buffers, in a table or not.
    Offer {
        readable: usize,
        buffers: Vec<(u64, u32)>,
        table: bool,
    },
    /// Pops all.
    Pop,
    /// Writes some of a request's buffers, answers it or not yet.
    Write {
        which: Index,
        skip: u64,
        len: usize,
        value: u8,
        answered: bool,
    },
    Publish,
    EnableKicks,
    DisableKicks,
    /// The frontend takes the marks and copies the pages.
    Sync,
    /// Another log, which the frontend shows before it takes the marks of the old one.
    Replace,
    /// Logging ends; it begins again with a whole copy.
    Toggle,
}

fn buffer() -> impl Strategy<Value = (u64, u32)> {
    let places = prop_oneof![(LOW..END), (FAR..FAR + 0x4000)];
    (places, 0..9000_u32).prop_map(|(at, len)| {
        let end = if at < END { END } else { FAR + 0x4000 };
        (at, len.min((end - at) as u32))
    })
}

fn step() -> impl Strategy<Value = Step> {
    let offer = (0..3_usize, vec(buffer(), 1..5), any::<bool>());
    let write = (any::<Index>(), 0..10_000_u64, 0..9000_usize, any::<u8>(), any::<bool>());
    prop_oneof![
        4 => offer.prop_map(|(readable, buffers, table)| Step::Offer { readable, buffers, table }),
        4 => Just(Step::Pop),
        6 => write.prop_map(|(which, skip, len, value, answered)| Step::Write { which, skip, len, value, answered }),
        4 => Just(Step::Publish),
        1 => Just(Step::EnableKicks),
        1 => Just(Step::DisableKicks),
        3 => Just(Step::Sync),
        1 => Just(Step::Replace),
        1 => Just(Step::Toggle),
    ]
}

/// A guest that is moved while its ring runs.
struct Move {
    driver: Driver,
    ring: SplitRing,
    log: Option<Log>,
    copy: Vec<Vec<u8>>,
    /// Pages that the ring may have written since it began to log.
    allowed: BTreeSet<u64>,
    in_flight: Vec<InFlight>,
    next_head: u16,
}

impl Move {
    fn new(event_idx: bool) -> Move {
        Move::at(event_idx, 0)
    }

    /// One whose ring goes on at this index.
    fn at(event_idx: bool, start: u16) -> Move {
        let memory = memory(&MAP);
        let driver = Driver::new(Arc::clone(&memory), layout(event_idx), start);
        let ring = SplitRing::new(memory, layout(event_idx), RingPosition::split(start)).unwrap();
        let copy = MAP.iter().map(|&(_, len)| vec![0; len as usize]).collect();
        let used = (USED / PAGE..=(USED + 6 + 8 * u64::from(SIZE) - 1) / PAGE).collect();
        Move { driver, ring, log: None, copy, allowed: used, in_flight: Vec::new(), next_head: 0 }
    }

    fn memory(&self) -> &Memory {
        &self.driver.memory
    }

    /// What a processor writes the machine sees by itself.
    fn copy(&mut self, pages: impl IntoIterator<Item = u64>) {
        for page in pages {
            let at = page * PAGE;
            let region = MAP.iter().position(|&(start, len)| (start..start + len).contains(&at));
            let region = region.unwrap_or_else(|| panic!("page {page:#x} is marked, and is nobody's"));
            let bytes = get(self.memory(), at, PAGE as usize);
            let offset = (at - MAP[region].0) as usize;
            self.copy[region][offset..offset + PAGE as usize].copy_from_slice(&bytes);
        }
    }

    fn copy_all(&mut self) {
        for (start, len) in MAP {
            self.copy(start / PAGE..(start + len) / PAGE);
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Offer { readable, buffers, table } => self.offer(readable, &buffers, table),
            Step::Pop => self.pop(),
            Step::Write { which, skip, len, value, answered } => {
                if self.in_flight.is_empty() {
                    return;
                }
                let at = which.index(self.in_flight.len());
                let chain = &self.in_flight[at].chain;
                vring::copy::write_at(chain.writable_segments(), skip, &vec![value; len]);
                if answered {
                    let request = self.in_flight.swap_remove(at);
                    self.ring.push(request.head, 1);
                }
            }
            Step::Publish => {
                self.ring.publish();
            }
            Step::EnableKicks => {
                self.ring.enable_kicks();
            }
            Step::DisableKicks => self.ring.disable_kicks(),
            Step::Sync => self.sync(),
            Step::Replace => {
                if let Some(old) = self.log.take() {
                    let new = Log::new(LOG_BYTES);
                    assert!(!self.ring.set_log(new.ring(Some(USED))), "it has begun");
                    self.take(&old);
                    self.log = Some(new);
                }
            }
            Step::Toggle => self.toggle(),
        }
    }

    fn toggle(&mut self) {
        if self.log.take().is_some() {
            self.ring.set_log(None);
            return;
        }
        let log = Log::new(LOG_BYTES);
        assert!(self.ring.set_log(log.ring(Some(USED))), "it has begun before");
        for request in &self.in_flight {
            self.ring.note_in_flight(request.head);
        }
        self.log = Some(log);
        self.copy_all();
    }

    fn offer(&mut self, readable: usize, buffers: &[(u64, u32)], table: bool) {
        if usize::from(self.next_head) + buffers.len() > usize::from(SIZE) {
            return;
        }
        let head = self.next_head;
        let first = if table { 0 } else { head };
        for (index, &(at, len)) in (first..).zip(buffers) {
            let place = usize::from(index - first);
            let flags = if place < readable { 0 } else { WRITE } | if place + 1 < buffers.len() { NEXT } else { 0 };
            if table {
                let entry = TABLES + 128 * u64::from(head) + 16 * place as u64;
                put(self.memory(), entry, &crate::common::descriptor(at, len, flags, index + 1));
            } else {
                self.driver.set(index, at, len, flags, index + 1);
            }
            if place >= readable && len > 0 {
                self.allowed.extend(at / PAGE..=(at + u64::from(len) - 1) / PAGE);
            }
        }
        if table {
            self.driver.set(head, TABLES + 128 * u64::from(head), 16 * buffers.len() as u32, INDIRECT, 0);
        }
        self.driver.offer(head);
        self.next_head += buffers.len() as u16;
        self.copy([RING / PAGE, RING / PAGE + 1]);
        self.copy(TABLES / PAGE..TABLES / PAGE + 8);
    }

    fn pop(&mut self) {
        loop {
            let mut chain = Chain::default();
            match self.ring.pop(&mut chain).unwrap() {
                Some(head) => self.in_flight.push(InFlight { head, chain }),
                None => return,
            }
        }
    }

    fn take(&mut self, log: &Log) {
        let marked = log.take();
        let strange: Vec<_> = marked.difference(&self.allowed).collect();
        assert!(strange.is_empty(), "marks on pages that were not written: {strange:x?}");
        self.copy(marked);
    }

    fn sync(&mut self) {
        if let Some(log) = self.log.take() {
            self.take(&log);
            self.log = Some(log);
        }
    }

    /// The ring stops: everything is answered and shown. Then the last marks are taken.
    fn rest(mut self) {
        for request in std::mem::take(&mut self.in_flight) {
            vring::copy::write_at(request.chain.writable_segments(), 0, &[0x77; 5000]);
            self.ring.push(request.head, 0);
        }
        self.ring.publish();
        if self.log.is_none() {
            return;
        }
        self.sync();
        for (&(start, len), copy) in MAP.iter().zip(&self.copy) {
            let is = get(self.memory(), start, len as usize);
            let differs = is.iter().zip(copy).position(|(is, copied)| is != copied);
            assert_eq!(differs.map(|at| format!("{:#x} was written and not marked", start + at as u64)), None);
        }
    }
}

proptest! {
    #[test]
    fn all_that_was_written_is_marked_when_the_ring_rests(event_idx: bool, start: u16, steps in vec(step(), 1..80)) {
        let mut it = Move::at(event_idx, start);
        it.toggle();
        for step in steps {
            it.play(step);
        }
        it.rest();
    }
}

/// Offers one read of a page at `FAR`.
fn offer_one(driver: &mut Driver) {
    driver.set(0, FAR, 100, WRITE, 0);
    driver.offer(0);
}

fn answer_one(ring: &mut SplitRing) {
    let mut chain = Chain::default();
    let head = ring.pop(&mut chain).unwrap().unwrap();
    vring::copy::write_at(chain.writable_segments(), 0, &[1; 100]);
    ring.push(head, 100);
    ring.publish();
}

#[test]
fn a_request_is_marked_once_it_is_answered_and_not_before() {
    let Move { mut ring, mut driver, .. } = Move::new(false);
    let log = Log::new(LOG_BYTES);
    ring.set_log(log.ring(None));
    offer_one(&mut driver);
    let mut chain = Chain::default();
    let head = ring.pop(&mut chain).unwrap().unwrap();
    assert_eq!(log.take(), BTreeSet::new());
    ring.push(head, 1);
    ring.publish();
    assert_eq!(log.take(), BTreeSet::from([FAR / PAGE]));
}

#[test]
fn the_used_ring_is_logged_where_the_frontend_says_or_not_at_all() {
    let elsewhere = 0x40 * PAGE + 512;
    for (used, expected) in [(None, vec![]), (Some(elsewhere), vec![0x40]), (Some(USED), vec![USED / PAGE])] {
        let Move { mut ring, mut driver, .. } = Move::new(true);
        let log = Log::new(LOG_BYTES);
        ring.set_log(log.ring(used));
        let whole = log.take();
        assert!(expected.iter().all(|page| whole.contains(page)), "what was written before is told at once");
        offer_one(&mut driver);
        answer_one(&mut ring);
        let with_data: BTreeSet<_> = expected.iter().copied().chain([FAR / PAGE]).collect();
        assert_eq!(log.take(), with_data);
        ring.enable_kicks();
        // The event index is the last word of the used ring.
        let event = used.map(|used| (used + 4 + 8 * u64::from(SIZE)) / PAGE);
        assert_eq!(log.take(), event.into_iter().collect());
    }
}

#[test]
fn a_log_that_is_too_short_is_never_left() {
    let Move { mut ring, mut driver, .. } = Move::new(false);
    let log = Log::new(2);
    ring.set_log(log.ring(Some(u64::MAX - 100)));
    offer_one(&mut driver);
    answer_one(&mut ring);
    ring.disable_kicks();
    assert_eq!(log.take(), BTreeSet::new());
}

/// Its frontend would move a guest without what was written since.
#[test]
fn a_ring_whose_log_is_gone_breaks() {
    let Move { mut ring, mut driver, .. } = Move::new(false);
    let log = Log::new(LOG_BYTES);
    ring.set_log(log.ring(Some(USED)));
    ftruncate(&log.file, 0).unwrap();
    offer_one(&mut driver);
    answer_one(&mut ring);
    assert!(log.shown.is_gone() && ring.has_pending());
    assert_eq!(ring.pop(&mut Chain::default()), Err(RingError::LogGone));
    // Another one mends it, and so does none.
    let new = Log::new(LOG_BYTES);
    ring.set_log(new.ring(Some(USED)));
    offer_one(&mut driver);
    answer_one(&mut ring);
    assert!(new.take().contains(&(FAR / PAGE)));
    ring.set_log(log.ring(None));
    assert_eq!(ring.pop(&mut Chain::default()), Err(RingError::LogGone));
    ring.set_log(None);
    assert_eq!(ring.pop(&mut Chain::default()), Ok(None));
}

/// A driver must not, and gets no mark outside the log for it.
#[test]
fn a_chain_that_was_changed_in_flight_is_no_way_out() {
    let Move { mut ring, mut driver, .. } = Move::new(false);
    offer_one(&mut driver);
    let mut chain = Chain::default();
    ring.pop(&mut chain).unwrap().unwrap();
    let log = Log::new(LOG_BYTES);
    for (at, flags, next) in [(u64::MAX - 5, WRITE, 0), (FAR, WRITE | NEXT, 0), (0, INDIRECT, 0), (0, NEXT, 60_000)] {
        driver.set(0, at, 100, flags, next);
        ring.set_log(None);
        assert!(ring.set_log(log.ring(None)));
        for head in [0, 0, SIZE, u16::MAX] {
            ring.note_in_flight(head);
        }
    }
    ring.push(0, 0);
    ring.publish();
    log.take();
}
