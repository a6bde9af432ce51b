//! `bench fs`: the command line.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ValueEnum, ValueHint};
use serde::Serialize;

use super::contest::{Contender, JobResults, Kind, Outcome, Rules, hold};
use super::device::Shape;
use super::fixture::LISTING_BYTES;
use super::job::Job;
use super::run::Conditions;
use super::scratch::{Amounts, Scratch, default_parent, file_system};
use super::syscalls::{self, Tool};
use super::table;
use crate::disk::{CpuList, block_size, cpu_list, number_namesakes};
use crate::fio;
use crate::parse;
use crate::progress::Progress;
use crate::server::{Template, cpu_set};

/// Requests in flight over all queues: what a server with one queue has to take.
const IN_FLIGHT_MAX: u32 = 1024;
/// Where distributions put virtiofsd, which is on no path.
const VIRTIOFSD_PATHS: [&str; 3] = ["/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", "/usr/lib/virtiofsd"];

/// Measure a virtio-fs server, or several side by side
///
/// Drives any vhost-user-fs socket as Linux's driver does, with no virtual machine: FUSE requests on split queues,
/// batches with one kick, replies announced by eventfd. Servers are started in turn on the same scratch directory, round
/// after round, and medians and ratios are printed; then the system calls of each are counted in a run of their own.
/// Every reply is checked, and data read and written is compared with the host's files before a run. Exits with 1 when a
/// request failed or was answered wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to measure; may be repeated [default: read-rand]
    #[arg(long, value_enum, value_name = "JOB", conflicts_with = "all")]
    pub job: Vec<Job>,

    /// Measure every job
    #[arg(long)]
    pub all: bool,

    /// Run this server in turn with ours: virtiofsd, virtiofsd=PATH, or a command; may be repeated
    ///
    /// virtiofsd runs without sandbox and seccomp filter, otherwise with its defaults. In a command {socket} and {dir}
    /// are replaced; it is split as a shell would, but run without one, so that what is measured is the server.
    #[arg(long, value_name = "SERVER", value_hint = ValueHint::CommandString)]
    pub against: Vec<String>,

    /// More arguments for virtiofsd, such as '--cache always --thread-pool-size 2'
    #[arg(long, value_name = "ARGS", requires = "against", allow_hyphen_values = true)]
    pub against_args: Option<String>,

    /// Arguments of our `vringd dir`; may be repeated to compare settings
    ///
    /// `--socket {socket} --tag bench` is put before them, and the directory after them unless they mention {dir}.
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

    /// Measure the server that listens on this socket and shares --dir or a directory above it
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, requires = "dir", conflicts_with_all = ["against", "ours", "execution", "alone"])]
    pub socket: Option<PathBuf>,

    /// The directory that the server behind --socket shares [default: --dir]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "socket")]
    pub shared_dir: Option<PathBuf>,

    /// Pid of the server behind --socket, to measure its CPU time and system calls
    #[arg(long, value_name = "PID", requires = "socket")]
    pub server_pid: Option<u32>,

    /// Where the scratch directory is made, which is deleted afterwards [default: the directory for temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    /// Make the scratch directory in memory: in /dev/shm
    #[arg(long, conflicts_with = "dir")]
    pub tmpfs: bool,

    /// Size of a READ or WRITE; suffixes K, M, G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = data_size)]
    pub bs: u32,

    /// Size of the file that is read or written
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::positive_size)]
    pub file_size: u64,

    /// Open that file with O_DIRECT, and let the servers honour it
    #[arg(long)]
    pub direct: bool,

    /// Entries of the large directory
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=9_999_999))]
    pub entries: u32,

    /// Requests in flight on each queue; listings have one
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub depth: u16,

    /// Request queues; a server that has fewer gets as many requests on those
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,

    /// Leave EVENT_IDX out, and use flags to suppress kicks and notifications
    #[arg(long)]
    pub no_event_idx: bool,

    /// Look for replies all the time, instead of sleeping until one is announced
    #[arg(long)]
    pub poll: bool,

    /// How long a run counts, such as 3, 500ms or 2m
    #[arg(long, visible_alias = "time", value_name = "TIME", default_value = "3s", value_parser = parse::positive_duration)]
    pub seconds: Duration,

    /// How long to run before counting
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse::duration)]
    pub ramp: Duration,

    /// How often each contender runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Who counts the servers' system calls
    #[arg(long, value_name = "TOOL", value_enum, default_value_t = Tool::Auto)]
    pub syscalls: Tool,

    /// CPUs for the servers and for fio, such as 0 or 0,2-3
    #[arg(long, value_name = "LIST", value_parser = cpu_list, conflicts_with = "socket")]
    pub server_cpus: Option<CpuList>,

    /// CPUs for the frontend
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    pub load_cpus: Option<CpuList>,

    /// Write every run, the medians and the system calls as JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Side by side with virtiofsd, in memory, everything:
    vringd bench fs --tmpfs --all --against virtiofsd

  How near to the disk are direct reads?
    vringd bench fs --dir /srv --direct --depth 64 --host-fio

  What does a pool cost and bring?
    vringd bench fs --job getattr --ours '' --ours '--execution pool=2'

  A server that is running:
    vringd bench fs --socket /run/d.sock --dir /srv/shared --server-pid 123 --rounds 1";

