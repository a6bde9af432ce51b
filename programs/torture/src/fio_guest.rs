//! A QEMU guest with a file system on a disk, which runs fio with verification on it, over and over, whatever becomes of the disk's
//! server meanwhile.
//!
//! Afterwards there must be no error in the guest's log, in fio's verdict and in the file system, and what was written at the
//! beginning must be as it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest::lab::Lab;
use guest::{Device, Kit, Machine, Output, Shell, qemu};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::disk::{Disk, Kind};
use super::frontend::Protocol;
use super::server::{POLL, Server, Setup, WRITE_CACHE};

const DISK_BYTES: u64 = 256 << 20;
const QUEUES: u16 = 2;
const RECONNECT_MS: u32 = 50;
/// How long the guest may take to come back.
const RETURN_LIMIT: Duration = Duration::from_secs(60);
/// How long the guest may take to get ready, and to end when it is told to.
const GUEST_LIMIT: Duration = Duration::from_secs(180);
/// A whole run may take long; a guest that hangs is found by what it does not do behind the last round.
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

/// What the guest has done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Verdict {
    /// Runs of fio, each written and verified.
    pub(super) fio_runs: u32,
    /// The longest that any request of fio took, in milliseconds: the worst pause and whatever the guest added.
    pub(super) worst_latency_ms: f64,
}

/// What the guest's thread says.
enum Said {
    /// It has booted; the directory that host and guest share.
    Up(PathBuf),
    /// What the load left, and then the verdict.
    Done(Output),
}

/// The guest, and the server that it uses at the moment.
pub(super) struct FioGuest {
    // Ends before its files do.
    server: Server,
    setup: Setup,
    guest: Receiver<Result<Said>>,
    thread: Option<JoinHandle<()>>,
    /// The guest has done all it had to.
    over: bool,
    share: PathBuf,
    _disk: Disk,
    _directory: TempDir,
}

impl FioGuest {
    /// Boots it on a disk of that kind, and waits until it is at work. `task` is who says so.
    pub(super) fn start(task: &str, program: &Path, kind: Kind) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let disk = Disk::new(kind, program, directory.path(), DISK_BYTES, "auto")?;
        let setup = Setup {
            program: program.to_owned(),
            directory: directory.path().to_owned(),
            served: disk.served(),
            queues: QUEUES,
            workers: QUEUES.to_string(),
            poll: POLL,
            write_cache: WRITE_CACHE,
            protocol: Protocol::Blk,
            environment: Vec::new(),
        };
        let mut server = Server::start(&setup)?;
        // Connecting is the guest's part; this only waits until it can.
        drop(server.connect()?);
        let device = Device::ReconnectingDisk { socket: setup.socket(), queues: QUEUES, again_after_ms: RECONNECT_MS };
        let (say, guest) = mpsc::channel();
        // The lab is held as long as the guest is up.
        let turn = Lab::locate()?.wait_for_place()?;
        let kit = turn.kit();
        let thread = thread::Builder::new().name("guest".into()).spawn(move || {
            if let Err(error) = drive_guest(&kit, device, &say) {
                // Nobody listens any more if something else went wrong first.
                say.send(Err(error)).ok();
            }
            drop(turn);
        })?;
        eprintln!("torture {task}: booting a guest");
        let mut torture = Self {
            server,
            setup,
            guest,
            thread: Some(thread),
            over: false,
            share: PathBuf::new(),
            _disk: disk,
            _directory: directory,
        };
        match torture.hear(GUEST_LIMIT)? {
            Said::Up(share) => torture.share = share,
            Said::Done(output) => bail!("the guest ended before it began: {output:?}"),
        }
        torture.wait_until_busy()?;
        Ok(torture)
    }

    /// The server that it uses.
    pub(super) fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// How that was started, and how another one is.
    pub(super) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Starts another server in the place of one that has ended.
    pub(super) fn serve_again(&mut self) -> Result<()> {
        self.server = Server::start(&self.setup)?;
        Ok(())
    }

    /// Lets it work for a while.
    pub(super) fn work_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.check()?;
            thread::sleep(LOOK_EVERY.min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// Waits until it has found the server and uses it.
    pub(super) fn wait_for_requests(&mut self) -> Result<()> {
        let end = Instant::now() + RETURN_LIMIT;
        while Server::requests(&self.setup) == 0 {
            self.check()?;
            self.server.check_alive()?;
            ensure!(Instant::now() < end, "the guest asks for nothing within {} s", RETURN_LIMIT.as_secs());
        }
        Ok(())
    }

    /// Lets it end and looks at all that it left.
    pub(super) fn end(&mut self) -> Result<Verdict> {
        File::create(self.share.join("stop"))?;
        let load = self.done("fio")?;
        let last = load.stdout.lines().last().unwrap_or_default();
        let fio_runs = last.parse().with_context(|| format!("the guest counts `{last}` runs of fio"))?;
        ensure!(fio_runs > 0, "fio ran to its end not once: more rounds leave it more time");
        let mut verdict = Verdict { fio_runs, worst_latency_ms: 0.0 };
        for number in 1..=fio_runs {
            let worst = Fio::read(&self.share.join(format!("fio-{number}.json")))?;
            verdict.worst_latency_ms = verdict.worst_latency_ms.max(worst);
        }
        self.done("the guest's log, the file system or an old file")?;
        self.over = true;
        self.server.check_alive()?;
        Ok(verdict)
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
    fn check(&mut self) -> Result<()> {
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
            self.check()?;
            ensure!(Instant::now() < end, "the guest makes no file system within {} s", GUEST_LIMIT.as_secs());
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for FioGuest {
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
