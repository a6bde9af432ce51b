//! `cargo xtask torture hostile`: guests and frontends that break every rule, one attack after the other, while another
//! disk of the same process is under a load that checks each answer.
//!
//! After each attack the server must live, serve the other disk, serve a frontend that behaves on the very export that
//! was attacked, and hold no more descriptors and no more memory than before. Other servers are attacked in the same way, to
//! compare; what they lose is shown and is no failure.

mod attack;
mod cache;
mod check;
mod descriptors;
mod files;
mod frontend;
mod guest;
mod local;
mod memory;
mod p9;
mod raw;
mod scsi;
mod server;
mod session;
mod verdict;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};

use self::attack::{Admitted, Attack, Expect, Scene};
use self::server::{Program, Server};
use self::session::Device;
use self::verdict::{Outcome, Verdict};
use super::common::Common;
use super::figures::finish;
use super::rng::{Rng, mix};

/// Descriptors that a server may have open beyond those it had before all attacks: a session that is just ending.
const DESCRIPTORS_SPARE: usize = 8;
/// Memory that a server may have beyond what it had before all attacks, in KiB: buffers that it keeps for the next ones.
const MEMORY_SPARE_KIB: u64 = 128 << 10;
/// How long a server may take to close what a session had open.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Characters of a server's output that are shown.
const LAST_WORDS: usize = 2000;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Options of `cargo xtask torture hostile`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
    /// How often each attack is made; what stands behind the attacked disk changes with the round.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Who is attacked.
    #[arg(long, value_enum, default_value_t = Which::Vringd)]
    server: Which,
    /// Only attacks whose name contains this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Say what attacks there are, and make none.
    #[arg(long)]
    list: bool,
}

/// Who is attacked.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// This project's server.
    Vringd,
    /// QEMU's, from the lab.
    #[value(name = "qemu-storage-daemon")]
    StorageDaemon,
    /// One after the other.
    Both,
}

impl Which {
    fn programs(self) -> &'static [Program] {
        match self {
            Self::Vringd => &[Program::Vringd],
            Self::StorageDaemon => &[Program::StorageDaemon],
            Self::Both => &[Program::Vringd, Program::StorageDaemon],
        }
    }
}

/// Makes the attacks and says what became of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    let named = |attack: &&Attack| options.only.as_ref().is_none_or(|text| attack.name.contains(text.as_str()));
    let attacks: Vec<&Attack> = attacks().filter(named).collect();
    ensure!(!attacks.is_empty(), "--only names no attack; --list says which there are");
    if options.list {
        for attack in attacks {
            println!("{:34} {}", attack.name, attack.what);
        }
        return Ok(());
    }
    let seed = options.common.seed("hostile");
    let vringd = options.common.program.find()?;
    let mut outcome = Outcome::new(seed, options.rounds);
    for program in options.server.programs() {
        for round in 0..u64::from(options.rounds) {
            eprintln!("torture hostile: {}, round {} of {}", program.name(), round + 1, options.rounds);
            Stand::new(*program, &vringd, seed, round).face_all(&attacks, &mut outcome)?;
        }
    }
    let lost = outcome.lost();
    finish(&outcome, options.common.json, lost.as_deref())
}

/// One round on one server.
struct Stand<'a> {
    program: Program,
    vringd: &'a Path,
    seed: u64,
    round: u64,
    starts: u64,
}

/// A server, and what it had before all attacks.
struct Served {
    server: Server,
    descriptors: usize,
    memory_kib: u64,
}

impl<'a> Stand<'a> {
    fn new(program: Program, vringd: &'a Path, seed: u64, round: u64) -> Self {
        Self { program, vringd, seed, round, starts: 0 }
    }

    fn start(&mut self) -> Result<Served> {
        self.starts += 1;
        let seed = mix(self.seed ^ self.round << 32 ^ self.starts);
        let server = Server::start(self.program, self.vringd, self.round, seed)?;
        for device in self.program.devices() {
            let served = check::serves(&server.socket(*device), *device, String::new);
            served.with_context(|| format!("{} serves nothing before any attack", self.program.name()))?;
        }
        // The sessions of these checks are ending.
        thread::sleep(CLOSE_LIMIT / 20);
        let (descriptors, memory_kib) = (server.descriptors()?, server.memory_kib()?);
        Ok(Served { server, descriptors, memory_kib })
    }

