//! What a configuration takes of the process's limits: from the start, and with a guest on each export.
//!
//! How many queues a guest starts is up to its frontend. Of an export that says how many there may be, it is taken at its word; of one that
//! does not, a guest is taken to have as many vCPUs as this host has CPUs, and a queue for each.

use crate::config::Config;
use control::model::config::{ExportKind, NewExport};
use control::model::{Execution, Placement, Protocol};
use disk::StorageSpec;

/// Standard input, output and error; signals, the control API's event loop, what descriptors are checked with, the service manager;
/// and low ones, which are kept from files where there are many (`upgrade::low`).
const DESCRIPTORS_OF_PROCESS: u64 = 16 + sandbox::COPIED_BELOW.unsigned_abs() as u64;
/// A mailbox, an io_uring, and one that signals eventfds.
const DESCRIPTORS_OF_WORKER: u64 = 3;
/// What listens, and what ends its thread.
const DESCRIPTORS_OF_EXPORT: u64 = 3;
/// An image and its lock.
const DESCRIPTORS_OF_FILE: u64 = 2;
/// A ring's kick, call and error eventfds, each with a second one, as live upgrades and moves need them.
const DESCRIPTORS_OF_RING: u64 = 6;
/// The connection, the channel back, and memory regions: QEMU has about three, and one for each memory device.
const DESCRIPTORS_OF_SESSION: u64 = 3 + REGIONS;
/// Memory regions of one guest.
const REGIONS: u64 = 8;
/// The main thread, signals, requests that are stuck, the placer, the watchdog, and what closes.
const THREADS_OF_PROCESS: u64 = 8;
/// The control API: its own thread, and those for calls into the daemon (docs/bounds.md).
const THREADS_OF_CONTROL: u64 = 9;
/// The storages' long work and questions (docs/bounds.md).
const THREADS_OF_STORAGES: u64 = 4;
/// qcow2's metadata, for all images.
const THREADS_OF_QCOW2: u64 = 4;
/// librbd's, for each image, and a connection to each of some OSDs.
const THREADS_OF_RBD: u64 = 20;
const DESCRIPTORS_OF_RBD: u64 = 32;
/// For a directory, beside its session's.
const THREADS_OF_DIRECTORY: u64 = 2;
/// A thread's stack and its guard, and what its allocator takes.
const MAPS_OF_THREAD: u64 = 4;
/// An io_uring's queues.
const MAPS_OF_WORKER: u64 = 4;
/// Program, libraries, heap.
const MAPS_OF_PROCESS: u64 = 100;
/// Files of a directory that are mapped for reading, at most (`passthrough::window`).
const MAPS_OF_DIRECTORY: u64 = 1024;

/// Of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::doctor) struct Needs {
    pub(in crate::doctor) descriptors: u64,
    pub(in crate::doctor) threads: u64,
    /// Workers, each with its io_urings.
    pub(in crate::doctor) workers: u64,
    pub(in crate::doctor) maps: u64,
}

/// What a configuration takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::doctor) struct Demand {
    /// So much it cannot start without: what is certain, and no more.
    pub(in crate::doctor) least: Needs,
    /// With a guest on each export.
    pub(in crate::doctor) guests: Needs,
    /// What guests of directories may have open, or known, in descriptors.
    pub(in crate::doctor) of_directories: u64,
}

impl Demand {
    /// On a host of so many CPUs.
    pub(in crate::doctor) fn of(config: &Config, cpus: u64) -> Demand {
        let workers = config.workers as u64;
        let files: u64 = config.storages().map(files).sum();
        let pools: u64 = config.storages().map(|storage| threads(execution(storage))).sum();
        let exports = config.exports.len() as u64;
        let clusters = config.storages().filter(|storage| matches!(storage, StorageSpec::Rbd(_))).count() as u64;
        let control = u64::from(config.control.is_some() || config.control_fd.is_some());
        let least = Needs {
            descriptors: 3 + workers * DESCRIPTORS_OF_WORKER + exports + files + control,
            threads: 1 + workers + exports + pools + control,
            workers,
            maps: 0,
        };
        let mut guests = Needs {
            descriptors: DESCRIPTORS_OF_PROCESS
                + workers * DESCRIPTORS_OF_WORKER
                + exports * DESCRIPTORS_OF_EXPORT
                + files * DESCRIPTORS_OF_FILE
                + clusters * DESCRIPTORS_OF_RBD,
            threads: THREADS_OF_PROCESS
                + control * THREADS_OF_CONTROL
                + THREADS_OF_STORAGES
                + clusters * THREADS_OF_RBD
                + if config.storages().any(|storage| matches!(storage, StorageSpec::Qcow2(_))) {
                    THREADS_OF_QCOW2
                } else {
                    0
                }
                + workers
                + pools,
            workers,
            maps: MAPS_OF_PROCESS,
        };
        for export in &config.exports {
            add(&mut guests, export, cpus);
        }
        guests.maps += guests.threads * MAPS_OF_THREAD + guests.workers * MAPS_OF_WORKER;
        let directories = config.exports.iter().filter_map(|export| export.directory.as_ref());
        let of_directories =
            directories.map(|directory| u64::from(directory.descriptors_max()) + u64::from(directory.open_files_max()));
        Demand { least, guests, of_directories: of_directories.sum() }
    }
}

