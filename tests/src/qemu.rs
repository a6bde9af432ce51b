//! Boots a PC under QEMU's own processor (TCG) on vhost-user devices and runs a script in it.
//!
//! The script reaches the guest as a QEMU firmware file and its exit status comes back as the
//! last line on the serial console.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use guest::qemu::QUIET;
use guest::qemu::add_devices;
use guest::spoiled::{BOOTS_MAX, is_spoiled};
use tempfile::TempDir;

use crate::device::Device;
use crate::lab::Lab;
use crate::process::Group;

/// What the guest writes before the script's exit status.
const STATUS_MARK: &str = "vringd-lab-status:";

/// What it writes before the script runs.
const UP_MARK: &str = "vringd-lab-up";

/// Until then. Three seconds are usual, on a machine that does nothing else.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

const MONITOR_LIMIT: Duration = Duration::from_secs(20);

/// Where a guest's kernel comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BootFrom {
    /// QEMU loads it; the devices are only devices.
    Host,
    /// The same, of a guest that is moved: its kernel fills no page with zeroes, which would have been written for QEMU then,
    /// whatever a device marks.
    HostToMove,
    /// The BIOS loads it from the first disk, which holds the lab's boot image.
    Disk,
}

/// A guest that was started.
#[derive(Debug)]
pub struct Guest {
    process: Group,
    directory: TempDir,
}

/// What a guest left when it ended.
#[derive(Debug)]
pub struct Ended {
    /// The script's exit status.
    pub status: i32,
    /// Everything that was written to the serial console.
    pub console: String,
}

