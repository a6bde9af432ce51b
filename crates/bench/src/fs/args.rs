//! `bench fs`: the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{ValueEnum, ValueHint};
use serde::Serialize;

use super::contest::{Contender, JobResults, Kind, Outcome, Rules, hold};
use super::job::Job;
use super::lane::LISTING_BYTES;
use super::load::Load;
use super::protocol::Protocol;
use super::scratch::{Amounts, Scratch, default_parent};
use super::syscalls::{self, Tool};
use super::table;
use crate::args::{Cpus, Json};
use crate::environment::Mount;
use crate::fs::shape::Shape;
use crate::parse;
use crate::progress::Progress;

/// Requests in flight over all queues: what a server with one queue has to take.
const IN_FLIGHT_MAX: u32 = 1024;
/// Messages of 9P that can be offered: no less than Linux does, and no more than would make buffers a burden.
const MSIZE_MIN: u64 = 4096;
const MSIZE_MAX: u64 = 16 << 20;

/// Measure a server of directories, virtio-fs or 9p, or several side by side
///
/// Drives any vhost-user socket as Linux's driver does, with no virtual machine: FUSE or 9P2000.L requests on split
/// queues, batches with one kick, replies announced by eventfd; and any 9p server on a unix or TCP socket, with tagged
/// requests sent and received as many at a time as there are. Servers are started in turn on the same scratch directory,
/// round after round, and medians and ratios are printed; then the system calls of each are counted in a run of their
/// own. Every reply is checked, and data read and written is compared with the host's files before a run. Exits with 1
/// when a request failed or was answered wrong.
///
/// An operation of a job is what Linux's client does for it in that protocol. So is a look-up one LOOKUP over FUSE, and
/// Twalk, Tgetattr and Tclunk over 9P.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to measure; may be repeated [default: read-rand]
    #[arg(long, value_enum, value_name = "JOB", conflicts_with = "all")]
    pub job: Vec<Job>,

    /// Measure every job
    #[arg(long)]
    pub all: bool,

    /// What our server speaks, or the one behind --socket
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = Protocol::Virtiofs)]
    pub protocol: Protocol,

    /// Run this server in turn with ours: virtiofsd, diod, qemu, vringd, or a command; may be repeated
    ///
    /// Written PROTOCOL:SERVER it speaks that protocol, otherwise what ours does; so `--protocol 9p --against
    /// virtiofs:vringd` compares our own two. virtiofsd runs without sandbox and seccomp filter, diod without
    /// authentication and on a unix socket unless told otherwise, both with their defaults; virtiofsd=PATH, diod=PATH and
    /// qemu=PATH say where they are. In a command {socket} (HOST:PORT over TCP), {port} and {dir} are replaced; it is
    /// split as a shell would, but run without one, so that what is measured is the server.
    ///
    /// qemu is QEMU's own 9p server, which is a part of a virtual machine. The machine that it gets has no guest: its
    /// memory is shared with the frontend, which keeps the same ring in it and tells of requests by QEMU's protocol for
    /// tests (qtest). QEMU reads that from a socket, where under KVM it would read an eventfd; what this costs is measured
    /// and shown, and nothing is subtracted. Since nobody is told of replies there, every contender's are looked for as
    /// with --poll.
    #[arg(long, value_name = "SERVER", value_hint = ValueHint::CommandString)]
    pub against: Vec<String>,

    /// More arguments for virtiofsd, diod or qemu, such as '--cache always --thread-pool-size 2'
    #[arg(long, value_name = "ARGS", requires = "against", allow_hyphen_values = true)]
    pub against_args: Option<String>,

    /// Arguments of our `vringd dir`; may be repeated to compare settings
    ///
    /// Protocol, socket and tag are put before them, and the directory after them unless they mention {dir}.
    #[arg(long, visible_alias = "ours-args", value_name = "ARGS", allow_hyphen_values = true)]
    pub ours: Vec<String>,

    /// Execution of our server, as `vringd dir --execution`
    #[arg(long, value_name = "EXECUTION")]
    pub execution: Option<String>,

    /// Measure the peers alone, without our server
    #[arg(long, conflicts_with_all = ["ours", "execution"])]
    pub alone: bool,

    /// Run fio in turn too, in jobs that read or write: io_uring on the host's file, with no VM
    #[arg(long, conflicts_with = "socket")]
    pub host_fio: bool,

    /// Measure the server that listens on this socket, or HOST:PORT, and shares --dir or a directory above it
    #[arg(long, value_name = "ADDRESS", value_hint = ValueHint::FilePath, requires = "dir", conflicts_with_all = ["against", "ours", "execution", "alone"])]
    pub socket: Option<String>,

    /// The directory that the server behind --socket shares [default: --dir]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "socket")]
    pub shared_dir: Option<PathBuf>,

    /// Name of the tree to attach to over 9P, behind --socket or of a command; {dir} is replaced
    #[arg(long, value_name = "NAME", default_value = "")]
    pub aname: String,

    /// The longest message to offer over 9P; suffixes K, M, G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = message_size)]
    pub msize: u32,

    /// Pid of the server behind --socket, to measure its CPU time and system calls
    #[arg(long, value_name = "PID", requires = "socket")]
    pub server_pid: Option<u32>,

    /// Where the scratch directory is made, which is deleted afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    /// Make the scratch directory in memory: in /dev/shm
    #[arg(long, conflicts_with = "dir")]
    pub tmpfs: bool,

    #[command(flatten)]
    pub(super) load: Load,

    /// Who counts the servers' system calls
    #[arg(long, value_name = "TOOL", value_enum, default_value_t = Tool::Auto)]
    pub syscalls: Tool,

    #[command(flatten)]
    pub(super) cpus: Cpus,

    #[command(flatten)]
    pub(super) json: Json,

    /// The QEMU that is meant by `--against qemu` [default: the one on the path]; no option, but for the program to set.
    #[arg(skip)]
    pub qemu_path: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Side by side with virtiofsd, in memory, everything:
    vringd bench fs --tmpfs --all --against virtiofsd

  How near to the disk are direct reads?
    vringd bench fs --dir /srv --direct --depth 64 --host-fio

  What does a pool cost and bring?
    vringd bench fs --job getattr --ours '' --ours '--execution pool=2'

  9p beside virtio-fs, both ours, and beside diod on a unix socket:
    vringd bench fs --tmpfs --protocol 9p --job read-rand --job write-rand --against virtiofs:vringd
    vringd bench fs --tmpfs --protocol 9p+unix --all --against diod

  9p beside QEMU's own server, one request at a time and sixteen, and with the largest messages of a Linux guest:
    vringd bench fs --tmpfs --protocol 9p --against qemu --depth 1 --job read-rand --job write-rand --job create-stat-unlink
    vringd bench fs --tmpfs --protocol 9p --against qemu --depth 16 --job read-rand
    vringd bench fs --tmpfs --protocol 9p --against qemu --depth 1 --job read-seq --bs 1M --msize 500K

  A server that is running:
    vringd bench fs --socket /run/d.sock --dir /srv/shared --server-pid 123 --rounds 1
    vringd bench fs --protocol 9p+tcp --socket 127.0.0.1:564 --aname /srv --dir /srv --rounds 1";

