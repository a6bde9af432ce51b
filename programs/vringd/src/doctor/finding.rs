//! What a look at the machine finds, for people and for programs.

use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// How much a finding holds a configuration back, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// The configuration, or a part of it, cannot be served.
    Fails,
    /// It is served, with less than was asked for, or until something runs out.
    Degraded,
    /// It is served, slower than it could be.
    Slow,
    /// Worth knowing.
    Note,
    /// Looked at, and nothing is wrong.
    Good,
}

impl Level {
    /// The word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Level::Fails => "fails",
            Level::Degraded => "degraded",
            Level::Slow => "slow",
            Level::Note => "note",
            Level::Good => "good",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Area {
    Kernel,
    Limits,
    Memory,
    Sandbox,
    Images,
    Directories,
    Sockets,
    Libvirt,
}

/// One finding. Programs tell it by `area` and `check`, which stay what they are; all else is for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) area: Area,
    /// A word for what was looked at.
    pub(super) check: &'static str,
    /// Whom it is about: `machine`, or the part of the configuration.
    pub(super) subject: String,
    /// What was seen.
    pub(super) seen: String,
    /// What that costs; nothing where all is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<String>,
    /// A line to type, or to write into a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

/// The subject of what no part of a configuration has to itself.
pub(super) const MACHINE: &str = "machine";

/// Makes findings about one thing.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    area: Area,
    subject: &'a str,
}

impl<'a> About<'a> {
    pub(super) fn new(area: Area, subject: &'a str) -> About<'a> {
        About { area, subject }
    }

    pub(super) fn machine(area: Area) -> About<'static> {
        About { area, subject: MACHINE }
    }

    /// A finding that costs something.
    pub(super) fn costs(
        self,
        level: Level,
        check: &'static str,
        seen: impl fmt::Display,
        cost: impl fmt::Display,
    ) -> Finding {
        Finding {
            level,
            area: self.area,
            check,
            subject: self.subject.to_owned(),
            seen: seen.to_string(),
            cost: Some(cost.to_string()),
            fix: None,
        }
    }

    /// Something good.
    pub(super) fn good(self, check: &'static str, seen: impl fmt::Display) -> Finding {
        Finding { cost: None, ..self.costs(Level::Good, check, seen, "") }
    }
}

impl Finding {
    /// The same, with the line that mends it.
    #[must_use]
    pub(super) fn fix(self, line: impl fmt::Display) -> Finding {
        Finding { fix: Some(line.to_string()), ..self }
    }
}

/// All findings about a configuration, or about the machine alone.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Of this form. It goes up when a program that reads it would have to change.
    version: u32,
    /// The configuration's file; `null` for the machine alone.
    config: Option<String>,
    /// Nothing fails.
    serves: bool,
    findings: Vec<Finding>,
}

/// The form of [`Report`] as JSON (docs/doctor.md).
const VERSION: u32 = 1;

impl Report {
    /// The worst first; what is good only if `verbose`.
    pub(super) fn new(config: Option<String>, findings: Vec<Finding>, verbose: bool) -> Report {
        let mut findings: Vec<_> =
            findings.into_iter().filter(|finding| verbose || finding.level != Level::Good).collect();
        findings.sort_by_key(|finding| finding.level);
        let serves = findings.iter().all(|finding| finding.level != Level::Fails);
        Report { version: VERSION, config, serves, findings }
    }

    /// Nothing fails.
    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        let of = self.findings.iter().map(|finding| {
            let Finding { level, subject, seen, cost, fix, .. } = finding;
            let mut text = format!("{level:<9} {}\n", one_line(&format!("{subject}: {seen}")));
            for (name, line) in [("costs", cost), ("fix", fix)] {
                if let Some(line) = line {
                    text += &format!("          {name:<6} {}\n", one_line(line));
                }
            }
            text
        });
        let text: String = of.collect();
        text + &self.summary()
    }

    /// How many there are of each level.
    fn summary(&self) -> String {
        let what = self.config.as_deref().unwrap_or("this machine");
        let levels = [Level::Fails, Level::Degraded, Level::Slow, Level::Note, Level::Good];
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let counts = levels.map(|level| (count(level), level));
        let counts: Vec<_> =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, level)| format!("{count} {level}")).collect();
        match counts.is_empty() {
            true => format!("{what}: nothing holds it back\n"),
            false => format!("{what}: {}\n", counts.join(", ")),
        }
    }
}

/// A path as a word that a shell takes for it: images name others, and nobody is to type what they say.
pub(super) fn word(path: &Path) -> String {
    let path = path.to_string_lossy();
    shlex::try_quote(&path).map_or_else(|_| path.escape_debug().to_string(), Cow::into_owned)
}

/// Without what would begin another line, or be taken by a terminal.
fn one_line(text: &str) -> String {
    let of = |letter: char| {
        let (plain, escaped) =
            if letter.is_control() { (None, Some(letter.escape_default())) } else { (Some(letter), None) };
        plain.into_iter().chain(escaped.into_iter().flatten())
    };
    text.chars().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_no_line_and_run_no_command() {
        let machine = About::machine(Area::Images);
        let found = machine.costs(Level::Fails, "open", "/a\nb\u{1b}[31m: é", "no").fix(word(Path::new("/a b'$(c)")));
        let words = Report::new(None, vec![found], false).words();
        assert!(words.starts_with("fails     machine: /a\\nb\\u{1b}[31m: é\n          costs  no\n"), "{words}");
        let fix = words.lines().find_map(|line| line.trim_start().strip_prefix("fix    ")).unwrap();
        assert_eq!(shlex::split(fix).unwrap(), ["/a b'$(c)"]);
        assert_eq!(word(Path::new("/srv/a.img")), "/srv/a.img");
    }

    fn findings() -> Vec<Finding> {
        let machine = About::machine(Area::Kernel);
        vec![
            machine.good("io-uring", "io_uring is allowed"),
            machine.costs(Level::Slow, "batched", "no batches", "more wake-ups"),
            About::new(Area::Images, "export a")
                .costs(Level::Fails, "open", "/a: is missing", "nothing is served")
                .fix("touch /a"),
        ]
    }

    #[test]
    fn the_worst_comes_first_and_the_good_when_asked_for() {
        let report = Report::new(Some("c.toml".into()), findings(), false);
        let words = "fails     export a: /a: is missing\n          costs  nothing is served\n          fix    touch /a\n\
                     slow      machine: no batches\n          costs  more wake-ups\nc.toml: 1 fails, 1 slow\n";
        assert_eq!(report.words(), words);
        assert!(!report.serves());
        let all = Report::new(None, findings(), true);
        assert!(
            all.words().ends_with("good      machine: io_uring is allowed\nthis machine: 1 fails, 1 slow, 1 good\n")
        );
        let none = Report::new(None, Vec::new(), false);
        assert!(none.serves() && none.words() == "this machine: nothing holds it back\n");
    }

    /// What docs/doctor.md promises to programs.
    #[test]
    fn programs_find_what_they_were_promised() {
        let report = Report::new(Some("c.toml".into()), findings(), true);
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({
            "version": 1, "config": "c.toml", "serves": false, "findings": [
                { "level": "fails", "area": "images", "check": "open", "subject": "export a", "seen": "/a: is missing",
                  "cost": "nothing is served", "fix": "touch /a" },
                { "level": "slow", "area": "kernel", "check": "batched", "subject": "machine", "seen": "no batches",
                  "cost": "more wake-ups" },
                { "level": "good", "area": "kernel", "check": "io-uring", "subject": "machine", "seen": "io_uring is allowed" },
            ],
        });
        assert_eq!(json, expected);
    }
}
