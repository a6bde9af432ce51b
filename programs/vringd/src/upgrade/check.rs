//! Asks a program whether it could go on, before anything is paused.
//!
//! A thread without the daemon's files starts it: a child would close copies of all that are close-on-exec, and a file system that hangs at
//! that (FUSE, NFS) would have the program blamed for it. Nobody waits for that thread longer than for the program's answer.

use super::closes::Mounts;
use super::envelope;
use super::state::{State, VERSION};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use sandbox::{COPIED_BELOW, without_files};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The thread that asks.
pub(super) const ASK_THREAD: &str = "upgrade-ask";
/// How long a program may think about it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the thread may take to leave the daemon's files: it closes few, which takes no time unless one hangs.
const APART_PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take beyond the program's answer, to kill a program that gives none.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// More than anyone has to say.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// So much of a complaint is passed on, in characters.
const COMPLAINT_CHARS_MAX: usize = 400;
/// The name that it gives itself.
const NAME: &str = "vringd";

/// What a program says that understands a state, as one line of JSON. A program that takes any arguments and ends well
/// does not say this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Understood {
    /// The program's name.
    pub(super) program: String,
    /// Its version.
    pub(super) version: String,
    /// The version of the state that it has read.
    pub(super) state: u32,
}

impl Understood {
    /// This program, having read a state of this version. An earlier program wants to hear of its own.
    pub(super) fn version(state: u32) -> Understood {
        Understood { program: NAME.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), state }
    }
}

/// Why there is no answer that lets the program go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub(super) enum AskError {
    /// {0}
    Program(String),
    /// the program cannot be asked: {0}
    Here(String),
}

/// What the thread says before it has an answer.
enum Told {
    /// It has left the daemon's files.
    Apart,
    Answer(Result<Understood, AskError>),
}

/// Has `program` read the state.
///
/// # Errors
/// Why it is not the program to go on: it cannot be started, does not understand, or says something else. Or why it cannot be asked.
pub(super) fn ask(program: &Path, state: &State) -> Result<Understood, AskError> {
    let bytes = envelope::encode(state).map_err(AskError::Here)?;
    let (tells, told) = channel();
    let asked = program.to_owned();
    let run = move || {
        let answer = ask_here(&asked, &bytes, &tells);
        // Whoever asked may have given up on it.
        let _ = tells.send(Told::Answer(answer));
    };
    without_files(ASK_THREAD, run).map_err(|error| AskError::Here(format!("no thread: {error}")))?;
    wait_for_answer(program, &told)
}

fn wait_for_answer(program: &Path, told: &Receiver<Told>) -> Result<Understood, AskError> {
    match told.recv_timeout(APART_PATIENCE) {
        Ok(Told::Apart) => {}
        Ok(Told::Answer(answer)) => return answer,
        Err(_) => {
            let files = Mounts::now().below(COPIED_BELOW);
            let files = if files.is_empty() { "a file".to_owned() } else { files.join(" or ") };
            return Err(AskError::Here(format!(
                "{files} is not closed within {} s; look at its file system, and try again",
                APART_PATIENCE.as_secs()
            )));
        }
    }
    match told.recv_timeout(PATIENCE + KILL_PATIENCE) {
        Ok(Told::Answer(answer)) => answer,
        Ok(Told::Apart) | Err(RecvTimeoutError::Timeout) => {
            let why = "neither begins nor ends: look at the file system where it is, and try again";
            Err(AskError::Program(format!("{} {why}", program.display())))
        }
        Err(RecvTimeoutError::Disconnected) => Err(AskError::Here("the thread that asks has ended".to_owned())),
    }
}

/// As [`ask`], on a thread that has no files: also no standard error.
fn ask_here(program: &Path, state: &[u8], tells: &Sender<Told>) -> Result<Understood, AskError> {
    // In the places of the standard ones, into which a child's are put one after the other: none of these may be there.
    let _standard = [(); 3].map(|()| memfd_create("none", MemfdFlags::CLOEXEC));
    let _ = tells.send(Told::Apart);
    let memory = envelope::write_encoded(state).map_err(AskError::Here)?;
    run(program, memory.into()).map_err(AskError::Program)
}

fn run(program: &Path, state: Stdio) -> Result<Understood, String> {
    let shown = program.display();
    let started = Command::new(program)
        .args(["adopt", "--check", "--state-fd", "0"])
        .stdin(state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| format!("{shown} cannot be started: {error}"))?;
    let ended = wait(&mut child);
    let (said, complained) = (available(child.stdout.take()), available(child.stderr.take()));
    match ended {
        Ok(status) if status.success() => understood(&said, &format!("{shown}")),
        Ok(status) => Err(format!("{shown} cannot go on ({status}): {}", complaint(&complained))),
        Err(why) => Err(format!("{shown} {why}")),
    }
}

