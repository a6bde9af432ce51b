//! A client of the QEMU Machine Protocol: a line of JSON for each command, answer and event.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Events that nobody has asked for yet. A job makes a handful.
const EVENTS_MAX: usize = 1000;

/// Something that happened in the server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Event {
    /// Such as `BLOCK_JOB_READY`.
    pub(super) event: String,
    #[serde(default)]
    pub(super) data: Value,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
    /// What has come of a line that is not whole yet.
    line: Vec<u8>,
    events: VecDeque<Event>,
}

/// What the server says.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Said {
    Greeting {
        #[serde(rename = "QMP")]
        _version: Value,
    },
    Event(Event),
    Answer {
        #[serde(rename = "return")]
        value: Value,
    },
    Refusal {
        error: Refusal,
    },
}

#[derive(Debug, Deserialize)]
struct Refusal {
    desc: String,
}

impl Qmp {
    /// Connects to the monitor that listens on `path`.
    pub(super) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| format!("{}: cannot connect", path.display()))?;
        stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
        let mut qmp = Self { stream: BufReader::new(stream), line: Vec::new(), events: VecDeque::new() };
        let Some(Said::Greeting { .. }) = qmp.hear(Instant::now() + ANSWER_TIME_MAX)? else {
            bail!("{}: no QMP monitor greets there", path.display());
        };
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command. Events that come before its answer are kept.
    pub(super) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let failed = || format!("QMP {command}");
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).with_context(failed)?;
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        loop {
            match self.hear(deadline).with_context(failed)? {
                Some(Said::Answer { value }) => return Ok(value),
                Some(Said::Refusal { error }) => bail!("QMP {command}: {}", error.desc),
                Some(Said::Event(event)) => self.keep(event)?,
                Some(Said::Greeting { .. }) => bail!("QMP {command}: answered by a second greeting"),
                None => bail!("QMP {command}: no answer within {} s", ANSWER_TIME_MAX.as_secs()),
            }
        }
    }

    /// The next event, if one comes in time.
    pub(super) fn next_event(&mut self, patience: Duration) -> Result<Option<Event>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        match self.hear(Instant::now() + patience)? {
            Some(Said::Event(event)) => Ok(Some(event)),
            Some(other) => bail!("QMP: {other:?} without a command"),
            None => Ok(None),
        }
    }

    fn keep(&mut self, event: Event) -> Result<()> {
        if self.events.len() == EVENTS_MAX {
            bail!("QMP: more than {EVENTS_MAX} events before an answer");
        }
        self.events.push_back(event);
        Ok(())
    }

    /// The next line; `None` when none is whole by then.
    fn hear(&mut self, deadline: Instant) -> Result<Option<Said>> {
        loop {
            // Zero would wait for ever.
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
            self.stream.get_ref().set_read_timeout(Some(left))?;
            match self.stream.read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.line);
                    let said = String::from_utf8_lossy(&line);
                    let said = serde_json::from_str(&said).with_context(|| format!("QMP: not understood: {said}"))?;
                    return Ok(Some(said));
                }
                Ok(_) => bail!("QMP: the server has closed the connection"),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("QMP"),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use tempfile::TempDir;

    /// A piece of a monitor's part in a conversation.
    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Part {
        /// Says this, whole or not.
        Say(&'static str),
        /// Waits for a command.
        Hear,
        /// Says nothing for a while.
        Rest(Duration),
    }
    use Part::{Hear, Rest, Say};

    pub(crate) const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"major\": 10}}, \"capabilities\": []}}\r\n";
    pub(crate) const DONE: &str = "{\"return\": {}}\r\n";
    const READY: &str =
        "{\"timestamp\": {\"seconds\": 1}, \"event\": \"BLOCK_JOB_READY\", \"data\": {\"device\": \"j\"}}\r\n";

    /// A monitor that plays its part once, and gives in the end what it was told.
    pub(crate) fn fake(parts: Vec<Part>) -> (TempDir, PathBuf, JoinHandle<Vec<Value>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let monitor = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (mut heard, mut lines, mut writer) = (Vec::new(), BufReader::new(stream.try_clone().unwrap()), stream);
            for part in parts {
                match part {
                    Say(text) => writer.write_all(text.as_bytes()).unwrap(),
                    Rest(time) => std::thread::sleep(time),
                    Hear => {
                        let mut line = String::new();
                        lines.read_line(&mut line).unwrap();
                        heard.push(serde_json::from_str(&line).unwrap());
                    }
                }
            }
            heard
        });
        (directory, path, monitor)
    }

    fn connected(rest: &[Part]) -> (TempDir, Qmp, JoinHandle<Vec<Value>>) {
        let (directory, path, monitor) = fake([&[Say(GREETING), Hear, Say(DONE)], rest].concat());
        (directory, Qmp::connect(&path).unwrap(), monitor)
    }

    #[test]
    fn a_connection_begins_with_a_greeting_and_capabilities() {
        let (_directory, _qmp, monitor) = connected(&[]);
        assert_eq!(monitor.join().unwrap(), [json!({"execute": "qmp_capabilities", "arguments": {}})]);
        let (_directory, path, _monitor) = fake(vec![Say(DONE), Hear]);
        let error = Qmp::connect(&path).unwrap_err().to_string();
        assert!(error.ends_with("no QMP monitor greets there"), "{error}");
    }

    #[test]
    fn events_before_an_answer_are_kept() {
        let (_directory, mut qmp, monitor) =
            connected(&[Hear, Say(READY), Say("{\"return\": 7}\r\n"), Say(READY), Hear]);
        assert_eq!(qmp.execute("blockdev-mirror", &json!({"device": "disk"})).unwrap(), json!(7));
        for _ in 0..2 {
            let event = qmp.next_event(ANSWER_TIME_MAX).unwrap().unwrap();
            assert_eq!((event.event.as_str(), &event.data["device"]), ("BLOCK_JOB_READY", &json!("j")));
        }
        assert_eq!(qmp.next_event(Duration::from_millis(1)).unwrap(), None);
        qmp.stream.get_mut().write_all(b"0\n").unwrap();
        assert_eq!(monitor.join().unwrap()[1]["arguments"]["device"], "disk");
    }

    #[test]
    fn a_line_may_come_in_pieces() {
        let (first, rest) = READY.split_at(20);
        let (_directory, mut qmp, _monitor) =
            connected(&[Say(first), Rest(Duration::from_millis(50)), Say(rest), Hear]);
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let event = loop {
            assert!(Instant::now() < deadline);
            if let Some(event) = qmp.next_event(Duration::from_millis(2)).unwrap() {
                break event;
            }
        };
        assert_eq!(event.event, "BLOCK_JOB_READY");
        qmp.stream.get_mut().write_all(b"0\n").unwrap();
    }

    #[test]
    fn a_refusal_and_an_end_are_errors_that_name_the_command() {
        const NO: &str = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"Cannot find device='x'\"}}\r\n";
        let (_directory, mut qmp, _monitor) = connected(&[Hear, Say(NO), Hear]);
        let error = qmp.execute("blockdev-backup", &json!({})).unwrap_err().to_string();
        assert_eq!(error, "QMP blockdev-backup: Cannot find device='x'");
        let error = format!("{:#}", qmp.execute("blockdev-del", &json!({})).unwrap_err());
        assert_eq!(error, "QMP blockdev-del: QMP: the server has closed the connection");
    }
}
