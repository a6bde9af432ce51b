//! Two servers with a guest each, and every job in turns.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::usage::Sample;
use serde_json::Value;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer, Program};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::{Guest, Kernel, Machine};

use crate::Arguments;
use crate::jobs::{self, Job};
use crate::report::{Results, Run, Series};

/// Twice what the files take, so that how a guest reclaims memory does not decide.
const GUEST_MEBIBYTES_BESIDE_FILES: u32 = 768;
const START_LIMIT: Duration = Duration::from_secs(60);
/// On top of a job's own time: what it has written goes to disk.
const JOB_SLACK: Duration = Duration::from_secs(240);

/// Runs `job-NAME` files of the shared directory until there is `over`. Caches are dropped
/// before each, and it waits until the host says `go`.
const SCRIPT: &str = "touch $job/ready
     while :; do
         until [ -e $job/go ]; do [ ! -e $job/over ] || break 2; sleep 0.2; done
         rm $job/go
         sync
         echo 3 >/proc/sys/vm/drop_caches
         touch $job/begun
         if fio --output-format=json --output=$job/result $job/fio.job; then touch $job/done; else touch $job/failed; fi
     done";

/// One server and its guest.
struct Side {
    server: DirectoryServer,
    guest: Guest,
    // Outlives its server.
    _directory: TempDir,
}

/// Runs `jobs` on both servers and returns what they did.
pub(crate) fn run(arguments: &Arguments, jobs: &[Job]) -> Result<Results> {
    let lab = Lab::take_turn();
    let ours = if arguments.equals { Program::Virtiofsd } else { Program::Vringd };
    let ours_arguments = if arguments.equals { &arguments.theirs } else { &arguments.ours };
    let mut sides = [
        Side::start(&lab, arguments, ours, ours_arguments)?,
        Side::start(&lab, arguments, Program::Virtiofsd, &arguments.theirs)?,
    ];
    let mut series: Vec<Series> = jobs.iter().map(|job| Series::new(job.name())).collect();
    for round in 0..arguments.rounds {
        for (job, series) in jobs.iter().zip(&mut series) {
            // Who is first changes from round to round.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let run = sides[side].run(job, arguments).with_context(|| job.name())?;
                series.push(side, run);
            }
            eprintln!("round {} of {}: {}", round + 1, arguments.rounds, series.last());
        }
    }
    for side in sides {
        side.end()?;
    }
    Ok(Results::new(arguments.equals, series))
}

impl Side {
    fn start(lab: &Lab, arguments: &Arguments, program: Program, more: &[String]) -> Result<Self> {
        let directory = match &arguments.dir {
            Some(place) => TempDir::with_prefix_in("fs-jobs-", place),
            None => TempDir::with_prefix("fs-jobs-"),
        }?;
        for number in 1..=jobs::FILES {
            lay_out(&directory.path().join(jobs::file(number)), arguments.size)?;
        }
        let mut served = Directory::new(directory.path()).cache(arguments.cache);
        if program == Program::Vringd && arguments.processors > 1 {
            served.queues = u16::try_from(arguments.processors).ok();
        }
        served.options = more.to_vec();
        let server = DirectoryServer::start_as(lab, program, &served)?;
        let kernel = if arguments.processors == 1 { Kernel::Debian } else { Kernel::Smp(arguments.processors) };
        let memory_mebibytes = 2 * jobs::FILES * arguments.size + GUEST_MEBIBYTES_BESIDE_FILES;
        let mut guest = fs_guest::boot(lab, Machine { kernel, memory_mebibytes }, &server, SCRIPT)?;
        guest.wait_for("ready", START_LIMIT)?;
        Ok(Self { server, guest, _directory: directory })
    }

    fn run(&mut self, job: &Job, arguments: &Arguments) -> Result<Run> {
        let shared = self.guest.shared().to_owned();
        for name in ["begun", "done", "failed", "result"] {
            fs::remove_file(shared.join(name)).or_else(ignore_missing)?;
        }
        fs::write(shared.join("fio.job"), job.description(arguments.size, arguments.seconds))?;
        self.guest.tell("go")?;
        let limit = Duration::from_secs(arguments.seconds.into()) + JOB_SLACK;
        self.guest.wait_for("begun", limit)?;
        let before = Sample::take(self.server.id())?;
        self.guest.wait_for_either("done", "failed", limit)?;
        let usage = Sample::take(self.server.id())?.since(&before);
        let result = fs::read_to_string(shared.join("result")).context("fio leaves no result")?;
        ensure!(!shared.join("failed").exists(), "fio failed in the guest: {result}");
        Run::read(&result, usage.cpu_s())
    }

    fn end(self) -> Result<()> {
        self.guest.tell("over")?;
        let ended = self.guest.wait(START_LIMIT)?;
        ensure!(ended.status == 0, "the guest's script failed:\n{}", ended.console);
        Ok(())
    }
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Writes a file of `mebibytes` with bytes that no file system can compress or leave out.
fn lay_out(path: &Path, mebibytes: u32) -> Result<()> {
    let mut file = File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut piece = Vec::with_capacity(1 << 20);
    for _ in 0..mebibytes {
        piece.clear();
        while piece.len() < 1 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            piece.extend_from_slice(&state.to_le_bytes());
        }
        file.write_all(&piece)?;
    }
    Ok(file.sync_all()?)
}

impl Run {
    /// Reads what fio wrote: all jobs of a group are one there.
    fn read(text: &str, server_cpu_s: f64) -> Result<Self> {
        // fio may write notes in front of the document.
        let start = text.find('{').context("fio's result is a JSON document")?;
        let document: Value = serde_json::from_str(&text[start..]).context("fio's result is a JSON document")?;
        let job = &document["jobs"][0];
        let sum = |field: &str| ["read", "write"].iter().filter_map(|way| job[way][field].as_f64()).sum::<f64>();
        let run = Self { kib_per_s: sum("bw"), requests: sum("total_ios"), server_cpu_s };
        ensure!(run.kib_per_s > 0.0 && run.requests > 0.0, "fio did nothing: {document}");
        ensure!(job["error"].as_i64() == Some(0), "fio met an error: {document}");
        Ok(run)
    }
}
