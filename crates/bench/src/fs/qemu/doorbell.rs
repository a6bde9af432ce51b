//! The register that tells a device of requests, written without waiting for the answer.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::usage::cpu_ns_of_first_thread;
use serde::Serialize;

use super::qtest::{ANSWER_TIME_MAX, Qtest, write_command};

/// After so many kicks it is looked whether they were answered.
const LOOK_AFTER: u32 = 32;
/// Kicks that may be unanswered: their answers fit into a socket, so that QEMU never waits for them to be taken.
const UNANSWERED_MAX: u32 = 128;
/// Kicks whose cost is measured, and those before that.
const MEASURED: u32 = 500;
const WARMED: u32 = 50;

/// What telling a device of requests costs, without any request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct KickCost {
    /// From the command to its answer, the median, in nanoseconds.
    pub(crate) round_trip_ns: u64,
    /// Processor time of QEMU for each, in nanoseconds, if the kernel says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_cpu_ns: Option<u64>,
}

/// The register.
pub(crate) struct Doorbell {
    qtest: Qtest,
    command: Box<[u8]>,
    unanswered: u32,
}

impl Doorbell {
    /// The 32-bit register at the guest address `register`, to which 0, the number of the queue, is written.
    pub(super) fn new(qtest: Qtest, register: u64) -> Self {
        Self { qtest, command: write_command(register, 0), unanswered: 0 }
    }

    /// Tells the device of requests.
    pub(crate) fn ring(&mut self) -> Result<()> {
        self.qtest.send(&self.command)?;
        self.unanswered += 1;
        if self.unanswered >= LOOK_AFTER {
            while self.qtest.try_answer()?.is_some() {
                self.answered()?;
            }
        }
        while self.unanswered > UNANSWERED_MAX {
            self.qtest.answer()?;
            self.answered()?;
        }
        Ok(())
    }

    fn answered(&mut self) -> Result<()> {
        self.unanswered = self.unanswered.checked_sub(1).context("QEMU answers what was not asked over qtest")?;
        Ok(())
    }

    /// What [`Doorbell::ring`] costs while the queue has nothing in it. Answers are looked for as replies are.
    pub(super) fn cost(&mut self, server_pid: Option<u32>) -> Result<KickCost> {
        let mut times = Vec::new();
        for _ in 0..WARMED {
            self.round_trip()?;
        }
        let before = server_pid.and_then(main_thread_ns);
        for _ in 0..MEASURED {
            times.push(self.round_trip()?);
        }
        let after = server_pid.and_then(main_thread_ns);
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        let used = before.zip(after).map(|(before, after)| after.saturating_sub(before) / u64::from(MEASURED));
        Ok(KickCost { round_trip_ns: u64::try_from(median.as_nanos()).unwrap_or(u64::MAX), server_cpu_ns: used })
    }

    fn round_trip(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.qtest.send(&self.command)?;
        while self.qtest.try_answer()?.is_none() {
            ensure!(started.elapsed() < ANSWER_TIME_MAX, "QEMU answers no kick");
            thread::yield_now();
        }
        Ok(started.elapsed())
    }
}

/// Processor time of a process's first thread, which is the one of QEMU's main loop, in nanoseconds.
fn main_thread_ns(pid: u32) -> Option<u64> {
    // The kernel accounts for a thread when it sleeps, which it does soon after it has answered.
    thread::sleep(Duration::from_millis(1));
    cpu_ns_of_first_thread(pid)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn kicks_are_not_waited_for_until_many_are_unanswered() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut doorbell = Doorbell::new(Qtest::new(here).unwrap(), 0x1050);
        for _ in 0..UNANSWERED_MAX {
            doorbell.ring().unwrap();
        }
        assert_eq!(doorbell.unanswered, UNANSWERED_MAX);
        there.write_all(&b"OK\n".repeat(UNANSWERED_MAX as usize)).unwrap();
        doorbell.ring().unwrap();
        assert_eq!(doorbell.unanswered, 1);
        let mut seen = vec![0; doorbell.command.len() * (UNANSWERED_MAX as usize + 1)];
        there.read_exact(&mut seen).unwrap();
        assert_eq!(seen, b"writel 0x1050 0x0\n".repeat(UNANSWERED_MAX as usize + 1));
    }

    #[test]
    fn an_answer_that_says_no_is_an_error_once_it_is_looked_at() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut doorbell = Doorbell::new(Qtest::new(here).unwrap(), 0);
        there.write_all(b"OK\nFAIL no\n").unwrap();
        let rung: Result<Vec<()>> = (0..LOOK_AFTER).map(|_| doorbell.ring()).collect();
        assert!(rung.unwrap_err().to_string().contains("FAIL no"));
    }

    #[test]
    fn the_cost_of_a_kick_is_measured() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut kicks = 0;
            let mut byte = [0];
            while there.read(&mut byte).unwrap() == 1 {
                if byte == *b"\n" {
                    kicks += 1;
                    there.write_all(b"OK\n").unwrap();
                }
            }
            kicks
        });
        let mut doorbell = Doorbell::new(Qtest::new(here).unwrap(), 0);
        let cost = doorbell.cost(Some(std::process::id())).unwrap();
        assert!(cost.round_trip_ns > 0);
        assert_eq!(doorbell.unanswered, 0);
        drop(doorbell);
        assert_eq!(qemu.join().unwrap(), WARMED + MEASURED);
    }
}
