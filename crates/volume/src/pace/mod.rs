//! How fast a pass of write-back goes, and when one is due though nobody asks.
//!
//! # What is known
//! A commit waits for whatever the device was given before it. Sixty-four writes under way are the fastest way to write back, and
//! make every commit that meets them some sixty writes slower; a few at a time, with rests between them, are hardly noticed. And
//! what is written back later is written less often: a block that a guest writes again and again costs one write a pass.
//!
//! # The schedule
//! What a pass must not do is end too late. It has a schedule, as the checkpoint of a database has one: when the memory or the log is
//! nearly full, or a certain time has gone by, all of it should be written. How much of that has been used up since the pass began
//! is the part that should be written by now. Ahead of it the pass is *gentle*, and the further ahead the longer it rests; behind
//! it, *steady*, without rests; far behind, or when anybody waits for what only the end of the pass gives, it takes *all* that the
//! device has, until it is well ahead again.
//!
//! The measure of what is written is pessimistic: blocks that became dirty behind the pass, which it will not come to, count as
//! work that is left. So a pass ends somewhat before its time.

mod age;

pub use age::Age;

use std::time::Duration;

/// Most operations under way at once.
pub const DEPTH_MAX: usize = 64;

/// Operations of a gentle pass between two rests, all under way at once.
const GENTLE_DEPTH: usize = 4;
/// Operations of a steady pass that are under way at once: a device is busy with them, and a commit does not wait long behind them.
const STEADY_DEPTH: usize = 8;
/// A steady pass looks at its schedule after so many operations.
const STEADY_STRIDE: usize = 32;
/// And one that takes all after so many.
const FULL_STRIDE: usize = 256;

/// The longest rest: with it a pass writes some thousand blocks a second, so that a small one is over soon.
const REST_MAX: Duration = Duration::from_millis(1);
/// The shortest.
const REST_MIN: Duration = Duration::from_micros(100);
/// A pass should be over after this time, however much room there is.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Parts of one, in which shares are counted.
const SCALE: u64 = 1 << 16;
/// Who is ahead by this share rests longest.
const RESTED_SHARE: u64 = SCALE / 16;
/// Who is behind by this share does not rest.
const STEADY_SHARE: u64 = SCALE / 64;
/// Who is behind by this share takes all...
const FULL_SHARE: u64 = SCALE / 4;
/// ...until it is ahead by this one.
const CALM_SHARE: u64 = SCALE / 8;

/// What is seen in the middle of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Time since the pass began.
    pub elapsed: Duration,
    /// Blocks that the pass has taken.
    pub taken: u64,
    /// Blocks that are dirty and not taken.
    pub dirty: u64,
    /// Slots of the cache.
    pub slots: u64,
    /// Slots in use.
    pub slots_used: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of the log in use.
    pub log_used_bytes: u64,
    /// Somebody waits for the pass, or for room that it makes.
    pub pressed: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// Operations under way at once, at most: 1 to [`DEPTH_MAX`].
    pub depth: usize,
    /// Operations to begin before the next stride is asked for; at least 1.
    pub operations: usize,
    /// How long to rest behind them, once all of them have ended; zero: not at all, and the next ones may begin beside them.
    pub rest: Duration,
}

impl Stride {
    /// Whether the pass takes all that the device has.
    pub fn is_full(&self) -> bool {
        self.depth == DEPTH_MAX
    }

    const FULL: Stride = Stride { depth: DEPTH_MAX, operations: FULL_STRIDE, rest: Duration::ZERO };
    const STEADY: Stride = Stride { depth: STEADY_DEPTH, operations: STEADY_STRIDE, rest: Duration::ZERO };
}

/// The pace of one pass.
#[derive(Clone, Debug)]
pub struct Pace {
    slots_used_before: u64,
    log_used_bytes_before: u64,
    /// It takes all until it is well ahead.
    full: bool,
    /// Somebody was waiting: it takes all until it is over.
    pressed: bool,
}

impl Pace {
    /// Of a pass that begins with what is seen.
    pub fn new(seen: &Seen) -> Pace {
        let Seen { slots_used, log_used_bytes, pressed, .. } = *seen;
        Pace { slots_used_before: slots_used, log_used_bytes_before: log_used_bytes, full: false, pressed }
    }

