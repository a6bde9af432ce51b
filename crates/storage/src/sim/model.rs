//! The device: who is busy until when, where its heads are, and what comes next. Pure: time is an argument.

use super::SimOptions;
use super::latency::Latency;
use super::random::Random;
use crate::Operation;
use values::{ByteSize, Span};

/// See the module's description of the model.
pub(super) struct Model {
    random: Random,
    channels: Vec<Channel>,
    read: Latency,
    write: Latency,
    flush_ns: u64,
    seek_ns: u64,
    /// Nanoseconds a byte, times 2^20.
    transfer_scaled: u64,
    read_error_rate: f64,
    write_error_rate: f64,
    flush_error_rate: f64,
    /// Operations yet to arrive until one panics, itself included; 0 = none does.
    panic_in: u64,
}

/// What serves one operation after the other.
#[derive(Clone, Copy, Default)]
struct Channel {
    /// When it is free, in nanoseconds on the clock of the workers.
    free_at_ns: u64,
    /// The byte behind the last one that it read or wrote.
    head: u64,
}

/// What the model says about one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// When it ends, in nanoseconds on the clock of the workers.
    pub(super) end_ns: u64,
    /// It fails.
    pub(super) doomed: bool,
    /// It panics, before anything else.
    pub(super) panics: bool,
}

impl Model {
    pub(super) fn new(options: &SimOptions) -> Model {
        let nanos = |time: Span| time.0.as_nanos() as u64;
        let rate = |own: Option<f64>| own.unwrap_or(options.error_rate);
        Model {
            random: Random::new(options.seed),
            channels: vec![Channel::default(); options.channels.into()],
            read: Latency::new(nanos(options.read_latency), options.distribution, options.latency_spread),
            write: Latency::new(nanos(options.write_latency), options.distribution, options.latency_spread),
            flush_ns: nanos(options.flush_cost),
            seek_ns: nanos(options.seek),
            transfer_scaled: match options.bytes_per_second {
                None | Some(ByteSize(0)) => 0,
                Some(speed) => (1_000_000_000 << 20) / speed.0,
            },
            read_error_rate: rate(options.read_error_rate),
            write_error_rate: rate(options.write_error_rate),
            flush_error_rate: rate(options.flush_error_rate),
            panic_in: options.panic_after,
        }
    }