fn message_size(text: &str) -> Result<u32, String> {
    match parse::size(text)? {
        bytes @ MSIZE_MIN..=MSIZE_MAX => Ok(bytes as u32),
        _ => Err("must be from 4K to 16M".into()),
    }
}

/// What was asked for, as JSON keeps it.
#[derive(Debug, Serialize)]
struct Asked<'a> {
    jobs: &'a [Job],
    protocol: Protocol,
    #[serde(flatten)]
    load: &'a Load,
    file_system: String,
}

impl Args {
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = match (self.all, self.job.is_empty()) {
            (true, _) => Job::value_variants().to_vec(),
            (false, true) => vec![Job::ReadRand],
            (false, false) => self.job.clone(),
        };
        let mut seen = Vec::new();
        jobs.retain(|job| {
            !seen.contains(job) && {
                seen.push(*job);
                true
            }
        });
        jobs
    }

    fn check(&self) -> Result<()> {
        let Load { depth, queues, block_bytes, file_bytes, .. } = self.load;
        if u32::from(depth) * u32::from(queues) > IN_FLIGHT_MAX {
            bail!("--depth {depth} on --queues {queues}: at most {IN_FLIGHT_MAX} requests in flight");
        }
        if file_bytes < u64::from(block_bytes) || !file_bytes.is_multiple_of(8) {
            bail!("--file-size {file_bytes}: must be a multiple of 8 and at least --bs");
        }
        Ok(())
    }

    /// The jobs that are to be measured with all of `contenders`.
    fn jobs_for(&self, contenders: &[Contender]) -> Result<Vec<Job>> {
        let mut jobs = self.jobs();
        let lacks = |job: &Job| contenders.iter().find(|contender| !job.is_in(contender.protocol));
        if self.all {
            jobs.retain(|job| lacks(job).is_none());
        }
        if let Some((job, contender)) = jobs.iter().find_map(|job| lacks(job).map(|contender| (job, contender))) {
            let (job, protocol, name) = (job.name(), contender.protocol, &contender.name);
            bail!("--job {job}: {protocol} has no such request ({name}); readdir lists the same directory in both");
        }
        Ok(jobs)
    }
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// An option does not fit, the scratch directory cannot be made, or a result cannot be written. A server that fails is a
/// result.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    args.check()?;
    let contenders = args.contenders(vringd)?;
    let jobs = args.jobs_for(&contenders)?;
    // The same for all: who sleeps until it is told of replies is woken, which takes time.
    let poll = args.load.poll || contenders.iter().any(|contender| matches!(contender.kind, Kind::Qemu(_)));
    let load = &Load { poll, ..args.load.clone() };
    let tool = syscalls::choose(args.syscalls)?;
    args.cpus.pin_load()?;
    let parent = args.dir.clone().unwrap_or_else(|| default_parent(args.tmpfs));
    let amounts = Amounts { jobs: &jobs, file_bytes: load.file_bytes, entries: load.entries };
    let scratch = Scratch::make(&parent, &amounts)?;
    let base = match &args.socket {
        Some(_) => below(args.shared_dir.as_deref().unwrap_or(&parent), scratch.path())?,
        None => PathBuf::new(),
    };
    let rules = Rules {
        jobs: &jobs,
        shape: Shape {
            queues: load.queues,
            depth: load.depth,
            data_bytes: LISTING_BYTES.max(load.block_bytes as usize),
            event_idx: load.event_idx,
            msize: args.msize,
        },
        load,
        scratch: &scratch,
        base: &base,
        server_cpus: args.cpus.servers(),
        tool,
    };
    let progress = Progress::new(jobs.len() as u64 * contenders.len() as u64 * u64::from(load.rounds), 0);
    let outcome = hold(&contenders, &rules, &progress)?;
    drop(progress);
    let file_system = Mount::of(scratch.path()).map_or_else(|| "an unknown file system".into(), |mount| mount.kind);
    let asked = Asked { jobs: &jobs, protocol: args.protocol, load, file_system };
    let text = || describe(&asked, &outcome);
    args.json.show(text, &Document { spec: &asked, outcome: &outcome })?;
    let is_clean = outcome.jobs.iter().all(JobResults::is_clean);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The path of `inner`, relative to `outer`.