/// The first line of what it said, fit for a log and a terminal.
fn complaint(complained: &str) -> String {
    let line = complained.lines().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason").trim();
    let line = line.strip_prefix("vringd: ").unwrap_or(line);
    line.chars().filter(|character| !character.is_control()).take(COMPLAINT_CHARS_MAX).collect()
}

/// What it said must be what this program would have said.
fn understood(said: &str, shown: &str) -> Result<Understood, String> {
    let foreign =
        || format!("{shown} is not a vringd that can take over: it ended well without a word about the state");
    let answer: Understood = serde_json::from_str(said.trim()).map_err(|_| foreign())?;
    if answer.program != NAME || answer.state != VERSION {
        return Err(foreign());
    }
    Ok(answer)
}

/// How it ended; it is killed if it takes too long.
fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_AGAIN_AFTER),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("did not say within {} s whether it can go on", PATIENCE.as_secs()));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

/// What is in a pipe now. It may have children that hold the other end: never wait for them.
fn available(pipe: Option<impl Read + AsFd>) -> String {
    let mut said = Vec::new();
    if let Some(pipe) = pipe {
        // WouldBlock: that was all. Any other error leaves what there was.
        let _ = read_now(pipe, &mut said);
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn read_now(pipe: impl Read + AsFd, said: &mut Vec<u8>) -> io::Result<()> {
    fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
    pipe.take(SAID_BYTES_MAX).read_to_end(said).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn asked(program: &Path) -> String {
        match ask(program, &samples::state()).unwrap_err() {
            AskError::Program(line) => line,
            AskError::Here(line) => panic!("{line}"),
        }
    }

    fn script(text: &str) -> tempfile::TempPath {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        // An open file cannot be executed.
        file.into_temp_path()
    }

    #[test]
    fn programs_that_cannot_go_on_are_named_with_the_reason() {
        let text = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        for (program, words) in [
            ("/nonexistent/vringd", "cannot be started: No such file"),
            (text.to_str().unwrap(), "cannot be started: Permission denied"),
            ("/bin/false", "cannot go on (exit status: 1): it gave no reason"),
            ("/bin/true", "is not a vringd that can take over"),
            ("/bin/echo", "is not a vringd that can take over"),
        ] {
            let line = asked(Path::new(program));
            assert!(line.contains(program) && line.contains(words) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_first_line_of_a_complaint_is_the_reason() {
        let program = script("#!/bin/sh\necho >&2 'vringd: too new'\necho >&2 more\nexit 2\n");
        assert!(asked(&program).ends_with("cannot go on (exit status: 2): too new"), "{}", asked(&program));
    }

    #[test]
    fn a_program_that_leaves_children_behind_is_not_waited_for() {
        let program = script("#!/bin/sh\nsleep 600 &\necho $! >&2\nexit 1\n");
        let line = asked(&program);
        let child = line.rsplit(' ').next().and_then(|word| word.parse().ok());
        let child = rustix::process::Pid::from_raw(child.unwrap()).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_complaint_is_one_short_line() {
        assert_eq!(complaint("\n vringd: no such\x1b[31m thing\r\nmore\n"), "no such[31m thing");
        assert_eq!(complaint(" \n"), "it gave no reason");
        assert_eq!(complaint(&"ä".repeat(1_000_000)), "ä".repeat(COMPLAINT_CHARS_MAX));
    }

    #[test]
    fn a_program_that_does_not_answer_is_killed() {
        let program = script("#!/bin/sh\nexec sleep 600\n");
        let line = asked(&program);
        assert!(line.ends_with("did not say within 5 s whether it can go on"), "{line}");
    }

    #[test]
    fn a_program_has_none_of_the_daemons_files() {
        // Were they among the asking thread's, a program would have those that are not close-on-exec.
        let inherited = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let program = script("#!/bin/sh\nls -l /proc/$$/fd | grep -c deleted >&2\nexit 1\n");
        // The state itself has no name either.
        assert!(asked(&program).ends_with(": 1"), "{}", asked(&program));
    }

    #[test]
    fn who_does_not_close_is_named_and_no_program_blamed() {
        let (_tells, told) = channel();
        let AskError::Here(line) = wait_for_answer(Path::new("/bin/true"), &told).unwrap_err() else { panic!() };
        assert!(line.contains("is not closed within 2 s") && !line.contains("/bin/true"), "{line}");
    }

    #[test]
    fn an_answer_has_to_be_the_right_one() {
        let here = Understood::version(VERSION);
        let right = serde_json::to_string(&here).unwrap();
        assert_eq!(understood(&format!("{right}\n"), "x").unwrap(), here);
        for wrong in ["", "{}", &right.replace("vringd", "other"), &right.replace(&format!(":{VERSION}}}"), ":1}")] {
            assert!(understood(wrong, "x").is_err(), "{wrong}");
        }
    }
}
