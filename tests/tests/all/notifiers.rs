//! What a ring needs to notify its driver: nothing that a limit of the user's counts, however many rings there are and
//! however often they start.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use frontkit::Memory;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use tests::daemon::{DIRECTORY, Daemon};
use tests::driver::{RING_BYTES, Ring, writable};
use tests::frontend::{Frontend, kind, status};

const SECTOR: u32 = 512;
const RING_SIZE: u16 = 8;
/// Rings of one disk, at most.
const QUEUES: usize = 256;
/// What most distributions let a user lock, in bytes.
const LOCKED_BYTES: u64 = 8 << 20;
/// Descriptors of a ring in the daemon, which has more of them than the frontend: kick and call, one copy of each the session's,
/// one the ring's.
const DESCRIPTORS_A_RING: u64 = 4;
/// Descriptors of everything else: a handful an export, a notifier's io_uring for each eventfd that is rung at once.
const DESCRIPTORS_SPARE: u64 = 512;

const PATIENCE: Duration = Duration::from_secs(20);

/// A frontend with its rings.
type Guest = (Frontend, Vec<Ring>);

fn guest(daemon: &Daemon, export: &str, queues: usize) -> Result<Guest> {
    let memory = Arc::new(Memory::new(0, (queues as u64 + 1) * RING_BYTES)?);
    let mut frontend = Frontend::connect_with(&daemon.socket(export), 0, memory)?;
    let rings: Result<Vec<Ring>> = (0..queues).map(|index| frontend.ring(index, RING_SIZE)).collect();
    Ok((frontend, rings?))
}

/// Each ring of a guest answers a read and says so. How many did.
fn all_answer((_, rings): &mut Guest) -> usize {
    let data = rings.len() as u64 * RING_BYTES;
    let mut answers = 0;
    for ring in rings {
        ring.queue.arm();
        let request = ring.request(kind::IN, 0, &[writable(data, SECTOR)]);
        ring.kick_if_wanted();
        assert!(ring.wait_call(PATIENCE), "ring {} notifies nobody", ring.index());
        assert_eq!(ring.watch_used(), (request.head, SECTOR + 1), "ring {}", ring.index());
        assert_eq!(ring.status(request), status::OK, "ring {}", ring.index());
        answers += 1;
    }
    answers
}

/// Whether a process may lock memory beyond any limit (CAP_IPC_LOCK): then none of this would show anything.
fn locks_without_limit(daemon: &Daemon) -> Result<bool> {
    const CAP_IPC_LOCK: u64 = 14;
    let text = std::fs::read_to_string(format!("/proc/{}/status", daemon.id()))?;
    let effective = text.lines().find_map(|line| line.strip_prefix("CapEff:")).context("a process has capabilities")?;
    Ok(u64::from_str_radix(effective.trim(), 16)? >> CAP_IPC_LOCK & 1 == 1)
}

fn pid(daemon: &Daemon) -> Result<Pid> {
    i32::try_from(daemon.id()).ok().and_then(Pid::from_raw).context("a process id")
}

fn limit_locked_memory(daemon: &Daemon, bytes: u64) -> Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    Ok(prlimit(Some(pid(daemon)?), Resource::Memlock, limit).map(drop)?)
}

fn config(exports: usize) -> String {
    let mut config = String::from("workers = 1\n");
    for export in 0..exports {
        config += &format!(
            "[[export]]\nname = 'e{export}'\nsocket = '{DIRECTORY}/e{export}.sock'\nqueues = {QUEUES}\n\
             storage = {{ kind = 'memory', size = '1M' }}\n"
        );
    }
    config
}

#[test]
fn a_ring_starts_and_answers_when_no_more_memory_may_be_locked() -> Result<()> {
    let mut daemon = Daemon::serve(&config(1))?;
    let mut guest = guest(&daemon, "e0", 1)?;
    all_answer(&mut guest);
    limit_locked_memory(&daemon, 0)?;
    for index in 1..4 {
        let _ = guest.0.stop(&guest.1[0])?;
        let ring = Ring::new(guest.0.memory().clone(), 0, RING_SIZE);
        guest.0.start(&ring, 0)?;
        guest.1[0] = ring;
        all_answer(&mut guest);
        daemon.check_alive().with_context(|| format!("after start {index}"))?;
    }
    drop(guest);
    daemon.stop()
}

/// Ten thousand where the limits on descriptors allow it, and never fewer than would have gone silent.
#[test]
fn thousands_of_rings_answer_within_the_usual_limit_on_locked_memory() -> Result<()> {
    let exports = exports_that_fit()?;
    let daemon = Daemon::serve(&config(exports))?;
    limit_locked_memory(&daemon, LOCKED_BYTES)?;
    let mut guests = (0..exports)
        .map(|export| guest(&daemon, &format!("e{export}"), QUEUES).with_context(|| format!("export {export}")))
        .collect::<Result<Vec<Guest>>>()?;
    ensure!(!locks_without_limit(&daemon)?, "the sandbox leaves the daemon CAP_IPC_LOCK");
    for _ in 0..2 {
        let answers: usize = guests.iter_mut().map(all_answer).sum();
        ensure!(answers == exports * QUEUES, "{answers} rings answered");
        ensure!(answers >= 10_000 || exports < wanted_exports(), "{answers} rings are not ten thousand");
    }
    println!("{} rings answered", exports * QUEUES);
    drop(guests);
    daemon.stop()
}

/// Disks that have ten thousand rings.
const fn wanted_exports() -> usize {
    10_000_usize.div_ceil(QUEUES)
}

/// How many exports' rings the limit on descriptors allows, which is raised as far as it may be.
fn exports_that_fit() -> Result<usize> {
    let wanted = wanted_exports();
    let needed = (wanted * QUEUES) as u64 * DESCRIPTORS_A_RING + DESCRIPTORS_SPARE;
    let has = getrlimit(Resource::Nofile);
    if has.maximum.is_some_and(|most| most < needed) {
        // Root may.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: Some(needed) });
    }
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(needed);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?;
    let fit = usize::try_from(most.saturating_sub(DESCRIPTORS_SPARE) / DESCRIPTORS_A_RING)? / QUEUES;
    ensure!(fit * QUEUES > 1100, "RLIMIT_NOFILE of {most} leaves room for {fit} disks of {QUEUES} rings: raise it");
    Ok(fit.min(wanted))
}