    /// What to do next.
    pub fn stride(&mut self, seen: &Seen) -> Stride {
        self.pressed |= seen.pressed;
        if self.pressed {
            return Stride::FULL;
        }
        let (due, done) = (self.due(seen), done(seen));
        let (behind, ahead) = (due.saturating_sub(done), done.saturating_sub(due));
        self.full = behind >= FULL_SHARE || self.full && ahead < CALM_SHARE;
        if self.full {
            return Stride::FULL;
        }
        if behind >= STEADY_SHARE {
            return Stride::STEADY;
        }
        let span = (REST_MAX - REST_MIN).as_nanos() as u64;
        let rest = REST_MIN + Duration::from_nanos(span * ahead.min(RESTED_SHARE) / RESTED_SHARE);
        Stride { depth: GENTLE_DEPTH, operations: GENTLE_DEPTH, rest }
    }

    /// The share that should be written by now.
    fn due(&self, seen: &Seen) -> u64 {
        let slots = used_up(seen.slots_used, self.slots_used_before, seen.slots);
        let log = used_up(seen.log_used_bytes, self.log_used_bytes_before, seen.log_bytes);
        let time = share(seen.elapsed.as_nanos(), TIME_MAX.as_nanos());
        slots.max(log).max(time)
    }
}

/// The share of a pass that is written.
fn done(seen: &Seen) -> u64 {
    share(u128::from(seen.taken), u128::from(seen.taken) + u128::from(seen.dirty))
}

/// The share that is used up of what there was between `before` and seven eighths of `size`: the last eighth is for what comes
/// while the pass ends.
fn used_up(used: u64, before: u64, size: u64) -> u64 {
    let room = (size - size / 8).saturating_sub(before);
    share(u128::from(used.saturating_sub(before)), u128::from(room))
}