    /// Starts an operation with `bytes` in its buffers at `now_ns`. Every operation draws twice, whatever its kind, so that the
    /// fate of one does not depend on the kinds of those before it.
    pub(super) fn start(&mut self, operation: Operation, bytes: u64, now_ns: u64) -> Fate {
        let (luck, shape) = (self.random.unit(), self.random.fork());
        let (latency_ns, rate) = match operation {
            Operation::Read { .. } => (self.read.draw(shape), self.read_error_rate),
            Operation::Flush => (self.flush_ns, self.flush_error_rate),
            Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                (self.write.draw(shape), self.write_error_rate)
            }
        };
        let mut busy_ns = latency_ns;
        if let Operation::Write { durable: true, .. } | Operation::WriteZeroes { durable: true, .. } = operation {
            busy_ns = busy_ns.saturating_add(self.flush_ns);
        }
        let place = match operation {
            Operation::Read { offset } | Operation::Write { offset, .. } => Some(offset),
            Operation::Flush | Operation::Discard { .. } | Operation::WriteZeroes { .. } => None,
        };
        if place.is_some() {
            busy_ns = busy_ns.saturating_add(self.transfer_ns(bytes));
        }
        let chosen = self.choose(place, now_ns);
        let mut end_ns = now_ns.saturating_add(busy_ns);
        if let Some(channel) = self.channels.get_mut(chosen) {
            if let Some(offset) = place {
                if channel.head != offset {
                    busy_ns = busy_ns.saturating_add(self.seek_ns);
                }
                channel.head = offset.saturating_add(bytes);
            }
            end_ns = now_ns.max(channel.free_at_ns).saturating_add(busy_ns);
            channel.free_at_ns = end_ns;
        }
        let panics = self.panic_in == 1;
        self.panic_in = self.panic_in.saturating_sub(1);
        Fate { end_ns, doomed: luck < rate, panics }
    }

    fn transfer_ns(&self, bytes: u64) -> u64 {
        let transfer_ns = (u128::from(bytes) * u128::from(self.transfer_scaled)) >> 20;
        u64::try_from(transfer_ns).unwrap_or(u64::MAX)
    }

    /// The channel that can begin first; of several, one that need not seek; of several, the one that has rested longest, whose
    /// place is least likely to be wanted again.
    fn choose(&self, place: Option<u64>, now_ns: u64) -> usize {
        let place = place.filter(|_| self.seek_ns > 0);
        let (mut chosen, mut least) = (0, (u64::MAX, true, u64::MAX));
        for (index, channel) in self.channels.iter().enumerate() {
            let seeks = place.is_some_and(|offset| channel.head != offset);
            // Good enough, and a device of many channels has one like this among its first.
            if channel.free_at_ns <= now_ns && !seeks {
                return index;
            }
            let rank = (channel.free_at_ns.max(now_ns), seeks, channel.free_at_ns);
            if rank < least {
                (chosen, least) = (index, rank);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::super::Distribution;
    use super::*;

    const READ: Operation = Operation::Read { offset: 0 };
    const WRITE: Operation = Operation::Write { offset: 0, durable: false };

    fn nanos(nanos: u64) -> Span {
        Span(std::time::Duration::from_nanos(nanos))
    }

    #[test]
    fn channels_serve_in_parallel_and_queue_behind() {
        let mut model = Model::new(&SimOptions { channels: 2, read_latency: nanos(100), ..SimOptions::default() });
        let ends: Vec<_> = (0..5).map(|_| model.start(READ, 0, 1000).end_ns).collect();
        assert_eq!(ends, [1100, 1100, 1200, 1200, 1300]);
        assert_eq!(model.start(READ, 0, 5000).end_ns, 5100, "an idle device starts at once");
    }

    #[test]
    fn no_more_operations_than_channels_are_served_at_once() {
        let options = SimOptions {
            channels: 4,
            read_latency: nanos(1000),
            distribution: Distribution::Exponential,
            seek: nanos(300),
            ..SimOptions::default()
        };
        let mut model = Model::new(&options);
        let mut ends: Vec<u64> = Vec::new();
        for number in 0..1000 {
            let now_ns = number * 10;
            let read = Operation::Read { offset: number % 7 * 512 };
            let end_ns = model.start(read, 512, now_ns).end_ns;
            // It began when no more than three of those before it were still being served.
            ends.sort_unstable();
            let free_ns = ends.len().checked_sub(4).map_or(0, |fourth_last| ends[fourth_last]);
            assert!(end_ns >= free_ns.max(now_ns));
            ends.push(end_ns);
        }
        assert!(ends.iter().max().is_some_and(|last| *last > 1000 * 1000 / 4), "1000 operations on 4 channels");
    }

    #[test]
    fn bytes_and_flushes_cost_their_time() {
        let options = SimOptions {
            channels: 1,
            write_latency: nanos(10),
            flush_cost: nanos(70),
            bytes_per_second: Some(ByteSize(1_000_000_000)),
            ..SimOptions::default()
        };
        let mut model = Model::new(&options);
        let mut costs = |operation, bytes| model.start(operation, bytes, 0).end_ns;
        assert_eq!(costs(WRITE, 4096), 10 + 4096);
        assert_eq!(costs(Operation::Flush, 0), 10 + 4096 + 70);
        assert_eq!(costs(Operation::Discard { offset: 0, len: 512 }, 0), 10 + 4096 + 70 + 10);
        let before = 10 + 4096 + 70 + 10;
        assert_eq!(costs(Operation::Write { offset: 0, durable: true }, 0), before + 10 + 70);
        let zeroes = Operation::WriteZeroes { offset: 0, len: 512, unmap: false, durable: true };
        assert_eq!(costs(zeroes, 0), before + 2 * (10 + 70));
    }

    #[test]
    fn flushes_share_nothing() {
        let flushes = |channels| {
            let mut model = Model::new(&SimOptions { channels, flush_cost: nanos(100), ..SimOptions::default() });
            (0..3).map(|_| model.start(Operation::Flush, 0, 0).end_ns).collect::<Vec<_>>()
        };
        assert_eq!(flushes(1), [100, 200, 300]);
        assert_eq!(flushes(8), [100, 100, 100]);
    }

    #[test]
    fn heads_seek_unless_they_are_there() {
        let options = SimOptions {
            channels: 1,
            read_latency: nanos(10),
            write_latency: nanos(10),
            seek: nanos(1000),
            ..SimOptions::default()
        };
        let mut model = Model::new(&options);
        let mut now_ns = 0;
        let mut costs = |operation, bytes| {
            let end_ns = model.start(operation, bytes, now_ns).end_ns;
            let cost_ns = end_ns - now_ns;
            now_ns = end_ns;
            cost_ns
        };
        assert_eq!(costs(Operation::Read { offset: 0 }, 4096), 10, "heads begin at the first byte");
        assert_eq!(costs(Operation::Write { offset: 4096, durable: false }, 512), 10);
        assert_eq!(costs(Operation::Flush, 0), 0);
        assert_eq!(costs(Operation::Discard { offset: 0, len: 4096 }, 0), 10);
        assert_eq!(costs(Operation::Read { offset: 4608 }, 512), 10, "neither a flush nor a discard moves a head");
        assert_eq!(costs(Operation::Read { offset: 4608 }, 512), 1010, "the same place again is behind the head");
        assert_eq!(costs(Operation::Read { offset: u64::MAX - 511 }, 512), 1010);
    }

    #[test]
    fn each_stream_finds_the_head_that_served_it() {
        let options = SimOptions { channels: 2, read_latency: nanos(10), seek: nanos(1000), ..SimOptions::default() };
        let streams = |count: u64| {
            let mut model = Model::new(&options);
            let mut total_ns = 0;
            for round in 0..50 {
                for stream in 0..count {
                    // Idle in between, so that a channel is taken for its place and not because the other is busy.
                    let now_ns = (round * count + stream) * 10_000;
                    let read = Operation::Read { offset: stream * 1_000_000 + round * 512 };
                    total_ns += model.start(read, 512, now_ns).end_ns - now_ns;
                }
            }
            total_ns
        };
        assert_eq!(streams(2), 100 * 10 + 1000, "the second stream's head seeks once");
        assert_eq!(streams(3), 150 * 10 + 149 * 1000, "three streams chase two heads about");
    }

    #[test]
    fn equal_seeds_give_equal_fates() {
        let options = SimOptions { error_rate: 0.3, distribution: Distribution::Exponential, ..SimOptions::default() };
        let run = |seed| {
            let mut model = Model::new(&SimOptions { seed, ..options.clone() });
            (0..500).map(|_| model.start(READ, 512, 0)).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let doomed = run(7).iter().filter(|fate| fate.doomed).count();
        assert!((100..200).contains(&doomed), "{doomed} of 500 at a rate of 0.3");
    }

    #[test]
    fn one_operation_panics_if_any() {
        let panics = |panic_after| {
            let mut model = Model::new(&SimOptions { panic_after, ..SimOptions::default() });
            (1..=20).filter(|_| model.start(READ, 512, 0).panics).count()
        };
        assert_eq!((panics(0), panics(1), panics(20), panics(21)), (0, 1, 1, 0));
        let mut model = Model::new(&SimOptions { panic_after: 3, ..SimOptions::default() });
        let fates: Vec<_> = (0..4).map(|_| model.start(WRITE, 512, 0).panics).collect();
        assert_eq!(fates, [false, false, true, false]);
    }

    #[test]
    fn errors_have_rates_of_their_own() {
        let options = SimOptions { error_rate: 1.0, read_error_rate: Some(0.0), ..SimOptions::default() };
        let mut model = Model::new(&options);
        for _ in 0..100 {
            assert!(!model.start(READ, 0, 0).doomed);
            assert!(model.start(WRITE, 0, 0).doomed && model.start(Operation::Flush, 0, 0).doomed);
        }
    }
}
