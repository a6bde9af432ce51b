//! `bench disk`: the command line of the load generator.

mod contender;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueHint;
use serde::Serialize;
use values::Lun;

use crate::args::{Cpus, Json, number_namesakes, split, spoken, tell_protocol};
use crate::contest::{Results, hold};
use crate::frontend::{Load, Protocol, Spec};
use crate::image::{Image, MakeImage};
use crate::progress::Progress;
use crate::server::{Template, sockets};
use crate::words::count;
use crate::{fio, parse, report};
pub(crate) use contender::{Contender, Kind, Rules};

/// How long a run counts when neither --time nor --ops is given.
const TIME_DEFAULT: Duration = Duration::from_secs(5);

/// Measure a server of disks over vhost-user or NBD, or several side by side
///
/// Drives any vhost-user-blk socket through libblkio, with no virtual machine; with --protocol nbd any NBD server on a unix
/// socket, one connection a queue; and with --protocol scsi a disk of any vhost-user-scsi device. Either --socket names a
/// server that is running already, or --against and --host-fio name peers: then our own server and each peer are started in
/// turn on the same image, round after round, and medians and ratios are printed. Exits with 1 when a request failed or
/// delivered wrong data.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure the server that listens on this socket
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with_all = ["against", "host_fio", "ours", "alone"])]
    pub socket: Option<PathBuf>,

    /// Run this server in turn with ours; {socket} and {image} are replaced; may be repeated
    ///
    /// Written PROTOCOL:COMMAND it speaks that protocol, otherwise what ours does, and the command `vringd` is our own server;
    /// so `--protocol scsi --against blk:vringd` compares our two devices. Split as a shell would, but run without one, so
    /// that what is measured is the server.
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub against: Vec<String>,

    /// Run fio in turn too: io_uring on the image itself, with no VM; needs --image or --make-image
    #[arg(long)]
    pub host_fio: bool,

    /// More arguments for --host-fio's fio, such as '--iodepth_batch=16'
    #[arg(long, value_name = "ARGS", requires = "host_fio", allow_hyphen_values = true)]
    pub fio_args: Option<String>,

    /// Arguments of our `vringd disk`, or `vringd scsi`; {image} is replaced; may be repeated to compare settings
    ///
    /// `--socket {socket}`, or `--listen unix:{socket}` with --protocol nbd, is put before them unless they mention
    /// {socket}; without {image} the image is put after them, unless there is none: as the disk --lun of `vringd scsi`.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    pub ours: Vec<String>,

    /// Measure the peers alone, without our server
    #[arg(long, conflicts_with = "ours")]
    pub alone: bool,

    /// Image for the servers; WRITING LOADS OVERWRITE IT
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with_all = ["make_image", "socket"])]
    pub image: Option<PathBuf>,

    /// Lay out an image full of data in a directory, and delete it afterwards; such as 1G@/dev/shm
    #[arg(long, value_name = "SIZE@DIR", conflicts_with = "socket")]
    pub make_image: Option<MakeImage>,

    /// How often each contender runs
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "socket", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// What --host-fio's fio does: 1 goes around the page cache, 0 uses it; choose what the servers do
    #[arg(long, value_name = "0|1", default_value_t = 0, requires = "host_fio", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub direct: u8,

    #[command(flatten)]
    cpus: Cpus,

    #[command(flatten)]
    load: Spec,

    /// Let each server run once more, on so many queues
    ///
    /// So that what a second queue and a second worker bring is measured in turns: --queues 2 --also-queues 1.
    #[arg(long, value_name = "N", conflicts_with = "socket", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub also_queues: Option<u16>,

    /// After each run stay connected for this long without a request, and count the server's wake-ups
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    pub idle: Option<Duration>,

    #[command(flatten)]
    json: Json,
}