fn data_size(text: &str) -> Result<u32, String> {
    match block_size(text)? {
        bytes if bytes <= 1 << 20 => Ok(bytes),
        _ => Err("must be at most 1M".into()),
    }
}

/// What was asked for, as JSON keeps it.
#[derive(Debug, Serialize)]
struct Asked<'a> {
    jobs: &'a [Job],
    block_bytes: u32,
    file_bytes: u64,
    direct: bool,
    entries: u32,
    depth: u16,
    queues: u16,
    event_idx: bool,
    poll: bool,
    seconds: f64,
    ramp_seconds: f64,
    rounds: u32,
    file_system: &'a str,
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
        let in_flight = u32::from(self.depth) * u32::from(self.queues);
        if in_flight > IN_FLIGHT_MAX {
            bail!("--depth {} on --queues {}: at most {IN_FLIGHT_MAX} requests in flight", self.depth, self.queues);
        }
        if self.file_size < u64::from(self.bs) || !self.file_size.is_multiple_of(8) {
            bail!("--file-size {}: must be a multiple of 8 and at least --bs", self.file_size);
        }
        Ok(())
    }

    fn contenders(&self, vringd: &Path) -> Result<Vec<Contender>> {
        if let Some(socket) = &self.socket {
            let kind = Kind::Running(socket.clone(), self.server_pid);
            return Ok(vec![Contender { name: socket.display().to_string(), kind }]);
        }
        let mut contenders = Vec::new();
        let default = [String::new()];
        let ours: &[String] = if self.ours.is_empty() { &default } else { &self.ours };
        for arguments in ours.iter().filter(|_| !self.alone) {
            let name = format!("vringd {arguments}").trim_end().to_owned();
            contenders.push(Contender { name, kind: Kind::Server(self.our_command(vringd, arguments)?) });
        }
        for peer in &self.against {
            let template = self.peer_command(peer)?;
            contenders.push(Contender { name: template.program().to_owned(), kind: Kind::Server(template) });
        }
        if self.host_fio {
            let options =
                fio::Options { direct: self.direct, extra: Vec::new(), cpus: cpus(self.server_cpus.as_ref()).to_vec() };
            contenders.push(Contender { name: "fio".into(), kind: Kind::Fio(options) });
        }
        if contenders.is_empty() {
            bail!("nothing to measure: --alone needs --against SERVER or --host-fio");
        }
        number_namesakes(contenders.iter_mut().map(|contender| &mut contender.name));
        Ok(contenders)
    }

    /// The command line of our server: no sandbox and no seccomp filter, as its peer.
    fn our_command(&self, vringd: &Path, arguments: &str) -> Result<Template> {
        let own = Template::parse("--ours", arguments)?;
        let mut words = vec![vringd.to_string_lossy().into_owned(), "dir".into()];
        if !own.mentions("socket") {
            words.extend(["--socket", "{socket}", "--tag", "bench"].map(String::from));
        }
        words.extend(["--sandbox", "none", "--seccomp", "none"].map(String::from));
        if self.queues > 1 {
            words.extend(["--queues".into(), self.queues.to_string()]);
        }
        if let Some(execution) = &self.execution {
            words.extend(["--execution".into(), execution.clone()]);
        }
        words.extend(self.direct.then(|| "--allow-direct-io".into()));
        words.extend(shlex::split(arguments).unwrap_or_default());
        words.extend((!own.mentions("dir")).then(|| "{dir}".into()));
        Ok(Template::from_words(words))
    }

    fn peer_command(&self, peer: &str) -> Result<Template> {
        let program = match peer.strip_prefix("virtiofsd") {
            Some("") => find_virtiofsd(),
            Some(rest) if rest.starts_with('=') => rest[1..].to_owned(),
            _ => {
                let template = Template::parse("--against", peer)?;
                if !template.mentions("socket") || !template.mentions("dir") {
                    bail!("--against {peer:?}: must be virtiofsd, virtiofsd=PATH, or mention {{socket}} and {{dir}}");
                }
                return Ok(template);
            }
        };
        let mut words = vec![program];
        words.extend(["--socket-path", "{socket}", "--shared-dir", "{dir}"].map(String::from));
        words.extend(["--sandbox=none", "--seccomp=none", "--log-level=error"].map(String::from));
        words.extend(self.direct.then(|| "--allow-direct-io".into()));
        let more = self.against_args.as_deref().unwrap_or("");
        words.extend(shlex::split(more).with_context(|| format!("--against-args {more:?}: a quote is not closed"))?);
        Ok(Template::from_words(words))
    }
}

