//! The experiments that come with the program, each named after the note that it reproduces.

use super::problem::ReadError;
use super::{Experiment, read};

/// One experiment that is shipped: its name and its file.
struct Shipped {
    name: &'static str,
    toml: &'static str,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        [$(Shipped { name: $name, toml: include_str!(concat!("../../experiments/", $name, ".toml")) }),*]
    };
}

macro_rules! figures {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../published/", $name)))),*]
    };
}

/// In the order of `bench list`: directories, disks, who executes, a peer, and the harness itself.
static SHIPPED: [Shipped; 11] = shipped!(
    "thread-pool" "virtiofs-vs-9p" "9p" "worker-per-vq" "worker-per-vq-scsi" "vhost-blk" "zvol-threads" "database" "pool-or-inline" "virtiofsd" "equals"
);

static FIGURES: [(&str, &str); 6] = figures!(
    "thread-pool.csv" "virtiofs-vs-9p.csv" "worker-per-vq.csv" "vhost-blk.csv" "zvol-threads.csv" "pool-or-inline.csv"
);

/// The names of all shipped experiments, in the order in which they are listed.
pub fn names() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|shipped| shipped.name)
}

/// All shipped experiments.
///
/// # Errors
/// If one of them cannot be run, which tests rule out.
pub fn all() -> Result<Vec<Experiment>, ReadError> {
    SHIPPED.iter().map(Shipped::read).collect()
}

/// The shipped experiment of this name, if there is one.
///
/// # Errors
/// If it cannot be run, which tests rule out.
pub fn find(name: &str) -> Result<Option<Experiment>, ReadError> {
    SHIPPED.iter().find(|shipped| shipped.name == name).map(Shipped::read).transpose()
}

/// The file of the shipped experiment of this name, to begin one's own from.
#[must_use]
pub fn toml(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|shipped| shipped.name == name).map(|shipped| shipped.toml)
}

impl Shipped {
    fn read(&self) -> Result<Experiment, ReadError> {
        read::text(&format!("{}.toml", self.name), self.toml, |name| {
            let found = FIGURES.iter().find(|(file, _)| *file == name);
            found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "is not shipped".to_owned())
        })
    }
}
