//! The guest with its databases, and who kills what.

use std::fmt;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use guest::lab::{Lab, Turn};
use guest::{Device, Guest, Machine, Shell, process, qemu};
use serde::Serialize;
use tempfile::TempDir;

use super::boot;
use crate::frontend::Protocol;
use crate::rng::Rng;
use crate::server::{POLL, Served, Server, Setup, WRITE_CACHE};

const QUEUES: u16 = 2;
const RECONNECT_MS: u32 = 50;
/// From the first commit that a server has seen to its end.
const LIFE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(500);
/// As above, before server and guest are killed at once.
const LIFE_TO_CUT: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(3000);
/// One kill in so many comes at any moment, whether the guest has found the server or not.
const EARLY_KILLS: u64 = 5;
/// One kill of both in so many leaves the memory file.
const MEMORY_KEPT: u64 = 4;
/// How long the guest may take for a transaction, once its server is back.
const COMMIT_LIMIT: Duration = Duration::from_secs(90);
const SCRIPT_LIMIT: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(5);

const LOAD: &str = include_str!("load.py");
const VERIFY: &str = include_str!("verify.py");
/// The databases: name, which is part of file names, and journal mode.
const DATABASES: [(&str, &str); 2] = [("ahead", "WAL"), ("rollback", "DELETE")];

/// Directory and file names are the guest crate's: `$job` is what host and guest share. Python comes with fio, which depends
/// on it, and SQLite with Python.
const FORMAT: &str = "mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda\n";
const MOUNT: &str = "mkdir -p /mnt/disk\nmount /dev/vda /mnt/disk\n";
/// Nothing but what storage that goes wrong makes a kernel say.
const LOOK_AT_LOG: &str = r#"
dmesg >/tmp/dmesg
if grep -E 'I/O error|EXT4-fs (error|warning)|JBD2.*[Ee]rror|hung task|blocked for more than|timed out' /tmp/dmesg; then
	exit 7
fi
"#;
const CLOSE: &str = "umount /mnt/disk\nfsck.ext4 -f -n /dev/vda\n";

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    /// Servers killed under a guest that lived on.
    pub(super) kills: u32,
    /// Servers and guests killed at once.
    pub(super) power_cuts: u32,
    /// Those among them that the volume's memory file survived: a guest that crashes together with its server.
    pub(super) memory_kept: u32,
    /// Transactions that the host was told of.
    pub(super) transactions: u64,
    /// Looks at both databases.
    pub(super) verifications: u32,
    pub(super) seconds: f64,
    /// What was lost first; nothing is tried after that.
    pub(super) lost: Option<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.lost.is_none() { "nothing lost" } else { "LOST" };
        write!(
            f,
            "torture database: {verdict}; {} kills of the server under a guest that lived on, {} of both at once ({} of them \
             kept the memory file), {} transactions acknowledged, {} verifications; {:.0} s; seed {}",
            self.kills,
            self.power_cuts,
            self.memory_kept,
            self.transactions,
            self.verifications,
            self.seconds,
            self.seed
        )
    }
}

/// Kills `rounds` servers alone, then `power_rounds` with their guests.
pub(super) fn run(program: &Path, rounds: u32, power_rounds: u32, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    let mut torture = Torture::new(program, report)?;
    let mut result = Ok(());
    if rounds > 0 {
        result = torture.kill_servers(rounds).with_context(|| format!("kill {}", torture.report.kills));
    }
    if power_rounds > 0 && result.is_ok() {
        result = torture.cut_power(power_rounds).with_context(|| format!("power cut {}", torture.report.power_cuts));
    }
    torture.report.transactions = torture.committed.iter().sum();
    torture.report.seconds = start.elapsed().as_secs_f64();
    result
}

struct Torture<'a> {
    report: &'a mut Report,
    rng: Rng,
    setup: Setup,
    volume: PathBuf,
    memory: PathBuf,
    /// The last transaction of each database of which the host was told.
    committed: [u64; DATABASES.len()],
    formatted: bool,
    turn: Turn,
    _directory: TempDir,
    _memory: TempDir,
}

/// A server, and a guest on it.
struct Pair {
    guest: Guest,
    server: Server,
}