fn find_virtiofsd() -> String {
    let found = VIRTIOFSD_PATHS.into_iter().find(|path| Path::new(path).exists());
    found.unwrap_or("virtiofsd").to_owned()
}

fn cpus(list: Option<&CpuList>) -> &[usize] {
    list.map_or(&[], |list| &list.0)
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// An option does not fit, the scratch directory cannot be made, or a result cannot be written. A server that fails is a
/// result.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    args.check()?;
    let contenders = args.contenders(vringd)?;
    let jobs = args.jobs();
    let tool = syscalls::choose(args.syscalls)?;
    if let Some(list) = &args.load_cpus {
        // Threads that are started later inherit it; servers are pinned by themselves.
        rustix::thread::sched_setaffinity(None, &cpu_set(&list.0))
            .with_context(|| format!("--load-cpus: cannot run on CPUs {:?}", list.0))?;
    }
    let parent = args.dir.clone().unwrap_or_else(|| default_parent(args.tmpfs));
    let amounts = Amounts { jobs: &jobs, file_bytes: args.file_size, entries: args.entries };
    let scratch = Scratch::make(&parent, &amounts)?;
    let base = match &args.socket {
        Some(_) => below(args.shared_dir.as_deref().unwrap_or(&parent), scratch.path())?,
        None => PathBuf::new(),
    };
    let rules = Rules {
        jobs: &jobs,
        shape: Shape {
            queues: args.queues,
            depth: args.depth,
            data_bytes: LISTING_BYTES.max(args.bs as usize),
            event_idx: !args.no_event_idx,
        },
        conditions: Conditions { ramp: args.ramp, time: args.seconds, poll: args.poll },
        rounds: args.rounds,
        block_bytes: args.bs,
        direct: args.direct,
        entries: args.entries,
        scratch: &scratch,
        base: &base,
        server_cpus: cpus(args.server_cpus.as_ref()),
        tool,
    };
    let progress = Progress::new(jobs.len() as u64 * contenders.len() as u64 * u64::from(args.rounds), false);
    let outcome = hold(&contenders, &rules, &progress)?;
    drop(progress);
    let file_system = file_system(scratch.path());
    let asked = args.asked(&jobs, &file_system);
    write(args, &asked, &outcome)?;
    let is_clean = outcome.jobs.iter().all(JobResults::is_clean);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The path of `inner`, relative to `outer`.
fn below(outer: &Path, inner: &Path) -> Result<PathBuf> {
    let (outer, inner) = (fs::canonicalize(outer)?, fs::canonicalize(inner)?);
    let path = inner.strip_prefix(&outer);
    Ok(path.with_context(|| format!("--dir: {} is not in {}", inner.display(), outer.display()))?.to_owned())
}

impl Args {
    fn asked<'a>(&self, jobs: &'a [Job], file_system: &'a str) -> Asked<'a> {
        Asked {
            jobs,
            block_bytes: self.bs,
            file_bytes: self.file_size,
            direct: self.direct,
            entries: self.entries,
            depth: self.depth,
            queues: self.queues,
            event_idx: !self.no_event_idx,
            poll: self.poll,
            seconds: self.seconds.as_secs_f64(),
            ramp_seconds: self.ramp.as_secs_f64(),
            rounds: self.rounds,
            file_system,
        }
    }
}

impl Asked<'_> {
    fn describe(&self) -> String {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let mut words = format!(
            "depth {}, {} queue{}, {} of {}{}, on {}, {} round{}",
            self.depth,
            self.queues,
            plural(self.queues.into()),
            parse::show_size(u64::from(self.block_bytes)),
            parse::show_size(self.file_bytes),
            if self.direct { " direct" } else { "" },
            self.file_system,
            self.rounds,
            plural(self.rounds.into()),
        );
        for (is_set, word) in [(self.poll, ", polling"), (!self.event_idx, ", without EVENT_IDX")] {
            words += if is_set { word } else { "" };
        }
        words
    }
}

