//! Scripts in a guest that was booted here.
//!
//! Two channels lead into a guest. Scripts and what they say are files in a *share*, a directory of the
//! host that the guest sees. When to run which, and that it has ended, are words on a *line*, a console of
//! the guest whose other end is a socket: both sides wait in a read of it and cost nothing meanwhile, while
//! a file would have to be looked at again and again.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use tempfile::TempDir;

use super::{OUTPUT_BYTES_MAX, Output, Shell};
use crate::interrupt;
use crate::numa::parse_list;
use crate::process::Group;
use crate::spoiled::{BOOTS_MAX, is_spoiled};
use crate::usage;

/// First process of a guest, from the share.
const INIT: &str = include_str!("../init.sh");
/// Where the guest has the share.
const SHARE_IN_GUEST: &str = "/run/vringd";
/// A guest says a few words a script; one that talks without end is no guest of ours.
const WORDS_BYTES_MAX: usize = 4096;
/// What a kernel says that cannot go on (`kernel/panic.c`).
const PANIC: &str = "Kernel panic - not syncing";
/// From the wish to its end: a guest whose disk has gone may wait for it for ever.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A directory that host and guest both see. It is removed when this is dropped.
#[derive(Debug)]
pub struct Share {
    directory: TempDir,
}

impl Share {
    /// A share with all that a guest's first process needs.
    pub fn new() -> Result<Self> {
        // Says whose it is: of a process that was killed, it stays.
        let directory = TempDir::with_prefix(format!("vringd-guest-{}-", process::id()))?;
        fs::write(directory.path().join("init"), INIT)?;
        Ok(Self { directory })
    }

    /// Where it is on the host.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The end of a kernel's command line, which starts the first process: a shell of the guest's own root,
    /// so that nothing of ours has to be in there, that mounts the share and goes on with what lies in it.
    /// `mount` is what `mount` is told to find the share. `line` is the guest's device for words; without
    /// one the file `script` of the share is run, and the guest ends.
    pub(crate) fn init(&self, mount: &str, line: Option<&str>) -> Result<String> {
        let line = line.unwrap_or_default();
        let script = format!(
            "mount -t proc proc /proc; mount -t tmpfs tmpfs /run && mkdir {SHARE_IN_GUEST} && mount {mount} \
             {SHARE_IN_GUEST} && exec /bin/sh {SHARE_IN_GUEST}/init {SHARE_IN_GUEST} {line}"
        );
        ensure!(!script.contains('"'), "a kernel's command line cannot carry the quote in {mount}");
        Ok(format!("init=/bin/sh -- -c \"{script}\""))
    }
}

/// A guest that waits for scripts.
///
/// What it writes is not trusted: neither its words nor its files make this side remember more than a bound, or
/// touch a file elsewhere.
#[derive(Debug)]
pub struct Guest {
    // Ends first: it uses what follows.
    process: Group,
    share: Share,
    line: UnixStream,
    words: Vec<u8>,
    kernel: String,
    scripts: u64,
}

/// A guest before it has said a word.
pub(crate) struct Agent {
    pub(crate) share: Share,
    pub(crate) command: Command,
    pub(crate) limit: Duration,
}

impl Agent {
    /// Boots it: the guest's end of the line is the standard input of its process.
    pub(crate) fn boot(self, processors: u32) -> Result<Guest> {
        let Self { mut share, command, limit } = self;
        let mut boots = 0;
        let (mut guest, hello) = loop {
            boots += 1;
            let mut guest = Guest::start(share, &command)?;
            match guest.hear("ready", limit) {
                Ok(hello) => break (guest, hello),
                Err(_) if boots < BOOTS_MAX && is_spoiled(&guest.console()) => share = guest.into_share(),
                Err(error) => return Err(error).context("the guest does not boot"),
            }
        };
        let (kernel, online) = hello.split_once(' ').unwrap_or((&hello, "0"));
        kernel.clone_into(&mut guest.kernel);
        let online = parse_list(online).map_or(0, |list| list.len());
        ensure!(
            usize::try_from(processors).is_ok_and(|wanted| online >= wanted),
            "the guest's kernel {} runs {online} of {processors} processors",
            guest.kernel
        );
        Ok(guest)
    }
}