impl<'a> Torture<'a> {
    fn new(program: &Path, report: &'a mut Report) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        // What must outlive a server lies on tmpfs.
        let memory_directory = TempDir::with_prefix_in("vringd-torture-", "/dev/shm")?;
        let volume = directory.path().join("disk.vol");
        let memory = memory_directory.path().join("memory");
        // A log that is filled again and again.
        let mut create = Command::new(program);
        create.args(["volume", "create", "--size", "256M", "--log-size", "2M"]).arg(&volume);
        process::run(&mut create)?;
        let setup = Setup {
            program: program.to_owned(),
            directory: directory.path().to_owned(),
            served: Served::Volume {
                volume: volume.clone(),
                image: None,
                memory: memory.clone(),
                dirty_memory: "8M".into(),
            },
            queues: QUEUES,
            workers: QUEUES.to_string(),
            poll: POLL,
            write_cache: WRITE_CACHE,
            protocol: Protocol::Blk,
            environment: Vec::new(),
        };
        let rng = Rng::new(report.seed, 0);
        // The lab is held as long as there are guests.
        let turn = Lab::locate()?.wait_for_place()?;
        Ok(Self {
            report,
            rng,
            setup,
            volume,
            memory,
            committed: [0; DATABASES.len()],
            formatted: false,
            turn,
            _directory: directory,
            _memory: memory_directory,
        })
    }

    /// Server after server dies under one guest.
    fn kill_servers(&mut self, rounds: u32) -> Result<()> {
        let mut pair = self.boot()?;
        self.begin_load(&mut pair)?;
        for kill in 1..=rounds {
            if !self.rng.once_in(EARLY_KILLS) {
                self.wait_for_commits(&mut pair)?;
            }
            thread::sleep(self.rng.time(LIFE));
            pair.server.kill()?;
            pair.server.wait_killed()?;
            self.report.kills += 1;
            pair.server = Server::start(&self.setup)?;
            if kill.is_multiple_of(10) {
                eprintln!("torture database: {kill} of {rounds} servers killed");
            }
        }
        self.wait_for_commits(&mut pair)?;
        self.end_load(&mut pair)?;
        self.verify(&mut pair, "the databases, as the guest remembers them")?;
        script(&mut pair.guest, "umount /mnt/disk\necho 3 >/proc/sys/vm/drop_caches\n", "the file system")?;
        script(&mut pair.guest, MOUNT, "mounting the file system again")?;
        self.verify(&mut pair, "the databases, as the disk holds them")?;
        self.end(pair)
    }

    /// Server and guest die together.
    fn cut_power(&mut self, rounds: u32) -> Result<()> {
        for cut in 1..=rounds {
            let mut pair = self.boot()?;
            self.begin_load(&mut pair)?;
            self.wait_for_commits(&mut pair)?;
            thread::sleep(self.rng.time(LIFE_TO_CUT));
            self.hear(&pair)?;
            pair.server.kill()?;
            drop(pair.guest);
            pair.server.wait_killed()?;
            self.report.power_cuts += 1;
            if self.rng.once_in(MEMORY_KEPT) {
                self.report.memory_kept += 1;
            } else {
                fs::remove_file(&self.memory).context("the volume has no memory file")?;
                boot::ends(&self.volume)?;
            }
            eprintln!("torture database: {cut} of {rounds} power cuts, {:?} transactions", self.committed);
        }
        let pair = self.boot()?;
        self.end(pair)
    }

    /// A server, and a guest that has the file system mounted and has looked at what its databases hold.
    fn boot(&mut self) -> Result<Pair> {
        let mut server = Server::start(&self.setup)?;
        // Connecting is the guest's part; this only waits until it can.
        drop(server.connect()?);
        let device =
            Device::ReconnectingDisk { socket: self.setup.socket(), queues: QUEUES, again_after_ms: RECONNECT_MS };
        let machine = Machine { processors: QUEUES.into(), ..Machine::default() };
        let guest = qemu::boot(&self.turn.kit(), &machine, &[device])?;
        let mut pair = Pair { guest, server };
        fs::write(pair.guest.share().join("load.py"), LOAD)?;
        fs::write(pair.guest.share().join("verify.py"), VERIFY)?;
        if self.formatted {
            script(&mut pair.guest, MOUNT, "mounting the file system")?;
            self.verify(&mut pair, "the databases after a power cut")?;
        } else {
            script(&mut pair.guest, &format!("{FORMAT}{MOUNT}"), "making a file system")?;
            self.formatted = true;
        }
        Ok(pair)
    }

