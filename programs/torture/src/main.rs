//! `torture` (`cargo xtask torture`): servers are killed under load, and every single request is looked at.
//!
//! Each kind of torture is a module with its options and a `run`. All of them are repeatable: what is random comes from a
//! seed, which is told at the start. What is said on the way goes to standard error; the last line, or the JSON document
//! that stands for it, goes to standard output. Any loss is an error.

mod cluster;
mod common;
mod cost;
mod database;
mod disk;
mod figures;
mod fio_guest;
mod frontend;
mod hostile;
mod iotests;
mod kill;
mod neighbour;
mod powercut;
mod rng;
mod server;
mod session;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Kill servers under load and look at every request; ends with one line of figures, and fails on any loss.
#[derive(Parser, Debug)]
#[command(name = "torture", bin_name = "cargo xtask torture")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Kill the server under load with SIGKILL, again and again.
    ///
    /// Half of it under a frontend that checks every request, half of it under a QEMU guest that runs fio with
    /// verification and reconnects.
    Kill(kill::Options),
    /// Replace the server's program under load, again and again.
    ///
    /// A third of it under a frontend that checks every request, to which the gap between two completions is what an upgrade
    /// costs; a third under a QEMU guest that runs fio with verification; a third under a client of a directory.
    Upgrade(upgrade::Options),
    /// Fail and restore the parts of a Ceph cluster under load.
    ///
    /// Its OSD and its monitor are killed and started again, the network is cut and restored, and half of the time the server is killed
    /// meanwhile. Needs the lab; runs in a network namespace of its own, for which user namespaces suffice.
    Cluster(cluster::Options),
    /// Attack it as guests and frontends can that break every rule, while another disk is under verified load.
    Hostile(hostile::Options),
    /// Measure how long others on a worker wait while one guest does what takes long.
    Neighbour(neighbour::Options),
    /// Cut the power of volumes at every point, and look at every sector afterwards.
    ///
    /// Small volumes live on storage that writes down all that it is asked. What a power cut may leave of that is recovered,
    /// and compared with what was promised.
    Powercut(powercut::Options),
    /// One life of a volume, in the guest of `powercut --device`.
    #[command(hide = true)]
    PowercutLife(powercut::device::inside::Options),
    /// Lives of a file that keeps reservations, in the guest of `powercut --reservations --device`.
    #[command(hide = true)]
    PowercutReservationsLife(powercut::reservations::device::life::Options),
    /// Cuts of that file, there.
    #[command(hide = true)]
    PowercutReservationsLook(powercut::reservations::device::look::Options),
    /// Kill the server of a volume under a guest's databases, alone and together with the guest.
    Database(database::Options),
    /// Run QEMU's own tests of qcow2 with the images served over vhost-user, by this daemon and by QEMU's.
    ///
    /// `cargo xtask lab --with-iotests` fetches them.
    Iotests(iotests::Options),
    /// What stands in the place of `qemu-io` in `iotests`.
    #[command(hide = true)]
    IotestsClient(iotests::client::Options),
    /// Measure what tracking requests in flight costs: the same load with and without the inflight region.
    InflightCost(cost::Options),
}

fn main() -> ExitCode {
    let result = match &Arguments::parse().what {
        What::Kill(options) => kill::run(options),
        What::Upgrade(options) => upgrade::run(options),
        What::Cluster(options) => cluster::run(options),
        What::Hostile(options) => hostile::run(options),
        What::Neighbour(options) => neighbour::run(options),
        What::Powercut(options) => powercut::run(options),
        What::PowercutLife(options) => powercut::device::inside::run(options),
        What::PowercutReservationsLife(options) => powercut::reservations::device::life::run(options),
        What::PowercutReservationsLook(options) => powercut::reservations::device::look::run(options),
        What::Database(options) => database::run(options),
        What::Iotests(options) => iotests::run(options),
        What::IotestsClient(options) => iotests::client::run(options),
        What::InflightCost(options) => cost::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torture: {error:#}");
            ExitCode::FAILURE
        }
    }
}