const EXAMPLES: &str = "\
Examples:
  A server that is running:
    vringd bench disk --socket /run/d.sock --rw randwrite --time 10

  Is the data right, and how long does a flush take?
    vringd bench disk --socket /run/d.sock --rw randrw --verify --flush-every 64

  Eight writers of whom each waits until its write is durable:
    vringd bench disk --socket /run/d.sock --rw randwrite --sync --depth 8

  Side by side with qemu-storage-daemon and with fio on the file itself:
    vringd bench disk --make-image 1G@/dev/shm --host-fio --against 'qemu-storage-daemon
      --blockdev driver=file,node-name=f,filename={image},aio=io_uring
      --blockdev driver=raw,node-name=d,file=f
      --export type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={socket},writable=on'

  What does SCSI cost, and a reservation?
    vringd bench disk --protocol scsi --reserve --make-image 1G@/dev/shm --against blk:vringd

  What does a worker for each queue bring, against one for both, and against one queue alone?
    vringd bench disk --protocol scsi --make-image 1G@/dev/shm --queues 2 --also-queues 1
      --ours '--workers per-queue' --ours '--workers one'

  The same over NBD, beside qemu-nbd; more than 16 connections need --ours '--queues N' and -e N:
    vringd bench disk --protocol nbd --make-image 1G@/dev/shm --depth 16
      --against 'qemu-nbd -k {socket} -f raw -t -e 16 --cache=writeback --aio=threads {image}'";

impl Args {
    fn spec(&self) -> Result<Spec> {
        let time = self.load.time.or(self.load.ops.is_none().then_some(TIME_DEFAULT));
        let spec = Spec { time, ..self.load.clone() };
        for queues in self.queues() {
            Spec { queues, ..spec.clone() }.check()?;
        }
        if self.socket.is_some() {
            self.refuse_idle_options(spec.protocol == Protocol::Scsi)?;
        }
        if self.socket.is_some() && self.idle.is_some() && spec.server_pid.is_none() {
            bail!("--idle: give --server-pid PID too, to say whose wake-ups to count");
        }
        Ok(spec)
    }

    /// What is meant for SCSI devices means nothing where there is none.
    fn refuse_idle_options(&self, has_scsi: bool) -> Result<()> {
        let given = [("--lun", self.load.lun.is_some()), ("--reserve", self.load.reserve)];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !has_scsi => {
                bail!(
                    "{option}: is for SCSI devices, and no server here is one; give --protocol scsi, or --against scsi:COMMAND"
                )
            }
            _ => Ok(()),
        }
    }

    /// Whether our server as it is takes part, and nobody else.
    fn is_of_ours_alone(&self) -> bool {
        self.against.is_empty() && self.ours.is_empty() && !self.host_fio && !self.alone
    }

    /// How many queues servers are driven on, each number in a run of its own.
    fn queues(&self) -> impl Iterator<Item = u16> {
        let other = self.also_queues.filter(|queues| *queues != self.load.queues);
        [self.load.queues].into_iter().chain(other)
    }

    fn contenders(&self, vringd: &Path, has_image: bool) -> Result<Vec<Contender>> {
        let mut servers = Vec::new();
        let default = [String::new()];
        let ours: &[String] = if self.ours.is_empty() { &default } else { &self.ours };
        for arguments in ours.iter().filter(|_| !self.alone) {
            let name = format!("vringd {arguments}").trim_end().to_owned();
            servers.push((
                name,
                self.load.protocol,
                self.our_command(self.load.protocol, vringd, arguments, has_image)?,
            ));
        }
        for server in &self.against {
            servers.push(self.peer(server, vringd, has_image)?);
        }
        let protocols = servers.iter().map(|(_, protocol, _)| *protocol);
        let are_several = protocols.clone().zip(protocols.clone().skip(1)).any(|(one, other)| one != other);
        self.refuse_idle_options(protocols.clone().any(|protocol| protocol == Protocol::Scsi))?;
        let mut contenders = Vec::new();
        for (mut name, protocol, template) in servers {
            if are_several {
                tell_protocol(&mut name, protocol);
            }
            let is_reserved_too = self.load.reserve && protocol == Protocol::Scsi;
            for (also, queues) in self.queues().enumerate() {
                let name = if also == 0 { name.clone() } else { format!("{name}, {}", ways(queues, protocol)) };
                let kind = |reserve| Kind::Server { template: template.clone(), protocol, reserve, queues };
                contenders.push(Contender { name: name.clone(), kind: kind(false) });
                if is_reserved_too {
                    contenders.push(Contender { name: format!("{name}, reserved"), kind: kind(true) });
                }
            }
        }
        if self.host_fio {
            if !has_image {
                bail!("--host-fio: needs a file to run on; give --image PATH or --make-image SIZE@DIR");
            }
            contenders.push(Contender { name: "fio".into(), kind: Kind::Fio(self.fio()?) });
        }
        number_namesakes(contenders.iter_mut().map(|contender| &mut contender.name));
        Ok(contenders)
    }

    /// A server of `--against`: its name, what it speaks, and how it is started.
    fn peer(&self, server: &str, vringd: &Path, has_image: bool) -> Result<(String, Protocol, Template)> {
        let (asked, command) = spoken(server);
        let protocol = asked.unwrap_or(self.load.protocol);
        if command == "vringd" {
            return Ok((command.to_owned(), protocol, self.our_command(protocol, vringd, "", has_image)?));
        }
        let template = Template::parse("--against", command)?;
        if !template.mentions("socket") {
            bail!("--against {server:?}: does not mention {{socket}}, where the server has to listen");
        }
        if template.mentions("image") && !has_image {
            bail!("--against {server:?}: mentions {{image}}; give --image PATH or --make-image SIZE@DIR");
        }
        Ok((template.program().to_owned(), protocol, template))
    }

    /// The command line of our server that speaks `protocol`.
    fn our_command(&self, protocol: Protocol, vringd: &Path, arguments: &str, has_image: bool) -> Result<Template> {
        our_command((protocol, self.load.lun.unwrap_or_default()), vringd, arguments, has_image)
    }

    fn fio(&self) -> Result<fio::Host> {
        let extra = split("--fio-args", self.fio_args.as_deref().unwrap_or(""))?;
        Ok(fio::Host { direct: self.direct == 1, extra, cpus: self.cpus.servers().to_vec() })
    }
}

