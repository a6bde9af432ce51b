//! Workers, rings and clients on more processors than there are: a discrete-event simulation that runs the `policy` crate's own code.
//!
//! | file | what is in it |
//! |---|---|
//! | `costs` | what things cost: the calibration |
//! | `scenario` | a machine, clients with their load, and who serves them |
//! | `world` | the simulation: threads on processors, workers and clients as the daemon and a guest have them, the policy |
//! | `outcome` | rates, times, processor time, and what the policy did |
//! | `tables` | the vhost note's tables, its loads on devices of ours, the policy against fixed placements, phases |
//!
//! A run is a function of its [`Scenario`]: no thread, no clock, and what is random has a seed.
//!
//! # What it cannot tell
//!
//! - **Absolute rates of a machine that nobody measured.** Costs are constants; where they come from is said beside each.
//! - **Caches.** A ring that moves finds its worker's caches as warm as it left the other's. Memory bandwidth is a number of copies at
//!   full speed for each node, and another node's memory is a factor.
//! - **The kernel's scheduler.** A thread that wakes takes an idle processor, its last one first, else it waits for its turn of
//!   [`Costs::slice_ns`]; EEVDF preempts and migrates by finer rules. Where clients and workers share processors, look here first.
//! - **What a device is.** To it a SCSI device is a virtio-blk device whose requests take longer ([`Costs::over_scsi`]); what rings of one
//!   device share would have to be in [`Costs::crowd_ns`].
//! - **Waiting for a device.** Requests end in the turn that took them, as on memory. What a device does to queues is not in it.
//! - **How a worker waits.** Workers poll for a fixed time; `policy::Trial` is not simulated.
//! - **Interrupts and exits** have a price, but take nobody else's processor.

mod costs;
mod outcome;
mod random;
mod scenario;
pub mod tables;
#[cfg(test)]
mod tests;
mod world;

pub use costs::Costs;
pub use outcome::Outcome;
pub use scenario::{Client, Host, Placing, Scenario, Shape};

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &Scenario) -> Outcome {
    world::World::new(scenario).run()
}