fn write(args: &Args, asked: &Asked<'_>, outcome: &Outcome) -> Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        spec: &'a Asked<'a>,
        #[serde(flatten)]
        outcome: &'a Outcome,
    }
    let json_only = args.json.as_deref() == Some(Path::new("-"));
    if !json_only {
        println!("{}\n", asked.describe());
        for (name, mounted) in outcome.servers.iter().filter(|(_, mounted)| mounted.queues != usize::from(args.queues))
        {
            println!("{name} has fewer queues: depth {} on {}\n", mounted.depth, mounted.queues);
        }
        println!("{}", table::render(&outcome.jobs));
    }
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(&Document { spec: asked, outcome })? + "\n";
    if json_only {
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
    } else {
        fs::write(path, text).with_context(|| format!("--json {}: cannot write", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, String> {
        let words = shlex::split(line).unwrap();
        Cli::try_parse_from(std::iter::once("bench".into()).chain(words))
            .map(|cli| cli.args)
            .map_err(|error| error.to_string())
    }

    fn commands(line: &str) -> Vec<(String, String)> {
        let contenders = args(line).unwrap().contenders(Path::new("/v")).unwrap();
        let words = |kind: &Kind| match kind {
            Kind::Server(template) => {
                template.replace(&[("socket", Some(Path::new("S"))), ("dir", Some(Path::new("D")))]).join(" ")
            }
            other => format!("{other:?}"),
        };
        contenders.iter().map(|contender| (contender.name.clone(), words(&contender.kind))).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn servers_get_their_socket_and_directory() {
        let ours = "/v dir --socket S --tag bench --sandbox none --seccomp none";
        assert_eq!(commands(""), [("vringd".into(), format!("{ours} D"))]);
        assert_eq!(
            commands("--queues 2 --execution uring --direct")[0].1,
            format!("{ours} --queues 2 --execution uring --allow-direct-io D")
        );
        let two =
            commands("--ours '' --ours '--cache never' --against virtiofsd=/x/virtiofsd --against-args '--xattr'");
        assert_eq!(two[1], ("vringd --cache never".into(), format!("{ours} --cache never D")));
        let peer =
            "/x/virtiofsd --socket-path S --shared-dir D --sandbox=none --seccomp=none --log-level=error --xattr";
        assert_eq!(two[2], ("virtiofsd".into(), peer.into()));
        let other = commands("--alone --against '/b/peer -s {socket} {dir}' --against 'peer {socket} {dir}'");
        assert_eq!(other, [("peer".into(), "/b/peer -s S D".into()), ("peer#2".into(), "peer S D".into())]);
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
        ] {
            assert!(checked(line).contains(option), "{line}: {}", checked(line));
        }
        let contenders = |line: &str| args(line).unwrap().contenders(Path::new("v")).unwrap_err().to_string();
        assert!(contenders("--against 'peer {socket}'").contains("{dir}"));
        assert!(contenders("--alone").contains("--against"));
    }

    #[test]
    fn jobs_run_once_each() {
        let jobs = |line: &str| args(line).unwrap().jobs();
        assert_eq!(jobs(""), [Job::ReadRand]);
        assert_eq!(jobs("--job tree --job getattr --job tree"), [Job::Tree, Job::Getattr]);
        assert_eq!(jobs("--all").len(), Job::value_variants().len());
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
