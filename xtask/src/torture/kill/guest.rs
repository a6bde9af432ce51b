//! Kills under a QEMU guest that reconnects.
//!
//! The guest has a file system on the disk and runs fio with verification on it, over and over, while its server is
//! killed and started again. Afterwards there must be no error in the guest's log, in fio's verdict and in the file
//! system, and what was written before the first kill must be as it was.

use std::fmt;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest::lab::Lab;
use guest::{Device, Kit, Machine, Output, Shell, qemu};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::torture::rng::Rng;
use crate::torture::server::{Server, Setup, Storage};

const IMAGE_BYTES: u64 = 256 << 20;
const QUEUES: u16 = 2;
const RECONNECT_MS: u32 = 50;
/// Stream of the seed; the sessions of the other half have the small numbers.
const STREAM: u64 = 1 << 32;
/// From the first requests that a server has taken to its end; or from its start, once in [`EARLY_KILLS`] kills. The guest
/// takes up to 50 ms to find the next one.
const LIFE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(300);
const EARLY_KILLS: u64 = 5;
/// How long the guest may take to come back.
const RETURN_LIMIT: Duration = Duration::from_secs(60);
/// How long there may be no server at all, once in [`ABSENCES`] kills.
const ABSENCE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(300);
const ABSENCES: u64 = 4;
/// How long the guest may take to get ready, and to end when it is told to.
const GUEST_LIMIT: Duration = Duration::from_secs(180);
/// A whole run may take long; a guest that hangs is found by what it does not do after the last kill.
const SCRIPT_LIMIT: Duration = Duration::from_secs(3 * 3600);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes a file system and starts to use it; then again and again until the host says stop. Directory and file names are
/// the guest crate's: `$job` is what host and guest share.
const LOAD: &str = r#"
mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda
mkdir -p /mnt/disk
mount /dev/vda /mnt/disk
head -c 8388608 /dev/urandom >/mnt/disk/before
sync
sha256sum /mnt/disk/before >/tmp/before.sum
: >"$job/busy"
rounds=0
while [ ! -e "$job/stop" ]; do
	rm -f /mnt/disk/load*
	fio --name=load --directory=/mnt/disk --size=24m --numjobs=2 --rw=randwrite --bsrange=4k-64k \
		--ioengine=libaio --iodepth=16 --direct=1 --fsync=64 --randseed=$((rounds + 1)) \
		--verify=crc32c --verify_backlog=64 --verify_fatal=1 --do_verify=1 \
		--output-format=json --output=/tmp/fio.json || { cat /tmp/fio.json; exit 1; }
	rounds=$((rounds + 1))
	cp /tmp/fio.json "$job/fio-$rounds.json"
done
echo "$rounds"
"#;

/// What is left, once nobody is killed any more.
const VERDICT: &str = r#"
echo 3 >/proc/sys/vm/drop_caches
sha256sum --quiet -c /tmp/before.sum
umount /mnt/disk
fsck.ext4 -f -n /dev/vda
dmesg >/tmp/dmesg
if grep -E 'I/O error|EXT4-fs (error|warning)|JBD2.*[Ee]rror|hung task|blocked for more than|timed out' /tmp/dmesg; then
	exit 7
fi
"#;

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    /// Servers killed.
    kills: u32,
    /// Those among them that had served requests.
    kills_under_load: u32,
    /// Requests that those had taken.
    requests: u64,
    /// Runs of fio, each written and verified.
    fio_runs: u32,
    /// The longest that any request of fio took, in milliseconds: the worst pause and whatever the guest added.
    worst_latency_ms: f64,
    /// From the first kill to the last.
    seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills in {:.0} s, {} of them under load ({} requests), {} verified runs of fio, worst latency \
             {:.0} ms",
            self.kills, self.seconds, self.kills_under_load, self.requests, self.fio_runs, self.worst_latency_ms
        )
    }
}

/// Kills `rounds` servers under one guest. No report: the guest did not come up.
pub(super) fn run(program: &Path, rounds: u32, seed: u64) -> (Option<Report>, Result<()>) {
    match Torture::start(program, seed) {
        Err(error) => (None, Err(error)),
        Ok(mut torture) => {
            let result = torture.run(rounds);
            (Some(torture.report.clone()), result)
        }
    }
}