    fn begin_load(&self, pair: &mut Pair) -> Result<()> {
        let mut text = String::new();
        for (name, mode) in DATABASES {
            text.push_str(&format!(
                "{{ python3 \"$job/load.py\" /mnt/disk/{name}.db {mode} \"$job\" {name}; echo $? >\"$job/{name}.ended\"; }} \
                 >\"$job/{name}.said\" 2>&1 &\n"
            ));
        }
        script(&mut pair.guest, &text, "starting the databases")
    }

    /// Hears of the transactions that were committed since.
    fn hear(&mut self, pair: &Pair) -> Result<()> {
        for ((name, _), last) in DATABASES.iter().zip(&mut self.committed) {
            let said = fs::read_to_string(pair.guest.share().join(format!("{name}.committed"))).unwrap_or_default();
            // A line that is being written has no end yet.
            let whole = said.rfind('\n').and_then(|end| said.get(..end)).unwrap_or_default();
            if let Some(line) = whole.lines().last() {
                let number: u64 = line.parse().with_context(|| format!("the guest has committed `{line}`"))?;
                ensure!(number >= *last, "{name}: transaction {number} follows {last}");
                *last = number;
            }
            if pair.guest.share().join(format!("{name}.ended")).exists() {
                let said = fs::read_to_string(pair.guest.share().join(format!("{name}.said"))).unwrap_or_default();
                ensure!(pair.guest.share().join("stop").exists(), "database {name} has ended by itself: {said}");
            }
        }
        Ok(())
    }

    /// Waits until both databases have committed something since.
    fn wait_for_commits(&mut self, pair: &mut Pair) -> Result<()> {
        self.hear(pair)?;
        let before = self.committed;
        let start = Instant::now();
        while self.committed.iter().zip(before).any(|(now, before)| *now == before) {
            ensure!(start.elapsed() < COMMIT_LIMIT, "no transaction is committed within {} s", COMMIT_LIMIT.as_secs());
            thread::sleep(LOOK_EVERY);
            pair.server.check_alive()?;
            self.hear(pair)?;
        }
        Ok(())
    }

    fn end_load(&mut self, pair: &mut Pair) -> Result<()> {
        File::create(pair.guest.share().join("stop"))?;
        let start = Instant::now();
        for (name, _) in DATABASES {
            let ended = pair.guest.share().join(format!("{name}.ended"));
            let status = loop {
                let status = fs::read_to_string(&ended).unwrap_or_default();
                if status.ends_with('\n') {
                    break status;
                }
                ensure!(start.elapsed() < COMMIT_LIMIT, "database {name} does not end");
                pair.server.check_alive()?;
                thread::sleep(LOOK_EVERY);
            };
            let said = fs::read_to_string(pair.guest.share().join(format!("{name}.said"))).unwrap_or_default();
            ensure!(status.trim() == "0", "database {name} ended with status {}: {said}", status.trim());
        }
        self.hear(pair)
    }

    fn verify(&mut self, pair: &mut Pair, what: &str) -> Result<()> {
        for ((name, _), last) in DATABASES.iter().zip(self.committed) {
            script(&mut pair.guest, &format!("python3 \"$job/verify.py\" /mnt/disk/{name}.db {last}\n"), what)?;
        }
        self.report.verifications += 1;
        Ok(())
    }

    /// Ends in good order, and looks at the volume too.
    fn end(&mut self, mut pair: Pair) -> Result<()> {
        script(&mut pair.guest, CLOSE, "the file system")?;
        script(&mut pair.guest, LOOK_AT_LOG, "the guest's log")?;
        Box::new(pair.guest).end()?;
        pair.server.stop()?;
        let mut check = Command::new(&self.setup.program);
        check.args(["volume", "check"]).arg(&self.volume);
        process::run(&mut check)?;
        Ok(())
    }
}

/// Runs a script that must succeed.
fn script(guest: &mut Guest, text: &str, what: &str) -> Result<()> {
    let output = guest.run(text, SCRIPT_LIMIT).with_context(|| what.to_owned())?;
    ensure!(output.status == 0, "{what}: status {}\n{}{}", output.status, output.stdout, output.stderr);
    Ok(())
}