impl Guest {
    /// Boots a guest with two processors and `devices`, each with `queues` (request) queues, and
    /// lets it run `script` with busybox's `sh -eu`. Returns when the script begins.
    pub fn boot(lab: &Lab, from: BootFrom, devices: &[Device], queues: u16, script: &str) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-qemu-")?;
        let path = directory.path().join("script");
        fs::write(&path, script)?;
        let command = command(lab, from, devices, queues, directory.path())?;
        let mut boots = 0;
        loop {
            boots += 1;
            let mut process = Group::start(&command, &directory.path().join("console"))?;
            process
                .wait_until(BOOT_LIMIT, |console| console.contains(UP_MARK) || is_spoiled(console))
                .context("the guest does not boot")?;
            let console = process.output();
            if console.contains(UP_MARK) {
                return Ok(Self { process, directory });
            }
            ensure!(boots < BOOTS_MAX, "the emulator loses a processor's timer again and again:\n{console}");
            eprintln!("the emulator has lost a processor's timer: the guest is booted again");
        }
    }

    /// Starts a guest like that of [`Guest::boot`], which waits for another one's memory from `uri` and goes on with its
    /// script. Its console begins there.
    pub fn incoming(lab: &Lab, devices: &[Device], queues: u16, script: &str, uri: &str) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-qemu-")?;
        fs::write(directory.path().join("script"), script)?;
        // What one that was killed has left there is no sign of this one.
        if let Some(socket) = uri.strip_prefix("unix:").filter(|socket| Path::new(socket).exists()) {
            fs::remove_file(socket)?;
        }
        let mut command = command(lab, BootFrom::HostToMove, devices, queues, directory.path())?;
        command.args(["-incoming", uri]);
        let mut process = Group::start(&command, &directory.path().join("console"))?;
        process.wait_for_sockets(MONITOR_LIMIT, &[directory.path().join("monitor")])?;
        // Whoever connects there is taken for the other QEMU: it is only looked at.
        let end = Instant::now() + MONITOR_LIMIT;
        while let Some(socket) = uri.strip_prefix("unix:").filter(|socket| !is_listened_on(socket)) {
            process.check_alive("QEMU")?;
            ensure!(Instant::now() < end, "QEMU does not listen on {socket}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { process, directory })
    }

    /// Moves the running guest to `uri`, and stops it in the end: not before its console, of which `is_enough` sees what came since most
    /// of its memory was moved, is as wanted. What it changes until then is moved because it is marked.
    ///
    /// # Errors
    /// The answer of QEMU, which does not begin, or whose migration fails: the guest runs on here.
    pub fn migrate(&mut self, uri: &str, limit: Duration, is_enough: impl Fn(&str) -> bool) -> Result<()> {
        /// So little is left when it is held back.
        const LEFT_KIB: u64 = 60 << 10;
        self.monitor("migrate_set_parameter max-bandwidth 64M").with_context(|| self.console())?;
        let answer = self.monitor(&format!("migrate -d {uri}"))?;
        let end = Instant::now() + limit;
        let mut held_back_at = None;
        let mut lifted = false;
        loop {
            self.process.check_alive("QEMU")?;
            let state = self.monitor("info migrate")?;
            match word_behind(&state, "tatus: ") {
                Some("completed") if lifted => {
                    eprintln!("moved with a downtime of {} ms", word_behind(&state, "downtime: ").unwrap_or("unknown"));
                    return Ok(());
                }
                Some("completed") => bail!("it was moved before it did anything: {state}"),
                Some("failed" | "cancelled") => bail!("the migration failed: {state}"),
                None if answer.contains("rror") => bail!("the migration does not begin: {answer}"),
                _ => ensure!(Instant::now() < end, "the migration takes too long: {state}\n{}", self.console()),
            }
            match held_back_at {
                None => {
                    let left_kib = word_behind(&state, "remaining ram: ").and_then(|left| left.parse::<u64>().ok());
                    if left_kib.is_some_and(|left| left > 0 && left < LEFT_KIB) {
                        self.monitor("migrate_set_parameter max-bandwidth 4k")?;
                        held_back_at = Some(self.console().len());
                    }
                }
                Some(at) if !lifted && is_enough(&self.console()[at..]) => {
                    // And now faster than any guest changes its memory.
                    self.monitor("migrate_set_parameter downtime-limit 2000")?;
                    self.monitor("migrate_set_parameter max-bandwidth 100G")?;
                    lifted = true;
                }
                Some(_) => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Begins to move the running guest to `uri`, and gives that up when its console, of which `is_enough` sees what came since, is as
    /// wanted: the guest runs on here.
    pub fn migrate_and_cancel(&mut self, uri: &str, limit: Duration, is_enough: impl Fn(&str) -> bool) -> Result<()> {
        self.begin_to_migrate(uri, limit, is_enough)?;
        self.monitor("migrate_cancel")?;
        self.wait_to_stay(limit, "cancelled")
    }

    /// As [`Self::migrate_and_cancel`], where the one that it moves to dies.
    pub fn migrate_and_lose(
        &mut self,
        target: Self,
        uri: &str,
        limit: Duration,
        is_enough: impl Fn(&str) -> bool,
    ) -> Result<()> {
        self.begin_to_migrate(uri, limit, is_enough)?;
        target.kill();
        self.wait_to_stay(limit, "failed")
    }

    /// Moves the running guest to `uri`, where the devices' states are not taken: it runs on here.
    pub fn migrate_and_be_refused(&mut self, uri: &str, limit: Duration) -> Result<()> {
        // Otherwise nobody tells this side what became of it.
        self.monitor("migrate_set_capability return-path on")?;
        self.monitor("migrate_set_parameter max-bandwidth 100G")?;
        self.monitor("migrate_set_parameter downtime-limit 2000")?;
        self.monitor(&format!("migrate -d {uri}"))?;
        self.wait_to_stay(limit, "failed")?;
        self.monitor("migrate_set_capability return-path off")?;
        Ok(())
    }

    /// So slowly that it does not end.
    fn begin_to_migrate(&mut self, uri: &str, limit: Duration, is_enough: impl Fn(&str) -> bool) -> Result<()> {
        self.monitor("migrate_set_parameter max-bandwidth 4M")?;
        let begun = self.console().len();
        self.monitor(&format!("migrate -d {uri}"))?;
        self.process.wait_until(limit, |console| is_enough(&console[begun..]))
    }

    fn wait_to_stay(&self, limit: Duration, status: &str) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let state = self.monitor("info migrate")?;
            if word_behind(&state, "tatus: ") == Some(status) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the migration is not {status}: {state}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the serial console has shown so far.
    pub fn console(&self) -> String {
        self.process.output()
    }

    /// Waits until the console shows `text`.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        self.wait_until(limit, |console| console.contains(text))
            .with_context(|| format!("waiting for the guest to say `{text}`"))
    }

    /// Waits until its console is as wanted. Fails if the guest ends before, or has not come there within `limit`.
    pub fn wait_until(&mut self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<()> {
        self.process.wait_until(limit, wanted)
    }

    /// Adds a memory module to the running machine; QEMU tells every vhost-user server.
    pub fn add_memory(&self, number: u32, mebibytes: u32) -> Result<()> {
        self.monitor(&format!("object_add memory-backend-memfd,id=more{number},size={mebibytes}M,share=on"))?;
        self.monitor(&format!("device_add pc-dimm,id=module{number},memdev=more{number}"))?;
        Ok(())
    }

    /// Has QEMU's monitor do something, and returns what it says to that.
    fn monitor(&self, command: &str) -> Result<String> {
        const PROMPT: &str = "(qemu) ";
        let mut stream = UnixStream::connect(self.directory.path().join("monitor"))?;
        stream.set_read_timeout(Some(MONITOR_LIMIT))?;
        read_until(&mut stream, PROMPT)?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        let answer = read_until(&mut stream, PROMPT)?;
        ensure!(!answer.contains("Error"), "QEMU's monitor does not take `{command}`: {answer}");
        Ok(answer)
    }

    /// Waits for the end of the guest. After `limit` it is killed and the call fails.
    pub fn wait(mut self, limit: Duration) -> Result<Ended> {
        let exit = self.process.wait(limit)?;
        let console = self.process.output();
        let status = console
            .rsplit_once(STATUS_MARK)
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("the guest ended with {exit} before its script did:\n{console}"))?;
        Ok(Ended { status, console })
    }

    /// Ends the guest as a power cut does.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// Whether connections to a socket are accepted: it is there a moment earlier.
fn is_listened_on(socket: &str) -> bool {
    /// `__SO_ACCEPTCON` of the kernel's linux/net.h, as /proc/net/unix shows it.
    const ACCEPTS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    sockets.lines().any(|line| line.ends_with(socket) && line.split_whitespace().nth(3) == Some(ACCEPTS))
}

/// The word behind a mark in what a monitor says.
fn word_behind<'a>(answer: &'a str, mark: &str) -> Option<&'a str> {
    answer.split(mark).nth(1)?.split_whitespace().next()
}

fn read_until(stream: &mut UnixStream, end: &str) -> Result<String> {
    let mut text = Vec::new();
    let mut piece = [0_u8; 256];
    while !text.ends_with(end.as_bytes()) {
        let count = stream.read(&mut piece).context("QEMU's monitor does not answer")?;
        ensure!(count > 0, "QEMU's monitor has gone");
        text.extend_from_slice(&piece[..count]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Boots a guest, runs `script` and expects it to succeed. Returns the console's text.
pub fn run(
    lab: &Lab,
    from: BootFrom,
    devices: &[Device],
    queues: u16,
    script: &str,
    limit: Duration,
) -> Result<String> {
    let ended = Guest::boot(lab, from, devices, queues, script)?.wait(limit)?;
    ensure!(ended.status == 0, "the script failed in the guest with status {}:\n{}", ended.status, ended.console);
    Ok(ended.console)
}

fn command(lab: &Lab, from: BootFrom, devices: &[Device], queues: u16, directory: &Path) -> Result<Command> {
    let qemu = if devices.iter().any(Device::needs_any_device_qemu) {
        lab.require_any_device_qemu()?;
        lab.any_device_qemu()
    } else {
        lab.program("qemu-system-x86_64")
    };
    let mut command = Command::new(&qemu);
    command
        .args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", "512M,slots=8,maxmem=4G"])
        .args(["-machine", "q35,hpet=off,memory-backend=memory"])
        .args(["-object", "memory-backend-memfd,id=memory,size=512M,share=on"])
        .args(["-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot"])
        .arg("-fw_cfg")
        .arg(format!("name=opt/vringd/script,file={}/script", directory.display()))
        .arg("-monitor")
        .arg(format!("unix:{}/monitor,server=on,wait=off", directory.display()));
    let words = match from {
        BootFrom::Host => Some(""),
        BootFrom::HostToMove => Some("init_on_alloc=0 "),
        _ => None,
    };
    if let Some(words) = words {
        command
            .arg("-kernel")
            .arg(lab.kernel())
            .arg("-initrd")
            .arg(lab.initramfs())
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}{QUIET}")]);
    }
    let devices: Vec<Device> = devices.iter().map(|device| device.clone().with_queues(queues)).collect();
    add_devices(&mut command, &qemu, &devices)?;
    Ok(command)
}
