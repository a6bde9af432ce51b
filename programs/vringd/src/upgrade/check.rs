//! Asks a program whether it could go on, before anything is paused.

use super::state::VERSION;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a program may think about it.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// More than anyone has to say.
const SAID_BYTES_MAX: u64 = 64 << 10;
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

/// Has `program` read the state in `memory`.
///
/// # Errors
/// Why it is not the program to go on: it cannot be started, does not understand, or says something else.
pub(super) fn ask(program: &Path, memory: &OwnedFd) -> Result<Understood, String> {
    let shown = program.display();
    let input = memory.try_clone().map_err(|error| format!("cannot be asked: {error}"))?;
    let started = Command::new(program)
        .args(["adopt", "--check", "--state-fd", "0"])
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| format!("{shown} cannot be started: {error}"))?;
    let ended = wait(&mut child);
    let (said, complained) = (available(child.stdout.take()), available(child.stderr.take()));
    match ended {
        Ok(status) if status.success() => understood(&said, &format!("{shown}")),
        Ok(status) => {
            let line = complained.lines().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason").trim();
            Err(format!("{shown} cannot go on ({status}): {}", line.strip_prefix("vringd: ").unwrap_or(line)))
        }
        Err(why) => Err(format!("{shown} {why}")),
    }
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
    use super::super::{envelope, samples};
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn asked(program: &Path) -> String {
        ask(program, &envelope::write(&samples::state()).unwrap()).unwrap_err()
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
    fn an_answer_has_to_be_the_right_one() {
        let here = Understood::version(VERSION);
        let right = serde_json::to_string(&here).unwrap();
        assert_eq!(understood(&format!("{right}\n"), "x").unwrap(), here);
        for wrong in ["", "{}", &right.replace("vringd", "other"), &right.replace(&format!(":{VERSION}}}"), ":1}")] {
            assert!(understood(wrong, "x").is_err(), "{wrong}");
        }
    }
}
