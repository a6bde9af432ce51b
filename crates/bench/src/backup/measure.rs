//! One job, once: a guest without it, and then with it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tempfile::TempDir;

use super::case::{Case, Row, Side};
use super::figures::{Measured, Phase};
use super::lay_out::Files;
use super::server::{Copier, Paths, Programs};
use crate::frontend::{Load, Rw, Spec};
use crate::progress::Progress;
use crate::server::{Server, sockets};
use crate::words::count;
use guest::usage::Sample;

/// How often progress is shown.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A server has data of a whole disk to close.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// Where jobs run.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    programs: Programs<'a>,
    files: Files,
    terms: Terms,
    scratch: TempDir,
}

/// On what terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Of the disk.
    pub(super) size_bytes: u64,
    /// Share of reads, in percent.
    pub(super) mix: u8,
    pub(super) ramp: Duration,
    pub(super) before: Duration,
    /// How long a job may take.
    pub(super) give_up: Duration,
}

impl<'a> Bench<'a> {
    /// A bench with a place for sockets.
    pub(super) fn new(programs: Programs<'a>, files: Files, terms: Terms) -> Result<Self> {
        Ok(Self { programs, files, terms, scratch: sockets()? })
    }

    /// Has one side do the job of a case.
    pub(super) fn run(&self, case: &Case, side: Side, progress: &Progress) -> Result<Measured> {
        progress.begin(&format!("{case}, {}: files", side.name()), None);
        self.files.renew(side, case)?;
        progress.begin(&format!("{case}, {}", side.name()), Some(self.terms.ramp + self.terms.before));
        let paths = self.paths();
        // A server that was killed leaves its socket.
        let _absent = std::fs::remove_file(&paths.control);
        let mut server = Server::start(&self.programs.command(side, case.source, &paths), &paths.socket, &[])?;
        let load = server.load(&self.spec(case))?;
        let pid = server.pid();
        let measured = Copier::prepare(side, case, self.programs.direct, &paths)
            .and_then(|copier| Run { bench: self, case, copier, load, pid, progress }.measure(&paths));
        let mut measured = measured.map_err(|error| server.blame(error))?;
        server.stop_within(STOP_TIME_MAX);
        if case.row != Row::Mirror
            && measured.job_s.is_some()
            && let Err(error) = self.files.check(side, case)
        {
            measured.faults.push(format!("the image: {error:#}"));
        }
        self.files.clear();
        Ok(measured)
    }

    fn paths(&self) -> Paths {
        Paths {
            socket: self.scratch.path().join("disk.sock"),
            control: self.scratch.path().join("control"),
            source: self.files.source(),
            target: self.files.target(),
            directory: self.files.directory().to_owned(),
        }
    }

    /// Until it is stopped: how long a job takes depends on the server.
    fn spec(&self, case: &Case) -> Spec {
        let rw = if self.terms.mix == 0 { Rw::RandWrite } else { Rw::RandRw };
        Spec { rw, mix: self.terms.mix, depth: case.depth, ..Spec::default() }
    }
}

/// One run under way.
struct Run<'a> {
    bench: &'a Bench<'a>,
    case: &'a Case,
    copier: Copier,
    load: Load,
    pid: u32,
    progress: &'a Progress,
}

impl Run<'_> {
    fn measure(mut self, paths: &Paths) -> Result<Measured> {
        self.pause(self.bench.terms.ramp)?;
        let ramped = self.load.whole_snapshot();
        self.pause(self.bench.terms.before)?;
        let ready = self.load.whole_snapshot();
        let before = Phase::between(&ramped, &ready);

        let cpu = Sample::take(self.pid)?;
        let began = Instant::now();
        self.copier.begin(self.case, &paths.target)?;
        let job = self.wait(began)?;
        let ended = self.load.whole_snapshot();
        let server = Sample::take(self.pid)?.since(&cpu);
        let during = Phase::between(&ready, &ended);

        let mut durable = None;
        match self.case.row {
            Row::Backup if job.is_some() => {
                self.copier.close_target()?;
                self.bench.files.sync_target()?;
                durable = Some(began.elapsed());
            }
            Row::Stream | Row::Commit if job.is_some() => {}
            // One that completes at this moment refuses, and ends with its daemon.
            Row::Commit => drop(self.copier.cancel()),
            _ => self.copier.cancel()?,
        }
        let report = self.load.finish()?;
        Ok(Measured {
            job_s: job.map(|time| time.as_secs_f64()),
            durable_s: durable.map(|time| time.as_secs_f64()),
            copied_bytes: self.bench.terms.size_bytes,
            before,
            during,
            server,
            errors: report.errors + report.mismatches,
            faults: report.faults,
        })
    }

    /// Lets the load run for so long.
    fn pause(&self, time: Duration) -> Result<()> {
        let since = Instant::now();
        while let Some(left) = time.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(LOOK_INTERVAL));
            self.look("without a job")?;
        }
        Ok(())
    }

    /// Waits until the job is there, and says how long it took; `None` when it is given up.
    fn wait(&mut self, began: Instant) -> Result<Option<Duration>> {
        while began.elapsed() < self.bench.terms.give_up {
            if self.copier.is_there(self.case.row, LOOK_INTERVAL)? {
                return Ok(Some(began.elapsed()));
            }
            self.look(&format!("{}, {:.1} s", self.case.row, began.elapsed().as_secs_f64()))?;
        }
        Ok(None)
    }

    fn look(&self, what: &str) -> Result<()> {
        if self.load.is_finished() {
            bail!("the load ended early");
        }
        self.progress.look(self.load.elapsed(), || format!("{what}, {} IOPS", count(self.load.rate_so_far())));
        Ok(())
    }
}