impl Guest {
    /// A guest that begins to boot.
    fn start(share: Share, command: &Command) -> Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        let output = share.path().join("console");
        let process = Group::start_with(command, Stdio::from(std::os::fd::OwnedFd::from(theirs)), &output)?;
        Ok(Self { process, share, line, words: Vec::new(), kernel: String::new(), scripts: 0 })
    }

    /// Ends it, and keeps the share for another.
    fn into_share(self) -> Share {
        self.share
    }

    /// What the guest's console has shown, or the end of it.
    pub fn console(&self) -> String {
        self.process.output()
    }

    /// The directory of the host through which scripts go in and come out.
    pub fn share(&self) -> &Path {
        self.share.path()
    }

    /// Waits for a line that begins with `word`, and returns the rest of it.
    fn hear(&mut self, word: &str, limit: Duration) -> Result<String> {
        let start = Instant::now();
        self.line.set_read_timeout(Some(interrupt::LOOK_EVERY))?;
        loop {
            while let Some(end) = self.words.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.words.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                // What is said to the guest comes back as an echo, and is no answer.
                if let Some(rest) = line.trim().strip_prefix(word) {
                    return Ok(rest.trim().to_owned());
                }
            }
            ensure!(self.words.len() <= WORDS_BYTES_MAX, "the guest talks without end");
            interrupt::check()?;
            let mut piece = [0_u8; 256];
            match self.line.read(&mut piece) {
                Ok(0) => bail!("the guest has gone: {}", self.last_words()),
                Ok(count) => self.words.extend_from_slice(piece.get(..count).unwrap_or_default()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
                {
                    // A process of the guest's may hold the line although the guest has ended.
                    ensure!(self.process.is_running()?, "the guest has gone: {}", self.last_words());
                }
                Err(error) => return Err(error).context("the guest has gone"),
            }
            if start.elapsed() > limit {
                bail!("the guest did not answer within {} s: {}", limit.as_secs(), self.last_words());
            }
        }
    }

    /// Why the kernel has given up, or else the last thing the console showed, for an error of one line.
    fn last_words(&self) -> String {
        last_words(&self.process.output()).to_owned()
    }

    fn run_script(&mut self, script: &str, limit: Duration) -> Result<Output> {
        ensure!(self.process.is_running()?, "the guest has gone: {}", self.last_words());
        // A new name each time: the guest may remember what an old one held.
        self.scripts += 1;
        let number = self.scripts;
        let file = |kind: &str| self.share.path().join(format!("{number}.{kind}"));
        let (input, stdout, stderr) = (file("sh"), file("out"), file("err"));
        // The guest may write here too: a link that it left in the place is not followed.
        File::options().write(true).create_new(true).open(&input)?.write_all(script.as_bytes())?;
        self.line.write_all(format!("run {number}\n").as_bytes()).context("the guest has gone")?;
        let status = self.hear(&format!("done {number} "), limit)?;
        let output = Output {
            status: status.parse().with_context(|| format!("the guest gives `{status}` as a status"))?,
            stdout: take(&stdout)?,
            stderr: take(&stderr)?,
        };
        fs::remove_file(&input)?;
        Ok(output)
    }
}

impl Shell for Guest {
    fn run(&mut self, script: &str, limit: Duration) -> Result<Output> {
        let result = self.run_script(script, limit);
        if result.is_err() {
            self.process.kill();
        }
        result
    }

    fn cpu_s(&mut self) -> Result<f64> {
        ensure!(self.process.is_running()?, "the guest has gone: {}", self.last_words());
        usage::cpu_s_of_group(self.process.id())
    }

    fn kernel(&self) -> &str {
        &self.kernel
    }

    fn pid(&self) -> Option<u32> {
        Some(self.process.id())
    }

    fn end(mut self: Box<Self>) -> Result<()> {
        if self.process.is_running()? && self.line.write_all(b"end\n").is_ok() {
            self.process.wait(END_LIMIT).context("the guest does not end by itself")?;
        }
        Ok(())
    }
}

/// A kernel that panics says why first, and much after that.
fn last_words(console: &str) -> &str {
    let lines = || console.lines().map(str::trim).filter(|line| !line.is_empty());
    let panic = lines().find(|line| line.contains(PANIC));
    panic.or_else(|| lines().next_back()).unwrap_or("it showed nothing on its console")
}

/// Reads a file that the guest wrote, and removes it.
fn take(path: &Path) -> Result<String> {
    // Neither by a link to wherever the guest pleases nor waiting for a pipe of its own.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = File::options();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).with_context(|| format!("the guest left no {}", path.display()))?;
    let metadata = file.metadata()?;
    ensure!(metadata.is_file(), "the guest left {}, which is no file", path.display());
    ensure!(metadata.len() <= OUTPUT_BYTES_MAX, "the script says more than {} MiB", OUTPUT_BYTES_MAX >> 20);
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    fs::remove_file(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_panic_says_more_than_what_follows_it() {
        let console = "[    0.1] Booting\n[   11.9] Kernel panic - not syncing: No working init found.\n[   12.0] Kernel Offset: 0xee00000\n\n";
        assert!(last_words(console).ends_with("No working init found."));
        assert_eq!(last_words("one\ntwo \n\n"), "two");
        assert_eq!(last_words(""), "it showed nothing on its console");
    }

    #[test]
    fn only_files_are_taken() {
        let share = Share::new().unwrap();
        let [link, pipe, file] = ["link", "pipe", "file"].map(|name| share.path().join(name));
        symlink("/etc/passwd", &link).unwrap();
        assert!(take(&link).is_err());
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(take(&pipe).unwrap_err().to_string().contains("no file"));
        fs::write(&file, "text").unwrap();
        assert_eq!(take(&file).unwrap(), "text");
        assert!(take(&file).unwrap_err().to_string().contains("left no"));
    }

    #[test]
    fn first_process_is_told_the_share_and_the_line() {
        let share = Share::new().unwrap();
        let init = share.init("-t hostfs none -o hostfs=/tmp/x", Some("/dev/tty1")).unwrap();
        assert!(init.starts_with("init=/bin/sh -- -c \"mount -t proc"), "{init}");
        assert!(init.contains("mount -t hostfs none -o hostfs=/tmp/x /run/vringd &&"), "{init}");
        assert!(init.ends_with("/bin/sh /run/vringd/init /run/vringd /dev/tty1\""), "{init}");
        assert!(share.init("\"", None).is_err());
    }
}