    /// Makes every attack on everything that it suits.
    fn face_all(&mut self, attacks: &[&Attack], outcome: &mut Outcome) -> Result<()> {
        let mut served = self.start()?;
        for attack in attacks {
            for device in self.program.devices().iter().filter(|device| attack.suits(**device)) {
                let stream = attack
                    .name
                    .bytes()
                    .fold(self.round << 8 | *device as u64, |hash, byte| mix(hash ^ u64::from(byte)));
                let verdict = served.face(self.program, attack, *device, Rng::new(self.seed, stream))?;
                if verdict != Verdict::Survived {
                    eprintln!("torture hostile: {} on the {}: {verdict}", attack.name, device.name());
                    if !matches!(verdict, Verdict::Hung(_)) {
                        eprintln!("{}", served.last_words(self.program));
                    }
                }
                let restart = verdict.needs_restart();
                outcome.note(attack, *device, self.program, verdict);
                if restart {
                    drop(std::mem::replace(&mut served, self.start()?));
                }
            }
        }
        match served.server.finish() {
            Ok(report) => {
                outcome.note_load(self.program, &report);
                if self.program == Program::Vringd && !report.is_clean() {
                    let (errors, mismatches) = (report.errors, report.mismatches);
                    outcome.note_fault(format!("the other disk had {errors} errors and {mismatches} mismatches"));
                }
            }
            Err(error) if self.program == Program::Vringd => outcome.note_fault(format!("{error:#}")),
            Err(error) => eprintln!("torture hostile: {}: {error:#}", self.program.name()),
        }
        Ok(())
    }
}

impl Served {
    /// The last words of a server of ours; those of others are their makers' business.
    fn last_words(&self, program: Program) -> String {
        if program != Program::Vringd {
            return String::new();
        }
        let output = self.server.output();
        let from = output.char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
        output[from..].to_owned()
    }

    /// What a server of ours that hangs shows of its rings, and its last words.
    fn server_says(&self, program: Program) -> String {
        if program != Program::Vringd {
            return String::new();
        }
        format!("; its rings:{}\nit said:\n{}", self.server.rings(), self.last_words(program))
    }

    /// Makes one attack and looks at what it leaves.
    fn face(&mut self, program: Program, attack: &Attack, device: Device, random: Rng) -> Result<Verdict> {
        let socket = self.server.socket(device);
        let mut scene = Scene::new(&socket, device, random);
        let reached = (attack.run)(&mut scene);
        // While the attacker is still there.
        let unnoticed = program == Program::Vringd
            && attack.expect == Expect::Broken
            && reached.is_ok()
            && self.server.broken(device).is_none();
        // What it says of its rings while the attacker is there: with the session they go.
        let quiet = self.server.quiet_goes_on().map_err(|error| anyhow!("{error:#}{}", self.server_says(program)));
        drop(scene);
        let next = check::serves(&socket, device, || self.server_says(program));
        if let Some(how) = self.server.ended()? {
            return Ok(Verdict::Ended(how));
        }
        if let Err(error) = quiet {
            return Ok(Verdict::Hung(format!("{error:#}")));
        }
        if let Err(error) = next {
            return Ok(Verdict::Hung(format!("the {}: {error:#}", device.name())));
        }
        if let Some(more) = self.kept()? {
            return Ok(Verdict::Leaked(more));
        }
        Ok(match reached {
            Err(error) if error.is::<Admitted>() => Verdict::Admitted(format!("{error:#}")),
            Err(error) => Verdict::NotReached(format!("{error:#}")),
            Ok(()) if unnoticed => Verdict::Unnoticed,
            Ok(()) => Verdict::Survived,
        })
    }

    /// What the server holds that it did not before all attacks.
    fn kept(&self) -> Result<Option<String>> {
        let start = Instant::now();
        loop {
            let (descriptors, memory_kib) = (self.server.descriptors()?, self.server.memory_kib()?);
            let too_many = descriptors > self.descriptors + DESCRIPTORS_SPARE;
            if !too_many && memory_kib <= self.memory_kib + MEMORY_SPARE_KIB {
                return Ok(None);
            }
            if start.elapsed() > CLOSE_LIMIT {
                let memory = memory_kib.saturating_sub(self.memory_kib) >> 10;
                let more = descriptors.saturating_sub(self.descriptors);
                return Ok(Some(format!("{more} descriptors and {memory} MiB more than before all attacks")));
            }
            thread::sleep(LOOK_AGAIN_AFTER);
        }
    }
}

/// All of them, in the order in which they are tried.
fn attacks() -> impl Iterator<Item = &'static Attack> {
    let guests = guest::ATTACKS.iter().chain(p9::ATTACKS).chain(files::ATTACKS).chain(memory::ATTACKS);
    let guests = guests.chain(cache::ATTACKS).chain(scsi::attacks()).chain(local::ATTACKS);
    guests.chain(descriptors::ATTACKS).chain(frontend::ATTACKS)
}