/// So many of what a protocol calls one of several ways to the disk.
fn ways(number: u16, protocol: Protocol) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {}{plural}", protocol.queue_word())
}

/// The command line of our server that speaks `protocol`, whose disk on a SCSI device is `lun`.
pub(crate) fn our_command(
    (protocol, lun): (Protocol, Lun),
    vringd: &Path,
    arguments: &str,
    has_image: bool,
) -> Result<Template> {
    let own = Template::parse("--ours", arguments)?;
    let device = if protocol == Protocol::Scsi { "scsi" } else { "disk" };
    let mut words = vec![vringd.to_string_lossy().into_owned(), device.into()];
    if !own.mentions("socket") {
        let place = if protocol.is_device() { ["--socket", "{socket}"] } else { ["--listen", "unix:{socket}"] };
        words.extend(place.map(String::from));
    }
    words.extend(own.words().iter().cloned());
    if has_image && !own.mentions("image") {
        match protocol {
            Protocol::Scsi => words.extend(["--lun".into(), format!("{lun}={{image}}")]),
            Protocol::VhostUser | Protocol::Blk | Protocol::Nbd => words.push("{image}".into()),
        }
    }
    Ok(Template::from_words(words))
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// An option does not fit, a server cannot be started or driven, or a result cannot be written.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    let spec = args.spec()?;
    args.cpus.pin_load()?;
    let is_clean = match &args.socket {
        Some(socket) => run_single(args, &spec, socket)?,
        None => run_contest(args, &spec, vringd)?,
    };
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a run leaves for a program.
#[derive(Serialize)]
struct Document<'a> {
    spec: &'a Spec,
    #[serde(flatten)]
    results: &'a Results,
}

fn run_single(args: &Args, spec: &Spec, socket: &Path) -> Result<bool> {
    let progress = Progress::new(1, 0);
    progress.begin("run", spec.length());
    let measured = contender::measure(Load::start_unknown(socket, spec)?, args.idle.zip(spec.server_pid), &progress)?;
    drop(progress);
    let idle = measured.idle.map(|idle| format!("\n{:16}{} a second", "idle wake-ups", count(idle.wakeups_per_s())));
    let text = format!("{}\n{}{}", report::describe(spec), report::summary(&measured.report), idle.unwrap_or_default());
    let results = Results::alone(socket.display().to_string(), measured);
    args.json.show(|| text, &Document { spec, results: &results })?;
    Ok(results.is_clean())
}

