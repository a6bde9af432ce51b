//! A server process under test: started, waited for, stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, anyhow, bail, ensure};
use guest::process::Group;
use rustix::process::Pid;
use tempfile::{NamedTempFile, TempDir, TempPath};

use crate::args::{cpu_set, split};
use crate::frontend::{Error, Load, Spec};
use crate::programs;

/// How long a server may take to listen.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a server may take to end after SIGTERM before it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// How much of what it said is shown when it fails.
const OUTPUT_SHOWN_CHARS: usize = 2000;

/// A command line with `{socket}` and `{image}` in it.
#[derive(Debug, Clone)]
pub(crate) struct Template(Vec<String>);

impl Template {
    /// Splits `text` as a shell would; expands nothing.
    pub(crate) fn parse(option: &str, text: &str) -> Result<Self> {
        split(option, text).map(Self)
    }

    /// Words of a command that is already split.
    pub(crate) fn from_words(words: Vec<String>) -> Self {
        Self(words)
    }

    /// The words as they were given.
    pub(crate) fn words(&self) -> &[String] {
        &self.0
    }

    /// Whether `{name}` occurs.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        let placeholder = format!("{{{name}}}");
        self.0.iter().any(|word| word.contains(&placeholder))
    }

    /// The program's name without its directory.
    pub(crate) fn program(&self) -> &str {
        let first = self.0.first().map_or("", String::as_str);
        first.rsplit('/').next().unwrap_or(first)
    }

    /// The words with every placeholder replaced.
    pub(crate) fn expand(&self, socket: &Path, image: Option<&Path>) -> Vec<String> {
        self.replace(&[("socket", Some(socket)), ("image", image)])
    }

    /// The words with these placeholders replaced, by nothing where there is no path.
    pub(crate) fn replace(&self, places: &[(&str, Option<&Path>)]) -> Vec<String> {
        let replace = |word: String, (name, path): &(&str, Option<&Path>)| {
            word.replace(&format!("{{{name}}}"), &path.map(Path::to_string_lossy).unwrap_or_default())
        };
        self.0.iter().map(|word| places.iter().fold(word.clone(), replace)).collect()
    }
}

/// A directory for the sockets of a run, removed when dropped. Its path is short, as a socket's has to be.
pub(crate) fn sockets() -> Result<TempDir> {
    tempfile::Builder::new().prefix("bench-").tempdir().context("cannot make a directory for sockets")
}

/// A running server, with what it has started. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    process: Group,
    name: String,
    socket: PathBuf,
    /// What it says goes there.
    _output: TempPath,
}

impl Server {
    /// Starts `words`, pinned to `cpus` when there are any, expecting it to listen on `socket`.
    pub(crate) fn start(words: &[String], socket: &Path, cpus: &[usize]) -> Result<Self> {
        let (program, arguments) = words.split_first().context("the server's command is empty")?;
        ensure!(programs::find(program, &[]).is_some(), "cannot start {program:?}; is it installed?");
        // The last run's socket, when that server left it behind.
        let _absent = fs::remove_file(socket);
        let output = NamedTempFile::new().context("cannot make a file for the server's output")?.into_temp_path();
        let process = Group::start(Command::new(program).args(arguments), &output)?;
        let server = Self { process, name: program.clone(), socket: socket.to_owned(), _output: output };
        server.pin(cpus)?;
        Ok(server)
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn pin(&self, cpus: &[usize]) -> Result<()> {
        if cpus.is_empty() {
            return Ok(());
        }
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        rustix::thread::sched_setaffinity(pid, &cpu_set(cpus))
            .with_context(|| format!("--server-cpus: cannot pin {:?} to CPUs {cpus:?}", self.name))
    }

    /// Connects a load as soon as the server listens.
    pub(crate) fn load(&mut self, spec: &Spec) -> Result<Load> {
        let spec = Spec { server_pid: Some(self.pid()), ..spec.clone() };
        self.connect(|socket| Load::start(socket, &spec), Error::is_early)
    }

    /// Connects with `connect` as soon as the server listens: it is tried again while `is_early` says so of its errors.
    pub(crate) fn connect<T, E: Into<anyhow::Error>>(
        &mut self,
        connect: impl Fn(&Path) -> Result<T, E>,
        is_early: impl Fn(&E) -> bool,
    ) -> Result<T> {
        let deadline = Instant::now() + START_TIME_MAX;
        loop {
            if let Some(status) = self.ended() {
                bail!("{:?} ended ({status}) before it listened{}", self.name, self.said());
            }
            match connect(&self.socket) {
                Err(error) if is_early(&error) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(self.blame(error)),
                Ok(connection) => return Ok(connection),
            }
        }
    }

    /// An error with what became of the server and what it said.
    pub(crate) fn blame(&mut self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        let error: anyhow::Error = error.into();
        let end = self.ended().map(|status| format!("; it ended ({status})")).unwrap_or_default();
        anyhow!("{error:#}{end}{}", self.said())
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let has_ended = self.process.is_running().is_ok_and(|runs| !runs);
        has_ended.then(|| self.process.wait(Duration::ZERO).ok()).flatten()
    }

    /// Ends it: SIGTERM, and SIGKILL for one that does not listen.
    pub(crate) fn stop(self) {
        self.stop_within(STOP_TIME_MAX);
    }

    /// As [`Server::stop`], for one that has much to finish.
    pub(crate) fn stop_within(mut self, limit: Duration) {
        if let Err(error) = self.process.terminate(limit) {
            eprintln!("{} ignores SIGTERM: killed: {error:#}", self.name);
        }
    }

    /// The end of its output, ready to stand behind a message.
    fn said(&self) -> String {
        let output = self.process.output();
        let shown = output.char_indices().rev().nth(OUTPUT_SHOWN_CHARS).map_or(0, |(start, _)| start);
        match output.get(shown..).unwrap_or_default().trim() {
            "" => String::new(),
            said => format!("; it said: {said}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill();
        let _absent = fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_in_every_word() {
        let template = Template::parse("--against", "/usr/bin/peer --at 'path={socket},f={image}' {socket}").unwrap();
        assert_eq!(template.program(), "peer");
        assert!(template.mentions("socket") && template.mentions("image") && !template.mentions("x"));
        let words = template.expand(Path::new("/s o"), Some(Path::new("/i")));
        assert_eq!(words, ["/usr/bin/peer", "--at", "path=/s o,f=/i", "/s o"]);
    }

    #[test]
    fn an_open_quote_is_named() {
        let error = Template::parse("--against", "peer 'x").unwrap_err().to_string();
        assert_eq!(error, "--against \"peer 'x\": a quote is not closed");
    }

    #[test]
    fn a_server_that_ends_is_blamed_with_its_words() {
        let words = ["sh", "-c", "echo no such image >&2; exit 3"].map(String::from);
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start(&words, &dir.path().join("s"), &[]).unwrap();
        let error = server.load(&Spec::default()).unwrap_err().to_string();
        assert!(error.contains("before it listened") && error.contains("no such image"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let words = ["/nonexistent/server".to_string()];
        let error = Server::start(&words, Path::new("/nonexistent/s"), &[]).unwrap_err().to_string();
        assert_eq!(error, "cannot start \"/nonexistent/server\"; is it installed?");
    }
}
