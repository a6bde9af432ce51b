//! One side, once.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::case::{Case, Image, Kind, Side};
use super::figures;
use super::lay_out::Files;
use crate::contest::Measured;
use crate::fio;
use crate::frontend::{Load, Report, Rw, Spec};
use crate::progress::Progress;
use crate::server::{Server, Template, sockets};
use crate::words::count;
use guest::usage::Sample;

/// A volume that has not begun to write back after so long never will.
const WARM_TIME_MAX: Duration = Duration::from_secs(120);
/// How often is looked whether it has.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A volume writes back what is in its memory before it ends.
const STOP_TIME_MAX: Duration = Duration::from_secs(120);

/// Where and how long sides run.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    vringd: &'a Path,
    files: Option<&'a Files>,
    time: Duration,
    ramp: Duration,
    dirty_bytes: u64,
    /// Of the disks in --dir.
    size_bytes: u64,
    scratch: TempDir,
}

impl<'a> Bench<'a> {
    /// A bench; `files` are needed by sides that name them.
    pub(super) fn new(
        vringd: &'a Path,
        files: Option<&'a Files>,
        time: Duration,
        ramp: Duration,
        (size_bytes, dirty_bytes): (u64, u64),
    ) -> Result<Self> {
        Ok(Self { vringd, files, time, ramp, dirty_bytes, size_bytes, scratch: sockets()? })
    }

    /// Runs one side.
    pub(super) fn run(&self, case: &Case, side: &Side, progress: &Progress) -> Result<Measured> {
        progress.begin(side.name, Some(self.ramp + self.time));
        if let Some(files) = self.files {
            match side.image {
                Image::AsItIs => files.settle()?,
                Image::Empty => files.empty(self.vringd, self.size_bytes)?,
            }
        }
        let spec = self.spec(case);
        match &side.kind {
            Kind::Vringd { options, .. } => {
                let template = Template::from_words(self.vringd_words(options)?);
                self.run_server(case, side, &template, &spec, progress)
            }
            Kind::Peer { words } => self.run_server(case, side, &Template::from_words(words.clone()), &spec, progress),
            Kind::Fio { direct } => {
                let host = fio::Host { direct: *direct, extra: Vec::new(), cpus: Vec::new() };
                Ok(fio::run(&spec, &self.files()?.image(), &host)?.into())
            }
        }
    }

    fn spec(&self, case: &Case) -> Spec {
        let spec = Spec { rw: Rw::RandWrite, depth: case.depth, ..Spec::default() };
        if case.row.is_sync() {
            Spec { sync: true, time: Some(self.time), ramp: self.ramp, ..spec }
        } else {
            // Until it is stopped: when the figures begin to count depends on the server.
            spec
        }
    }

    fn files(&self) -> Result<&Files> {
        self.files.context("this row needs files, and none were laid out")
    }

    fn control(&self) -> PathBuf {
        self.scratch.path().join("control")
    }

    fn vringd_words(&self, options: &str) -> Result<Vec<String>> {
        let mut words = vec![self.vringd.to_string_lossy().into_owned()];
        let fixed = ["disk", "--socket", "{socket}", "--control", "{control}", "--queues", "1", "--workers", "1"];
        words.extend(fixed.map(String::from));
        words.extend(shlex::split(options).context("a quote is not closed")?);
        Ok(words)
    }

    fn run_server(
        &self,
        case: &Case,
        side: &Side,
        template: &Template,
        spec: &Spec,
        progress: &Progress,
    ) -> Result<Measured> {
        let socket = self.scratch.path().join("disk.sock");
        let control = self.control();
        // A server that was killed leaves its socket.
        let _absent = std::fs::remove_file(&control);
        let path = |of: fn(&Files) -> PathBuf| self.files.map(of);
        let (image, volume) = (path(Files::image), path(Files::volume));
        let (thin, full, log) = (path(Files::thin), path(Files::full), path(Files::log));
        let words = template.replace(&[
            ("socket", Some(socket.as_path())),
            ("control", Some(control.as_path())),
            ("image", image.as_deref()),
            ("volume", volume.as_deref()),
            ("thin", thin.as_deref()),
            ("full", full.as_deref()),
            ("log", log.as_deref()),
        ]);
        let mut server = Server::start(&words, &socket, &[])?;
        let logs = matches!(side.kind, Kind::Vringd { logs: true, .. });
        let control = logs.then_some(control.as_path());
        let load = server.load(spec)?;
        let measured = if case.row.is_sync() {
            finite(load, control, progress)
        } else {
            let sustained =
                Sustained { time: self.time, ramp: self.ramp, dirty_bytes: self.dirty_bytes, pid: server.pid() };
            sustained.run(load, control, progress)
        };
        let run = measured.map_err(|error| server.blame(error))?;
        server.stop_within(STOP_TIME_MAX);
        Ok(run)
    }
}

/// A load that ends by itself.
fn finite(load: Load, control: Option<&Path>, progress: &Progress) -> Result<Measured> {
    load.wait(|load| progress.look(load.elapsed(), || count(load.rate_so_far())));
    let (report, connection) = load.finish_connected()?;
    let volume = control.map(figures::ask).transpose()?;
    drop(connection);
    Ok(Measured { report, idle: None, volume })
}

/// A load that counts once the server is in the state in which it will stay.
struct Sustained {
    time: Duration,
    ramp: Duration,
    dirty_bytes: u64,
    pid: u32,
}

impl Sustained {
    fn run(&self, mut load: Load, control: Option<&Path>, progress: &Progress) -> Result<Measured> {
        self.warm_up(&load, control, progress)?;
        let began = load.whole_snapshot();
        let before = Sample::take(self.pid)?;
        let since = Instant::now();
        while let Some(left) = self.time.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) {
            if load.is_finished() {
                bail!("the load ended early");
            }
            std::thread::sleep(left.min(LOOK_INTERVAL));
            progress.look(load.elapsed(), || count(load.rate_so_far()));
        }
        let ended = load.whole_snapshot();
        let server = Some(Sample::take(self.pid)?.since(&before));
        let volume = control.map(figures::ask).transpose()?;
        let report = load.finish()?;
        let (ops, seconds) = (ended.ops.saturating_sub(began.ops), ended.seconds - began.seconds);
        let bytes = ended.bytes.saturating_sub(began.bytes);
        let report = Report { seconds, ops, writes: ops, bytes, latency: ended.latency, server, ..report }.with_rates();
        Ok(Measured { report, idle: None, volume })
    }

    /// Until the ramp is over and a volume has written back as much as its memory holds: from then on no write finds room that
    /// was not made.
    fn warm_up(&self, load: &Load, control: Option<&Path>, progress: &Progress) -> Result<()> {
        loop {
            std::thread::sleep(LOOK_INTERVAL);
            progress.look(load.elapsed(), || "warming up".into());
            let is_warm = match control {
                Some(control) => figures::ask(control)?.written_back_bytes >= self.dirty_bytes,
                None => true,
            };
            if is_warm && load.elapsed() >= self.ramp {
                return Ok(());
            }
            if load.is_finished() {
                bail!("the load ended before write-back began");
            }
            if load.elapsed() > WARM_TIME_MAX {
                bail!("the volume has not written its memory back once within {} s", WARM_TIME_MAX.as_secs());
            }
        }
    }
}
