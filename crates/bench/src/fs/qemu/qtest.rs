//! qtest, QEMU's protocol for tests of devices: each command is a line, and so is each answer (`docs/devel/testing/qtest`
//! in its sources).

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// How long QEMU may take to answer.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// An answer to what is asked here takes a few bytes.
const LINE_BYTES_MAX: usize = 1 << 10;

/// A connection.
pub(super) struct Qtest {
    socket: UnixStream,
    /// What has come and was not taken.
    inbox: Vec<u8>,
}

/// An answer, with the value if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer(Option<u64>);

impl Qtest {
    /// On a fresh connection.
    pub(super) fn new(socket: UnixStream) -> Result<Self> {
        socket.set_read_timeout(Some(ANSWER_TIME_MAX)).context("cannot limit the wait for QEMU")?;
        Ok(Self { socket, inbox: Vec::new() })
    }

    /// Reads 32 bits at a guest address.
    pub(super) fn read(&mut self, addr: u64) -> Result<u32> {
        self.send(format!("readl {addr:#x}\n").as_bytes())?;
        let Answer(value) = self.answer()?;
        value.and_then(|value| u32::try_from(value).ok()).with_context(|| format!("QEMU read {value:?} at {addr:#x}"))
    }

    /// Writes 32 bits at a guest address.
    pub(super) fn write(&mut self, addr: u64, value: u32) -> Result<()> {
        self.send(&write_command(addr, value))?;
        self.answer().map(|_| ())
    }

    /// Sends a command; its answer is still to be taken.
    pub(super) fn send(&mut self, command: &[u8]) -> Result<()> {
        self.socket.write_all(command).context("QEMU takes no commands of qtest any more")
    }

    /// The next answer, waited for.
    pub(super) fn answer(&mut self) -> Result<Answer> {
        loop {
            if let Some(answer) = self.take()? {
                return Ok(answer);
            }
            let seconds = ANSWER_TIME_MAX.as_secs();
            ensure!(self.receive(RecvFlags::empty())?, "QEMU answered nothing over qtest for {seconds} s");
        }
    }

    /// The next answer, if it is there.
    pub(super) fn try_answer(&mut self) -> Result<Option<Answer>> {
        if let Some(answer) = self.take()? {
            return Ok(Some(answer));
        }
        if self.receive(RecvFlags::DONTWAIT)? { self.take() } else { Ok(None) }
    }

    fn take(&mut self) -> Result<Option<Answer>> {
        let Some(end) = self.inbox.iter().position(|byte| *byte == b'\n') else {
            ensure!(self.inbox.len() <= LINE_BYTES_MAX, "QEMU's answer over qtest has no end");
            return Ok(None);
        };
        let answer = parse(&self.inbox[..end])?;
        self.inbox.drain(..=end);
        Ok(Some(answer))
    }

    /// Receives what has come; false when nothing has.
    fn receive(&mut self, flags: RecvFlags) -> Result<bool> {
        let mut piece = [0; 512];
        match recv(&self.socket, &mut piece[..], flags) {
            Ok((_, 0)) => bail!("QEMU closed its qtest socket"),
            Ok((_, bytes)) => {
                self.inbox.extend_from_slice(&piece[..bytes]);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            // As if something had come: whoever waits looks again.
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error).context("cannot receive from QEMU"),
        }
    }
}

/// The command that writes 32 bits at a guest address.
pub(super) fn write_command(addr: u64, value: u32) -> Box<[u8]> {
    format!("writel {addr:#x} {value:#x}\n").into_bytes().into_boxed_slice()
}

/// `OK`, or `OK` and a value in hexadecimal digits. Whatever else may come was not asked for.
fn parse(line: &[u8]) -> Result<Answer> {
    let text = String::from_utf8_lossy(line);
    let value = match text.strip_prefix("OK") {
        Some("") => return Ok(Answer(None)),
        Some(rest) => rest.strip_prefix(" 0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()),
        None => None,
    };
    ensure!(value.is_some(), "QEMU answers {text:?} over qtest");
    Ok(Answer(value))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::thread;

    use super::*;

    #[test]
    fn answers_are_ok_with_or_without_a_value() {
        assert_eq!(parse(b"OK").unwrap(), Answer(None));
        assert_eq!(parse(b"OK 0x0000000074726976").unwrap(), Answer(Some(0x7472_6976)));
        for wrong in ["FAIL Unknown command 'x'", "OK 12", "OK 0x", "OKAY", "", "IRQ raise 1"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn each_command_is_a_line_and_has_the_next_answer() {
        let (here, there) = UnixStream::pair().unwrap();
        let qemu = thread::spawn(move || {
            let mut seen = Vec::new();
            let mut lines = BufReader::new(there.try_clone().unwrap()).lines();
            for answer in ["OK\n", "OK 0x0000000000000009\n", "FAIL no\n"] {
                seen.push(lines.next().unwrap().unwrap());
                // In two pieces, as a stream may bring it.
                let (first, rest) = answer.split_at(2);
                (&there).write_all(first.as_bytes()).unwrap();
                (&there).write_all(rest.as_bytes()).unwrap();
            }
            seen
        });
        let mut qtest = Qtest::new(here).unwrap();
        qtest.write(0x1000, 0x20).unwrap();
        assert_eq!(qtest.read(0x1008).unwrap(), 9);
        let error = qtest.read(0).unwrap_err().to_string();
        assert!(error.contains("FAIL no"), "{error}");
        assert_eq!(qemu.join().unwrap(), ["writel 0x1000 0x20", "readl 0x1008", "readl 0x0"]);
        let error = qtest.write(0, 0).unwrap_err().to_string();
        assert!(error.contains("qtest"), "{error}");
    }
}
