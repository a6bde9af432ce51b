//! What is simulated: a machine, clients and who serves them.

use crate::costs::Costs;
use crate::random::Random;
use values::Favour;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What things cost.
    pub costs: Costs,
    /// The machine.
    pub host: Host,
    /// One client a ring.
    pub clients: Vec<Client>,
    /// Who serves the rings.
    pub placing: Placing,
    /// What is not counted, in nanoseconds.
    pub warm_ns: u64,
    /// What is.
    pub run_ns: u64,
    /// Of everything that is random.
    pub seed: u64,
}

/// Processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Processors that workers run on.
    pub processors: u16,
    /// NUMA nodes that these are divided among.
    pub nodes: u16,
    /// Threads of a core.
    pub threads: u16,
    /// Processors of the clients alone, one each, instead of the workers'.
    pub guests_apart: bool,
}

impl Host {
    /// So many cores of one node; clients have processors of their own.
    #[must_use]
    pub fn cores(processors: u16) -> Host {
        Host { processors, nodes: 1, threads: 1, guests_apart: true }
    }

    /// So many, for workers and clients together.
    #[must_use]
    pub fn together(processors: u16) -> Host {
        Host { guests_apart: false, ..Host::cores(processors) }
    }
}

/// What makes requests on one ring.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The export of its ring.
    pub export: u64,
    /// Requests in flight at most.
    pub depth: u32,
    /// Requests that are submitted at once, if there is room for them.
    pub batch: u32,
    /// Time from one request to the next at least, in nanoseconds; 0 for as fast as they are answered.
    pub interval_ns: f64,
    /// When it does something: pairs of times, ascending. Empty: always.
    pub active: Vec<(u64, u64)>,
}

impl Client {
    /// One that does all it can.
    #[must_use]
    pub fn busy(export: u64, depth: u32, batch: u32) -> Client {
        Client { export, depth, batch, interval_ns: 0.0, active: Vec::new() }
    }

    pub(crate) fn is_active(&self, at_ns: u64) -> bool {
        self.active.is_empty() || self.active.iter().any(|(from, to)| (*from..*to).contains(&at_ns))
    }
}

/// Who serves which ring.
#[derive(Clone, Debug, PartialEq)]
pub enum Placing {
    /// So many workers, rings in turn.
    Workers(u32),
    /// These workers, by ring.
    Fixed(Vec<u32>),
    /// One worker at first; then the policy.
    Policy(Favour),
}

/// How a load is divided among rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All rings do all they can.
    Even,
    /// Ring `i` asks for a share of `1/i` of what all workers could do at 60 % of their time.
    Zipf,
    /// As even, but each ring is active for a second in four, at random.
    Bursty,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 3] = [Shape::Even, Shape::Zipf, Shape::Bursty];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Shape::Even => "even",
            Shape::Zipf => "Zipf",
            Shape::Bursty => "bursty",
        }
    }

    /// So many rings of so many exports, for a machine with so many processors.
    #[must_use]
    pub fn clients(self, rings: u32, exports: u32, costs: &Costs, processors: u16, lasts_ns: u64) -> Vec<Client> {
        let mut random = Random::new(u64::from(rings) + 7);
        let harmonic: f64 = (1..=rings).map(|rank| 1.0 / f64::from(rank)).sum();
        let total = 0.6 * f64::from(processors) * 1e9 / (costs.request_ns + costs.data_ns);
        let mut ranks: Vec<u32> = (1..=rings).collect();
        for place in (1..ranks.len()).rev() {
            ranks.swap(place, (random.share() * (place + 1) as f64) as usize);
        }
        (0..rings)
            .map(|ring| {
                let mut client = Client::busy(u64::from(ring % exports.max(1)), 16, 16);
                match self {
                    Shape::Even => {}
                    Shape::Zipf => {
                        client.interval_ns = 1e9 * harmonic * f64::from(ranks[ring as usize]) / total;
                    }
                    Shape::Bursty => {
                        let mut at_ns = random.exponential(2e9);
                        while (at_ns as u64) < lasts_ns {
                            let end_ns = at_ns + random.exponential(1e9);
                            client.active.push((at_ns as u64, end_ns as u64));
                            at_ns = end_ns + random.exponential(3e9);
                        }
                        // An empty list would be a ring that never rests.
                        client.active.push((u64::MAX - 1, u64::MAX));
                    }
                }
                client
            })
            .collect()
    }
}