/// Queues that a guest of the export is taken to start, with virtio-fs' urgent one; connections of a stream.
pub(in crate::doctor) fn queues(export: &NewExport, cpus: u64) -> u64 {
    let queues = u64::from(export.queues());
    let started = match export.queues {
        Some(_) => queues,
        None => queues.min(cpus.max(1)),
    };
    let virtiofs = |directory: &control::model::Directory| directory.protocol == Protocol::Virtiofs;
    // Those for urgent requests, and for control and events.
    let beside = match export.kind {
        ExportKind::Disk => 0,
        ExportKind::Dir => u64::from(export.directory.as_ref().is_some_and(virtiofs)),
        ExportKind::Scsi => 2,
    };
    started + beside
}

/// A guest of the export.
fn add(needs: &mut Needs, export: &NewExport, cpus: u64) {
    let queues = queues(export, cpus);
    let own = match export.workers {
        Placement::Shared => 0,
        Placement::One => 1,
        Placement::PerQueue => queues,
        Placement::Workers(workers) => (workers as u64).min(queues),
    };
    needs.workers += own;
    needs.descriptors += own * DESCRIPTORS_OF_WORKER;
    needs.threads += 1 + own;
    if export.listen.is_some() {
        // A connection is a descriptor and a ring without eventfds.
        needs.descriptors += queues;
    } else {
        needs.descriptors += DESCRIPTORS_OF_SESSION + queues * DESCRIPTORS_OF_RING;
        needs.maps += REGIONS;
    }
    if export.kind == ExportKind::Dir {
        needs.threads += THREADS_OF_DIRECTORY;
        needs.maps += MAPS_OF_DIRECTORY;
        needs.threads += export.directory.as_ref().map_or(0, |directory| threads(directory.execution));
    }
}

fn threads(execution: Execution) -> u64 {
    match execution {
        Execution::Pool(threads) => threads as u64,
        _ => 0,
    }
}

/// Where the calls of a storage run.
fn execution(storage: &StorageSpec) -> Execution {
    match storage {
        StorageSpec::File(file) => file.execution,
        StorageSpec::Volume(volume) => volume.execution,
        StorageSpec::Qcow2(image) => image.execution,
        StorageSpec::Sg(_) => Execution::Pool(disk::SG_COMMANDS_MAX),
        StorageSpec::Rbd(_) | StorageSpec::Memory(_) | StorageSpec::Null(_) | StorageSpec::Sim(_) => Execution::Auto,
    }
}

/// Files that are open as long as the disk is, without what an image leads to.
fn files(storage: &StorageSpec) -> u64 {
    if storage.migratable().is_some() {
        return 0;
    }
    match storage {
        StorageSpec::File(_) => 1,
        StorageSpec::Volume(volume) => 1 + u64::from(volume.log.is_some()),
        StorageSpec::Qcow2(image) => 1 + u64::from(image.log.is_some()),
        StorageSpec::Memory(memory) => u64::from(memory.path.is_some()),
        // And the block device that it keeps the host from, and the socket of a helper.
        StorageSpec::Sg(device) => 2 + u64::from(device.pr_helper.is_some()),
        StorageSpec::Rbd(_) | StorageSpec::Null(_) | StorageSpec::Sim(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Sockets;
    use control::model::Poll;

    fn config(export: &str) -> Config {
        let export = toml::from_str(export).unwrap();
        let config = Config::of_one(export, None, Poll::default(), Sockets::default()).unwrap();
        Config { workers: 2, ..config }
    }

    const DISK: &str = "name = 'a'\nsocket = '/a'\nstorage = { kind = 'file', path = '/i', execution = 'pool=3' }\n";
    const DIR: &str = "name = 'a'\nkind = 'dir'\nsocket = '/a'\ndirectory = { path = '/srv' }\n";

    #[test]
    fn queues_are_those_that_a_guest_would_start() {
        let of = |text: &str, cpus| queues(&config(text).exports[0], cpus);
        assert_eq!((of(DISK, 4), of(DISK, 1000), of(DISK, 0)), (4, 256, 1));
        assert_eq!(of(&format!("{DISK}queues = 16"), 4), 16);
        assert_eq!((of(DIR, 4), of(DIR, 100)), (5, 65));
    }

    #[test]
    fn more_of_anything_is_never_less() {
        let base = Demand::of(&config(DISK), 2);
        for more in ["queues = 200", "workers = 'per-queue'", "workers = 8"] {
            let demand = Demand::of(&config(&format!("{DISK}{more}")), 2);
            let (before, after) = (base.guests, demand.guests);
            assert!(
                after != before && after.descriptors >= before.descriptors && after.threads >= before.threads,
                "{more}"
            );
            assert_eq!(demand.least, base.least, "{more}: no guest is there yet");
        }
        assert!(base.guests.threads > base.least.threads && base.least.threads >= 2 + 3);
        let directory = Demand::of(&config(DIR), 2);
        assert_eq!(directory.of_directories, 4096 + 65536);
        assert!(directory.guests.maps > base.guests.maps + 1000);
    }
}
