//! What became of a server, attack by attack, and the table of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::attack::Attack;
use super::server::Program;
use super::session::Device;

/// What one attack did to a server. The later ones are worse.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "detail")]
pub(crate) enum Verdict {
    /// It serves the other disk and whoever comes next.
    Survived,
    /// The attack could not be made: the server did not come as far as being attacked.
    NotReached(String),
    /// The ring should have stopped, and the API does not say that it has.
    Unnoticed,
    /// It let somebody in who is not root.
    Admitted(String),
    /// It has more open descriptors, or more memory, than before all attacks.
    Leaked(String),
    /// It lives, and no longer serves somebody.
    Hung(String),
    /// The process is gone.
    Ended(String),
}

impl Verdict {
    /// Whether the server must be started again before the next attack.
    pub(crate) fn needs_restart(&self) -> bool {
        !matches!(self, Self::Survived | Self::NotReached(_) | Self::Unnoticed | Self::Admitted(_))
    }

    fn word(&self) -> String {
        match self {
            Self::Survived => "survived".to_owned(),
            Self::NotReached(_) => "not reached".to_owned(),
            Self::Unnoticed => "unnoticed".to_owned(),
            Self::Admitted(_) => "admitted".to_owned(),
            Self::Leaked(_) => "leaked".to_owned(),
            Self::Hung(_) => "hung".to_owned(),
            Self::Ended(how) => format!("ended ({how})"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached(why) | Self::Admitted(why) | Self::Leaked(why) | Self::Hung(why) => {
                write!(f, "{}: {why}", self.word())
            }
            _ => f.write_str(&self.word()),
        }
    }
}

/// The same attack on the same export of the same server, over all rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    attack: &'static str,
    what: &'static str,
    device: &'static str,
    server: &'static str,
    /// Rounds that it was made in.
    rounds: u32,
    /// Rounds that the server survived.
    survived: u32,
    /// What it did at its worst.
    #[serde(flatten)]
    worst: Verdict,
}

/// What a server did with all attacks.
#[derive(Clone, Debug, Serialize)]
struct Sum {
    server: &'static str,
    attacks: u32,
    survived: u32,
    ended: u32,
    hung: u32,
    /// Any other loss.
    other: u32,
    /// Requests of the verified load on the other disk, and what was wrong with them.
    verified_requests: u64,
    verified_errors: u64,
    verified_mismatches: u64,
}

/// All that came out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    seed: u64,
    rounds: u32,
    rows: Vec<Row>,
    servers: Vec<Sum>,
    /// Losses that are no attack's alone, of this project's server.
    faults: Vec<String>,
}

impl Outcome {
    pub(crate) fn new(seed: u64, rounds: u32) -> Self {
        Self { seed, rounds, rows: Vec::new(), servers: Vec::new(), faults: Vec::new() }
    }

    fn sum(&mut self, program: Program) -> &mut Sum {
        let server = program.name();
        let at = self.servers.iter().position(|sum| sum.server == server).unwrap_or_else(|| {
            self.servers.push(Sum {
                server,
                attacks: 0,
                survived: 0,
                ended: 0,
                hung: 0,
                other: 0,
                verified_requests: 0,
                verified_errors: 0,
                verified_mismatches: 0,
            });
            self.servers.len() - 1
        });
        &mut self.servers[at]
    }

    /// Notes what one attack did.
    pub(crate) fn note(&mut self, attack: &Attack, device: Device, program: Program, verdict: Verdict) {
        let sum = self.sum(program);
        sum.attacks += 1;
        match verdict {
            Verdict::Survived => sum.survived += 1,
            Verdict::Ended(_) => sum.ended += 1,
            Verdict::Hung(_) => sum.hung += 1,
            _ => sum.other += 1,
        }
        let (device, server) = (device.name(), program.name());
        let same = |row: &&mut Row| (row.attack, row.device, row.server) == (attack.name, device, server);
        let survived = u32::from(verdict == Verdict::Survived);
        if let Some(row) = self.rows.iter_mut().find(same) {
            row.rounds += 1;
            row.survived += survived;
            row.worst = row.worst.clone().max(verdict);
        } else {
            let (attack, what) = (attack.name, attack.what);
            self.rows.push(Row { attack, what, device, server, rounds: 1, survived, worst: verdict });
        }
    }