/// What the guest's thread says.
enum Said {
    /// It has booted; the directory that host and guest share.
    Up(PathBuf),
    /// What the load left, and then the verdict.
    Done(Output),
}

struct Torture {
    report: Report,
    rng: Rng,
    setup: Setup,
    server: Server,
    guest: Receiver<Result<Said>>,
    thread: Option<JoinHandle<()>>,
    /// The guest has done all it had to.
    over: bool,
    share: PathBuf,
    _directory: TempDir,
}

impl Torture {
    fn start(program: &Path, seed: u64) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let image = directory.path().join("disk.img");
        File::create_new(&image)?.set_len(IMAGE_BYTES)?;
        let setup = Setup {
            program: program.to_owned(),
            directory: directory.path().to_owned(),
            storage: Storage::File { image, direct: false, execution: "auto".into() },
            queues: QUEUES,
            workers: QUEUES.to_string(),
            more: Vec::new(),
            environment: Vec::new(),
        };
        let mut server = Server::start(&setup)?;
        // Connecting is the guest's part; this only waits until it can.
        drop(server.connect()?);
        let device = Device::ReconnectingDisk { socket: setup.socket(), queues: QUEUES, again_after_ms: RECONNECT_MS };
        let (say, guest) = mpsc::channel();
        // The lab is held as long as the guest is up.
        let turn = Lab::locate()?.wait_for_turn()?;
        let kit = turn.kit();
        let thread = thread::Builder::new().name("guest".into()).spawn(move || {
            if let Err(error) = drive_guest(&kit, device, &say) {
                // Nobody listens any more if something else went wrong first.
                say.send(Err(error)).ok();
            }
            drop(turn);
        })?;
        eprintln!("torture kill: booting a guest");
        let mut torture = Self {
            report: Report::default(),
            rng: Rng::new(seed, STREAM),
            setup,
            server,
            guest,
            thread: Some(thread),
            over: false,
            share: PathBuf::new(),
            _directory: directory,
        };
        match torture.hear(GUEST_LIMIT)? {
            Said::Up(share) => torture.share = share,
            Said::Done(output) => bail!("the guest ended before it began: {output:?}"),
        }
        torture.wait_until_busy()?;
        Ok(torture)
    }

    fn run(&mut self, rounds: u32) -> Result<()> {
        let start = Instant::now();
        while self.report.kills < rounds {
            self.round().with_context(|| format!("kill {} under the guest", self.report.kills))?;
            self.report.seconds = start.elapsed().as_secs_f64();
            if self.report.kills.is_multiple_of(20) {
                eprintln!("torture kill: {} of {rounds} under the guest", self.report.kills);
            }
        }
        self.end()
    }

    fn round(&mut self) -> Result<()> {
        if !self.rng.once_in(EARLY_KILLS) {
            self.wait_for_requests()?;
        }
        let end = Instant::now() + self.rng.time(LIFE);
        while Instant::now() < end {
            self.check_guest()?;
            thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
        }
        let requests = Server::requests(&self.setup);
        self.server.kill()?;
        self.server.wait_killed()?;
        self.report.kills += 1;
        self.report.kills_under_load += u32::from(requests > 0);
        self.report.requests += requests;
        if self.rng.once_in(ABSENCES) {
            thread::sleep(self.rng.time(ABSENCE));
        }
        self.server = Server::start(&self.setup)?;
        Ok(())
    }

    /// Waits until the guest has found the server and uses it.
    fn wait_for_requests(&mut self) -> Result<()> {
        let end = Instant::now() + RETURN_LIMIT;
        while Server::requests(&self.setup) == 0 {
            self.check_guest()?;
            self.server.check_alive()?;
            ensure!(Instant::now() < end, "the guest asks for nothing within {} s", RETURN_LIMIT.as_secs());
        }
        Ok(())
    }

    /// Lets the guest end and looks at all that it left.
    fn end(&mut self) -> Result<()> {
        File::create(self.share.join("stop"))?;
        let load = self.done("fio")?;
        let last = load.stdout.lines().last().unwrap_or_default();
        self.report.fio_runs = last.parse().with_context(|| format!("the guest counts `{last}` runs of fio"))?;
        for number in 1..=self.report.fio_runs {
            let worst = Fio::read(&self.share.join(format!("fio-{number}.json")))?;
            self.report.worst_latency_ms = self.report.worst_latency_ms.max(worst);
        }
        ensure!(self.report.fio_runs > 0, "fio ran to its end not once: more kills leave it more time");
        self.done("the guest's log, the file system or an old file")?;
        self.over = true;
        self.server.check_alive()
    }

    fn done(&mut self, what: &str) -> Result<Output> {
        match self.hear(GUEST_LIMIT).with_context(|| format!("waiting for {what}"))? {
            Said::Done(output) if output.status == 0 => Ok(output),
            Said::Done(Output { status, stdout, stderr }) => bail!("{what}: status {status}\n{stdout}{stderr}"),
            Said::Up(_) => bail!("the guest has booted twice"),
        }
    }

    /// The next word of the guest.
    fn hear(&mut self, limit: Duration) -> Result<Said> {
        let end = Instant::now() + limit;
        loop {
            self.server.check_alive()?;
            match self.guest.recv_timeout(Duration::from_millis(100)) {
                Ok(said) => return said,
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the guest's thread has ended"),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    ensure!(Instant::now() < end, "the guest says nothing within {} s", limit.as_secs());
                }
            }
        }
    }

    /// Fails if the guest has ended although nobody told it to.
    fn check_guest(&mut self) -> Result<()> {
        match self.guest.try_recv() {
            Err(mpsc::TryRecvError::Empty) => Ok(()),
            Err(mpsc::TryRecvError::Disconnected) => Err(anyhow!("the guest's thread has ended")),
            Ok(Err(error)) => Err(error),
            Ok(Ok(Said::Done(Output { status, stdout, stderr }))) => {
                bail!("fio ended with status {status}:\n{stdout}{stderr}")
            }
            Ok(Ok(Said::Up(_))) => bail!("the guest has booted twice"),
        }
    }

    fn wait_until_busy(&mut self) -> Result<()> {
        let end = Instant::now() + GUEST_LIMIT;
        while !self.share.join("busy").exists() {
            self.check_guest()?;
            ensure!(Instant::now() < end, "the guest makes no file system within {} s", GUEST_LIMIT.as_secs());
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Torture {
    fn drop(&mut self) {
        if !self.over {
            // Else its thread would wait for the guest's script. Nothing of this process waits for a guest after this.
            guest::interrupt::request();
        }
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The guest's thread: it dies with its guest, and its guest with it.
fn drive_guest(kit: &Kit, device: Device, say: &Sender<Result<Said>>) -> Result<()> {
    let machine = Machine { processors: QUEUES.into(), ..Machine::default() };
    let mut guest = qemu::boot(kit, &machine, &[device])?;
    say.send(Ok(Said::Up(guest.share().to_owned())))?;
    for script in [LOAD, VERDICT] {
        let output = guest.run(script, SCRIPT_LIMIT)?;
        let failed = output.status != 0;
        say.send(Ok(Said::Done(output)))?;
        if failed {
            return Ok(());
        }
    }
    Box::new(guest).end()
}

/// What of fio's report is read.
#[derive(Deserialize)]
struct Fio {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    max: f64,
}

impl Fio {
    /// The longest that a request took, in milliseconds.
    fn read(path: &Path) -> Result<f64> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // What fio has to say otherwise stands before the document.
        let document = text.find('{').and_then(|at| text.get(at..)).unwrap_or(&text);
        let fio: Fio = serde_json::from_str(document).context("fio's report")?;
        ensure!(fio.jobs.iter().all(|job| job.error == 0), "fio reports an error: {text}");
        let latencies = fio.jobs.iter().flat_map(|job| [job.read.lat_ns.max, job.write.lat_ns.max]);
        Ok(latencies.fold(0.0, f64::max) / 1e6)
    }
}
