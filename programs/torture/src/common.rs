//! What every torture takes.

use clap::Args;

use crate::rng::fresh_seed;
use crate::server::ProgramOptions;

/// What every torture takes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Common {
    /// Repeat the run that was told this seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End with one JSON document instead of one line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) program: ProgramOptions,
}

impl Common {
    /// The seed of this run, which is told at once.
    pub(crate) fn seed(&self, task: &str) -> u64 {
        let seed = self.seed.unwrap_or_else(fresh_seed);
        eprintln!("torture {task}: --seed {seed}");
        seed
    }
}