    /// Notes what the verified load on the other disk found.
    pub(crate) fn note_load(&mut self, program: Program, report: &bench::frontend::Report) {
        let sum = self.sum(program);
        sum.verified_requests += report.ops;
        sum.verified_errors += report.errors;
        sum.verified_mismatches += report.mismatches;
    }

    /// Notes a loss that is no attack's alone.
    pub(crate) fn note_fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// What this project's server lost, in one line; nothing if it lost nothing.
    pub(crate) fn lost(&self) -> Option<String> {
        let ours = Program::Vringd.name();
        let lost = |row: &&Row| row.server == ours && row.worst != Verdict::Survived;
        let rows = self.rows.iter().filter(lost);
        let mut losses: Vec<String> =
            rows.map(|row| format!("{} on the {}: {}", row.attack, row.device, row.worst)).collect();
        losses.extend(self.faults.iter().cloned());
        (!losses.is_empty()).then(|| format!("{ours} lost: {}", losses.join("; ")))
    }
}

impl fmt::Display for Outcome {
    /// The table, and the closing line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns: Vec<(&str, &str)> = Vec::new();
        let mut lines: Vec<&str> = Vec::new();
        let mut cells: BTreeMap<(&str, usize), String> = BTreeMap::new();
        for row in &self.rows {
            let column = (row.server, row.device);
            let at = columns.iter().position(|known| *known == column).unwrap_or_else(|| {
                columns.push(column);
                columns.len() - 1
            });
            if !lines.contains(&row.attack) {
                lines.push(row.attack);
            }
            let often = if row.rounds == 1 || row.survived == row.rounds {
                String::new()
            } else {
                format!(" {}/{}", row.rounds - row.survived, row.rounds)
            };
            cells.insert((row.attack, at), format!("{}{often}", row.worst.word()));
        }
        let heads: Vec<String> = columns.iter().map(|(server, device)| format!("{server}, {device}")).collect();
        let width = lines.iter().map(|line| line.len()).max().unwrap_or_default();
        write!(f, "{:width$}", "attack")?;
        for head in &heads {
            write!(f, "  {head:26}")?;
        }
        writeln!(f)?;
        for line in lines {
            write!(f, "{line:width$}")?;
            for at in 0..heads.len() {
                let cell = cells.get(&(line, at)).map_or("-", String::as_str);
                write!(f, "  {cell:26}")?;
            }
            writeln!(f)?;
        }
        write!(f, "hostile: seed {}, {} rounds", self.seed, self.rounds)?;
        for sum in &self.servers {
            write!(f, "; {}: {} attacks, survived {}", sum.server, sum.attacks, sum.survived)?;
            write!(f, ", ended by {}, hung by {}, other losses {}", sum.ended, sum.hung, sum.other)?;
            write!(
                f,
                ", on the other disk {} verified requests, {} errors, {} mismatches",
                sum.verified_requests, sum.verified_errors, sum.verified_mismatches
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::attacks;
    use super::*;

    #[test]
    fn the_worst_of_all_rounds_is_shown_and_counts() {
        let attack = attacks().next().unwrap();
        let mut outcome = Outcome::new(7, 2);
        outcome.note(attack, Device::Disk, Program::Vringd, Verdict::Survived);
        assert_eq!(outcome.lost(), None);
        outcome.note(attack, Device::Disk, Program::StorageDaemon, Verdict::Ended("SIGBUS".into()));
        assert_eq!(outcome.lost(), None, "what others lose is only shown");
        outcome.note(attack, Device::Disk, Program::Vringd, Verdict::Hung("the other disk".into()));
        outcome.note(attack, Device::Disk, Program::Vringd, Verdict::Survived);
        let lost = outcome.lost().unwrap();
        assert!(lost.contains(attack.name) && lost.contains("the other disk"), "{lost}");
        let shown = outcome.to_string();
        assert!(shown.contains("hung 1/3") && shown.contains("ended (SIGBUS)"), "{shown}");
        assert!(shown.lines().last().unwrap().starts_with("hostile: seed 7, 2 rounds; vringd: 3 attacks, survived 2"));
    }

    #[test]
    fn faults_of_the_server_alone_are_losses() {
        let mut outcome = Outcome::new(1, 1);
        outcome.note_fault("it ended badly".into());
        assert_eq!(outcome.lost().as_deref(), Some("vringd lost: it ended badly"));
    }
}