/// `part` of `whole`, in parts of [`SCALE`], at most that; all of nothing.
fn share(part: u128, whole: u128) -> u64 {
    if part >= whole {
        return SCALE;
    }
    // Less than SCALE, for part is less than whole.
    u64::try_from(part.saturating_mul(u128::from(SCALE)) / whole).unwrap_or(SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Half of 16384 slots are dirty, and nothing presses.
    fn begun() -> Seen {
        Seen { dirty: 8192, slots: 16384, slots_used: 8192, log_bytes: 256 * MIB, ..Seen::default() }
    }

    #[test]
    fn a_pass_that_is_ahead_rests_and_one_behind_does_not() {
        let begun = begun();
        let mut pace = Pace::new(&begun);
        let first = pace.stride(&begun);
        assert_eq!((first.depth, first.rest), (GENTLE_DEPTH, REST_MIN));
        let ahead = Seen { taken: 4096, dirty: 4096, slots_used: 8192 + 600, ..begun };
        assert_eq!(pace.stride(&ahead).rest, REST_MAX);
        let behind = Seen { taken: 819, dirty: 7373, slots_used: 8192 + 1229, ..begun };
        assert_eq!(pace.stride(&behind), Stride::STEADY);
        let by_log = Seen { log_used_bytes: 80 * MIB, ..behind };
        assert_eq!(pace.stride(&by_log), Stride::FULL, "of two the one that is used up faster counts");
    }

    #[test]
    fn who_was_far_behind_takes_all_until_it_is_well_ahead() {
        let begun = begun();
        let mut pace = Pace::new(&begun);
        let of = |taken: u64, used_up: u64| Seen {
            taken,
            dirty: 10_000 - taken,
            slots_used: 8192 + 6144 * used_up / 100,
            ..begun
        };
        assert!(!pace.stride(&of(2000, 40)).is_full());
        assert!(pace.stride(&of(2000, 46)).is_full());
        assert!(pace.stride(&of(4600, 46)).is_full());
        assert!(pace.stride(&of(5500, 46)).is_full());
        assert!(!pace.stride(&of(6000, 46)).is_full());
        assert!(!pace.stride(&of(5500, 46)).is_full());
    }

    #[test]
    fn whoever_waits_is_not_kept_waiting_by_rests() {
        let begun = begun();
        let mut pace = Pace::new(&begun);
        assert!(!pace.stride(&begun).is_full());
        assert!(pace.stride(&Seen { pressed: true, ..begun }).is_full());
        assert!(pace.stride(&Seen { taken: 8192, dirty: 0, ..begun }).is_full(), "until the pass is over");
        assert!(Pace::new(&Seen { pressed: true, ..begun }).stride(&begun).is_full());
    }

    #[test]
    fn a_pass_that_begins_without_room_takes_all() {
        let begun = Seen { slots_used: 15_000, ..begun() };
        assert!(Pace::new(&begun).stride(&begun).is_full());
    }

    /// A pass on a device that does one operation after the other, while blocks are written all over the disk.
    struct Model {
        seen: Seen,
        /// Dirty blocks that the pass will not come to.
        behind: f64,
        full_strides: u32,
    }

    impl Model {
        /// `operation` is what one takes; `writes_per_s` blocks are dirtied meanwhile, each with a commit of two blocks.
        fn run(slots: u64, log_bytes: u64, operation: Duration, writes_per_s: f64) -> Model {
            let half = slots / 2;
            let seen = Seen { dirty: half, slots, slots_used: half, log_bytes, ..Seen::default() };
            let mut model = Model { seen, behind: 0.0, full_strides: 0 };
            let mut pace = Pace::new(&seen);
            let mut fresh = 0.0;
            while model.seen.dirty as f64 > model.behind {
                let stride = pace.stride(&model.seen);
                model.full_strides += u32::from(stride.is_full());
                let left = model.seen.dirty - model.behind as u64;
                let taken = left.min(stride.operations as u64);
                let took = operation * taken as u32 + stride.rest;
                fresh += writes_per_s * took.as_secs_f64();
                let written = fresh as u64;
                fresh -= written as f64;
                let seen = &mut model.seen;
                // The part of the disk that the pass has behind it, about.
                let passed = seen.taken as f64 / (seen.taken + left) as f64;
                model.behind += written as f64 * passed;
                seen.elapsed += took;
                seen.taken += taken;
                seen.dirty = seen.dirty - taken + written;
                seen.slots_used += written;
                seen.log_used_bytes += written * 8192;
                assert!(seen.elapsed < Duration::from_secs(600), "a pass that never ends");
            }
            model
        }
    }

    proptest! {
        /// What a device can do gently is done before there is no room, and without all of its operations.
        #[test]
        fn a_pass_is_over_before_the_room_is_used_up(
            slots in 4096u64..200_000, log_mib in 1u64..512, operation_us in 5u64..2000, load in 0.0f64..0.3,
        ) {
            let operation = Duration::from_micros(operation_us);
            // As much as fits beside the pass, by the memory and by the log.
            let by_log = (log_mib * MIB) as f64 / (slots * 8192) as f64;
            let writes_per_s = load / operation.as_secs_f64() * by_log.min(1.0);
            let model = Model::run(slots, log_mib * MIB, operation, writes_per_s);
            let Seen { slots_used, log_used_bytes, elapsed, taken, .. } = model.seen;
            prop_assert!(slots_used < slots && log_used_bytes < log_mib * MIB, "{:?}", model.seen);
            let least = operation * u32::try_from(taken).unwrap();
            if least < TIME_MAX / 2 {
                prop_assert_eq!(model.full_strides, 0, "{:?}", model.seen);
                prop_assert!(elapsed <= TIME_MAX + TIME_MAX / 8, "{:?}", model.seen);
            }
        }

        #[test]
        fn strides_are_within_their_bounds(
            before in any::<(u64, u64)>(),
            steps in proptest::collection::vec(any::<(u64, u64, u64, u64, u64, u64, u32, bool)>(), 1..20),
        ) {
            let mut pace = Pace::new(&Seen { slots_used: before.0, log_used_bytes: before.1, ..Seen::default() });
            let mut pressed = false;
            for (taken, dirty, slots, slots_used, log_bytes, log_used_bytes, ms, press) in steps {
                pressed |= press;
                let elapsed = Duration::from_millis(u64::from(ms));
                let seen =
                    Seen { elapsed, taken, dirty, slots, slots_used, log_bytes, log_used_bytes, pressed: press };
                let stride = pace.stride(&seen);
                prop_assert!((1..=DEPTH_MAX).contains(&stride.depth) && stride.operations >= 1);
                prop_assert!(stride.rest.is_zero() || (REST_MIN..=REST_MAX).contains(&stride.rest));
                prop_assert!(stride.rest.is_zero() || stride.operations <= stride.depth);
                prop_assert!(!pressed || stride == Stride::FULL);
            }
        }
    }
}
