//! What came of a run.

use policy::balance::Verdict;

/// Buckets a power of two.
const SUB: usize = 16;

/// Times of requests, in buckets that differ by 6 %.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times(Vec<u64>);

impl Default for Times {
    fn default() -> Times {
        Times(vec![0; 64 * SUB])
    }
}

impl Times {
    pub(crate) fn record(&mut self, ns: u64, count: u32) {
        let ns = ns.max(SUB as u64);
        let shift = ns.ilog2() - SUB.ilog2();
        let bucket = shift as usize * SUB + ((ns >> shift) as usize - SUB);
        if let Some(bucket) = self.0.get_mut(bucket) {
            *bucket += u64::from(count);
        }
    }

    fn quantile(&self, quantile: f64) -> f64 {
        let total: u64 = self.0.iter().sum();
        let mut left = (total as f64 * quantile) as u64;
        for (bucket, count) in self.0.iter().enumerate() {
            if *count > left {
                return ((bucket % SUB + SUB) as u64) as f64 * 2_f64.powi((bucket / SUB) as i32);
            }
            left -= count;
        }
        0.0
    }
}

/// What came of a run, its warm-up not counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests a second.
    pub rate: f64,
    /// Processor time of workers, in processors: in turns, polling and going to sleep.
    pub worker_cpu: f64,
    /// Of that, in turns.
    pub worker_busy: f64,
    /// Half of the requests took less, in nanoseconds.
    pub p50_ns: f64,
    /// All but a hundredth took less.
    pub p99_ns: f64,
    /// Workers that served something in the last tenth of a second.
    pub serving: u32,
    /// Requests in each tenth of a second, the warm-up included.
    pub tenths: Vec<u64>,
    /// What the policy did, the warm-up included.
    pub verdicts: Vec<Verdict>,
}

impl Outcome {
    pub(crate) fn new(seconds: f64, requests: u64, (busy_ns, cpu_ns): (f64, f64), times: &Times) -> Outcome {
        Outcome {
            rate: requests as f64 / seconds,
            worker_cpu: cpu_ns / seconds / 1e9,
            worker_busy: busy_ns / seconds / 1e9,
            p50_ns: times.quantile(0.5),
            p99_ns: times.quantile(0.99),
            serving: 0,
            tenths: Vec::new(),
            verdicts: Vec::new(),
        }
    }

    /// Requests a second of worker processor time.
    #[must_use]
    pub fn rate_per_cpu(&self) -> f64 {
        if self.worker_cpu > 0.0 { self.rate / self.worker_cpu } else { 0.0 }
    }

    /// Changes that moved rings.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.verdicts.iter().filter(|verdict| !verdict.moves.is_empty()).count()
    }

    /// Moves of rings.
    #[must_use]
    pub fn moves(&self) -> usize {
        self.verdicts.iter().map(|verdict| verdict.moves.len()).sum()
    }
}