fn run_contest(args: &Args, spec: &Spec, vringd: &Path) -> Result<bool> {
    let has_image = args.image.is_some() || args.make_image.is_some();
    let contenders = args.contenders(vringd, has_image)?;
    if contenders.is_empty() || (args.is_of_ours_alone() && !has_image) {
        bail!("nothing to measure: give --socket PATH, or --against COMMAND, --host-fio or --ours ARGS");
    }
    let progress = Progress::new(u64::from(args.rounds) * contenders.len() as u64, 0);
    let image = match (&args.image, &args.make_image) {
        (Some(path), _) => Some(Image::given(path)?),
        (None, Some(order)) => Some(Image::make(order, |bytes| progress.lay_out(bytes))?),
        (None, None) => None,
    };
    let sockets = sockets()?;
    let rules = Rules {
        spec,
        image: image.as_ref().map(Image::path),
        socket: &sockets.path().join("disk.sock"),
        server_cpus: args.cpus.servers(),
        idle: args.idle,
    };
    let results = hold(&contenders, ("", args.rounds), &progress, |it| it.run(&rules, &progress).map(Some))?;
    drop(progress);
    let text = || format!("{}, {} rounds\n\n{}", report::describe(spec), args.rounds, results.render());
    args.json.show(text, &Document { spec, results: &results })?;
    Ok(results.is_clean())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::{debug_assert, typed};

    fn args(line: &str) -> Result<Args, String> {
        typed(line)
    }

    fn names(line: &str, has_image: bool) -> Vec<String> {
        let contenders = args(line).unwrap().contenders(Path::new("/bin/vringd"), has_image).unwrap();
        contenders.into_iter().map(|contender| contender.name).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        debug_assert::<Args>();
    }

    #[test]
    fn bad_values_name_the_option_in_the_first_line() {
        let cases = [
            ("--bs 1000", "--bs", "must be a multiple of 512 bytes, at most 64M"),
            ("--bs 4x", "--bs", "such as 4K"),
            ("--depth 0", "--depth", "0 is not in 1..=8192"),
            ("--mix 101", "--mix", "101 is not in 0..=100"),
            ("--rw sideways", "--rw", "sideways"),
            ("--protocol iscsi", "--protocol", "iscsi"),
            ("--time 0", "--time", "must be more than 0"),
            ("--ramp soon", "--ramp", "use the suffix ms, s, m or h"),
            ("--size 0", "--size", "must be at least 1 byte"),
            ("--make-image 1G", "--make-image", "such as 1G@/dev/shm"),
            ("--server-cpus 3-1", "--server-cpus", "such as 0,2-3"),
            ("--socket s --against x", "--socket", "cannot be used with"),
            ("--socket s --rounds 3", "--socket", "cannot be used with"),
            ("--socket s --also-queues 1", "--socket", "cannot be used with"),
            ("--also-queues 0", "--also-queues", "0 is not in 1..=256"),
        ];
        for (line, option, hint) in cases {
            let message = args(line).unwrap_err();
            assert!(message.contains(option) && message.contains(hint), "{line}: {message}");
        }
    }

    #[test]
    fn values_that_do_not_fit_together_name_the_option() {
        let spec = |line: &str| args(line).unwrap().spec().map_err(|error| error.to_string());
        assert_eq!(spec("--batch 9 --depth 8").unwrap_err(), "--batch 9: must be 1 to 8");
        assert_eq!(spec("--threads 2").unwrap_err(), "--threads 2: must be 1 to 1");
        assert_eq!(spec("--threads 2 --queues 2 --also-queues 1").unwrap_err(), "--threads 2: must be 1 to 1");
        assert!(spec("--socket s --idle 1").unwrap_err().contains("--server-pid"));
        let contenders = |line: &str| args(line).unwrap().contenders(Path::new("v"), false).unwrap_err().to_string();
        assert!(contenders("--against 'peer {image}'").contains("does not mention {socket}"));
        assert!(contenders("--against 'peer {socket} {image}'").contains("--make-image"));
        assert!(contenders("--host-fio").contains("--image PATH"));
        assert!(contenders("--against 'blk: peer'").contains("\"blk: peer\": does not mention"));
        assert!(contenders("--lun 3").starts_with("--lun: is for SCSI devices"));
        assert!(contenders("--protocol scsi --alone --lun 3 --against blk:vringd").contains("no server here is one"));
        assert!(spec("--socket s --reserve").unwrap_err().starts_with("--reserve: is for SCSI devices"));
        assert!(spec("--socket s --protocol scsi --reserve --lun 1:2").is_ok());
    }

    #[test]
    fn time_ends_a_run_unless_requests_do() {
        let time = |line: &str| args(line).unwrap().spec().unwrap().time;
        assert_eq!(time(""), Some(TIME_DEFAULT));
        assert_eq!(time("--ops 5"), None);
        assert_eq!(time("--ops 5 --time 2"), Some(Duration::from_secs(2)));
    }

    #[test]
    fn our_command_gets_its_socket_and_image() {
        let spoken = |protocol, arguments, has_image| {
            let lun = Lun { target: 0, number: 3 };
            let template = our_command((protocol, lun), Path::new("/v"), arguments, has_image).unwrap();
            template.expand(Path::new("S"), Some(Path::new("I"))).join(" ")
        };
        let words = |arguments, has_image| spoken(Protocol::VhostUser, arguments, has_image);
        assert_eq!(words("", true), "/v disk --socket S I");
        assert_eq!(words("--workers 2", true), "/v disk --socket S --workers 2 I");
        assert_eq!(words("null:1G", false), "/v disk --socket S null:1G");
        assert_eq!(words("--socket {socket} file:{image}", true), "/v disk --socket S file:I");
        assert_eq!(spoken(Protocol::Nbd, "--workers 2", true), "/v disk --listen unix:S --workers 2 I");
        let scsi = |arguments, has_image| spoken(Protocol::Scsi, arguments, has_image);
        assert_eq!(scsi("--workers 2", true), "/v scsi --socket S --workers 2 --lun 3=I");
        assert_eq!(scsi("--lun 0={image}", true), "/v scsi --socket S --lun 0=I");
        assert_eq!(scsi("--lun 0=null:1G", false), "/v scsi --socket S --lun 0=null:1G");
        assert_eq!(scsi("--lun 1=null:1G", true), "/v scsi --socket S --lun 1=null:1G --lun 3=I");
    }

    #[test]
    fn contenders_have_different_names() {
        let line = "--ours '' --ours '--poll off' --against 'q {socket}' --against '/b/q {socket}' --host-fio";
        assert_eq!(names(line, true), ["vringd", "vringd --poll off", "q", "q#2", "fio"]);
        assert_eq!(names("--alone --against 'q {socket}'", false), ["q"]);
        let line =
            "--protocol scsi --reserve --ours '--poll off' --against blk:vringd --against 'vhost-user:q {socket}'";
        let scsi = ["vringd scsi --poll off", "vringd scsi --poll off, reserved"];
        assert_eq!(names(line, true), [scsi[0], scsi[1], "vringd blk", "q vhost-user"]);
    }

    #[test]
    fn servers_run_once_more_on_other_queues() {
        let line = "--protocol scsi --reserve --queues 2 --also-queues 1 --against blk:vringd --host-fio";
        let scsi = ["vringd scsi", "vringd scsi, reserved", "vringd scsi, 1 queue", "vringd scsi, 1 queue, reserved"];
        let others = ["vringd blk", "vringd blk, 1 queue", "fio"];
        assert_eq!(names(line, true), [&scsi[..], &others].concat());
        let contenders = args(line).unwrap().contenders(Path::new("/v"), true).unwrap();
        let queues = contenders.iter().filter_map(|it| match it.kind {
            Kind::Server { queues, .. } => Some(queues),
            Kind::Fio(_) => None,
        });
        assert_eq!(queues.collect::<Vec<_>>(), [2, 2, 1, 1, 2, 1]);
        let nbd = "--protocol nbd --ours '--workers 2' --also-queues 4";
        assert_eq!(names(nbd, true), ["vringd --workers 2", "vringd --workers 2, 4 connections"]);
    }
}