fn below(outer: &Path, inner: &Path) -> Result<PathBuf> {
    let (outer, inner) = (fs::canonicalize(outer)?, fs::canonicalize(inner)?);
    let path = inner.strip_prefix(&outer);
    Ok(path.with_context(|| format!("--dir: {} is not in {}", inner.display(), outer.display()))?.to_owned())
}

/// What a run leaves for a program.
#[derive(Serialize)]
struct Document<'a> {
    spec: &'a Asked<'a>,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// What a run leaves for people.
fn describe(asked: &Asked<'_>, outcome: &Outcome) -> String {
    let mut lines = vec![format!("{}, {}", asked.protocol, asked.load.describe(&asked.file_system)), String::new()];
    for (name, mounted) in &outcome.servers {
        lines.extend(mounted.msize().map(|msize| format!("{name}: msize {msize}")));
        if mounted.queues != usize::from(asked.load.queues) {
            lines.push(format!("{name} has fewer queues: depth {} on {}", mounted.depth, mounted.queues));
        }
        lines.extend(mounted.qtest.map(|cost| table::kick_cost(name, cost)));
    }
    lines.push(table::render(&outcome.jobs));
    lines.join("\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    /// The arguments of a command line.
    pub(crate) fn args(line: &str) -> Result<Args, String> {
        let words = shlex::split(line).unwrap();
        Cli::try_parse_from(std::iter::once("bench".into()).chain(words))
            .map(|cli| cli.args)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn values_that_do_not_fit_name_the_option() {
        let checked =
            |line: &str| args(line).and_then(|args| args.check().map_err(|error| error.to_string())).unwrap_err();
        for (line, option) in [
            ("--bs 2M", "--bs"),
            ("--bs 1000", "--bs"),
            ("--depth 256 --queues 5", "--depth"),
            ("--file-size 1K", "--file-size"),
            ("--socket s", "--dir"),
            ("--all --job getattr", "--all"),
            ("--job fly", "--job"),
            ("--tmpfs --dir d", "--tmpfs"),
            ("--msize 100", "--msize"),
            ("--msize 1G", "--msize"),
            ("--protocol nfs", "--protocol"),
        ] {
            assert!(checked(line).contains(option), "{line}: {}", checked(line));
        }
    }

    #[test]
    fn jobs_run_once_each() {
        let jobs = |line: &str| args(line).unwrap().jobs();
        assert_eq!(jobs(""), [Job::ReadRand]);
        assert_eq!(jobs("--job tree --job getattr --job tree"), [Job::Tree, Job::Getattr]);
        assert_eq!(jobs("--all").len(), Job::value_variants().len());
    }

    #[test]
    fn jobs_are_those_that_everybody_can_do() {
        let jobs = |line: &str| {
            let args = args(line).unwrap();
            args.jobs_for(&args.contenders(Path::new("v")).unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!(jobs("--all").unwrap().len(), Job::value_variants().len());
        assert_eq!(jobs("--all --protocol 9p").unwrap().len(), Job::value_variants().len() - 2);
        assert!(!jobs("--all --against diod").unwrap().contains(&Job::Readdirplus));
        assert_eq!(jobs("--job readdirplus").unwrap(), [Job::Readdirplus]);
        let error = jobs("--job readdirplus --protocol 9p --against virtiofs:vringd").unwrap_err();
        assert!(error.contains("--job readdirplus: 9p has no such request"), "{error}");
    }

    #[test]
    fn a_scratch_directory_must_be_in_what_is_shared() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        assert_eq!(below(outer.path(), &inner).unwrap(), Path::new("a/b"));
        assert!(below(&inner, outer.path()).is_err());
    }
}
