//! Tools as a person types them, in a directory of their own.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::rc::Rc;

/// A directory in which commands run.
pub(crate) struct Place(Rc<tempfile::TempDir>, &'static str);

impl Place {
    /// Of `vringd volume`, or another tool.
    pub(crate) fn of(tool: &'static str) -> Place {
        Place(Rc::new(tempfile::tempdir().unwrap()), tool)
    }

    /// The same directory for another tool.
    pub(crate) fn and(&self, tool: &'static str) -> Place {
        Place(Rc::clone(&self.0), tool)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vringd"));
        command.args(["--log-level", "error", self.1]).args(words.split_whitespace()).current_dir(self.0.path());
        command.env_remove("VRINGD_LOG").output().unwrap()
    }

    /// What it printed; it must succeed.
    pub(crate) fn done(&self, words: &str) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{words}: {} {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.done(&format!("{words} --json"))).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// It is refused with one line that has all of `parts`, and changes nothing.
    pub(crate) fn refused(&self, words: &str, parts: &[&str]) {
        let bytes =
            |place: &Place| place.names().iter().map(|name| fs::read(place.path(name)).ok()).collect::<Vec<_>>();
        let before = (self.names(), bytes(self));
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(output.stdout.is_empty(), "{words}");
        assert!(said.starts_with("vringd: ") && said.lines().count() == 1, "{words}: {said}");
        for part in parts {
            assert!(said.contains(part), "{words}: `{part}` is not in: {said}");
        }
        assert!(before == (self.names(), bytes(self)), "{words} has changed something");
    }
}

/// `vringd disk`, killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// What it said until it listened.
    before: Vec<String>,
    /// Open, because it goes on to talk.
    said: Lines<BufReader<ChildStderr>>,
}

impl Server {
    /// When it listens, and so has written to its volume what it writes at the start.
    pub(crate) fn start(place: &Place, words: &str) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vringd"));
        command.arg("disk").args(words.split_whitespace()).current_dir(place.0.path());
        let mut child = command.env_remove("VRINGD_LOG").stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut before = Vec::new();
        while !before.last().is_some_and(|line: &String| line.contains("listening")) {
            let line = said.next().unwrap_or_else(|| panic!("{words}: {:?}: {before:?}", child.wait()));
            before.push(line.unwrap());
        }
        Server { child, before, said }
    }

    /// What it said until it listened.
    pub(crate) fn said_before(&self) -> Vec<String> {
        self.before.clone()
    }

    /// When it has ended, as somebody has told it to: what it said since it listens.
    pub(crate) fn ends(mut self) -> Vec<String> {
        let said = self.said.by_ref().map(Result::unwrap).collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {said:?}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
