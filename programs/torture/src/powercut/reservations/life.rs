//! The lives of one file: processes that open it or take it over, serve guests, and end or are killed; all in one trace.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use device::scsi::reservations::Reservations;
use export::{LogicalUnitName, LogicalUnits};
use serde::{Deserialize, Serialize};
use storage::{HandedRecord, RecordError, RecordFile};

use super::driver::Answer;
use super::guests::{DISK, Guests};
use super::load::{self, Command, Manner, Names};
use super::medium::Image;
use super::state::{Found, May};
use super::watch::{Event, Luck, Missing, Process, Tape};
use crate::rng::Rng;

/// Where the record begins in what is written of it, and where its length stands (`docs/formats/reservations.md`).
const RECORD_AT: usize = 32;
const RECORD_LEN_AT: usize = 16;
/// Bytes of a slot.
const SLOT_BYTES: usize = 8192;
/// How long a process that has ended may still have the file: its last thread lets go of it.
const LETS_GO: Duration = Duration::from_secs(20);
/// How often a process may fail to begin, one after the other.
const BEGINNINGS: u32 = 200;

/// What the lives of a file are like.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) seed: u64,
    /// Number of the file within the run.
    pub(super) file: u32,
    /// How many power cuts it has had before.
    pub(super) generation: u32,
    /// Processes.
    pub(super) processes: u64,
    /// Commands of each, at most.
    pub(super) commands: u64,
    pub(super) manner: Manner,
    /// One step in so many fails.
    pub(super) fails: Option<u64>,
    /// What a cut may leave is tried to the last where it is no more than this.
    pub(super) exhaustive: u64,
    pub(super) without: Option<Missing>,
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, file, generation, .. } = self;
        write!(f, "seed {seed}, file {file} after {generation} cuts")?;
        if self.fails.is_some() {
            f.write_str(", on storage that fails")?;
        }
        match self.without {
            Some(missing) => write!(f, ", WITHOUT the step {missing:?}"),
            None => Ok(()),
        }
    }
}

/// What a cut has left, and what that may be.
#[derive(Clone)]
pub(super) struct Left {
    pub(super) image: Image,
    pub(super) may: May,
}

impl Left {
    /// Nothing was ever there.
    pub(super) fn nothing() -> Self {
        Self { image: None, may: May::only(&Found::default()) }
    }
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Deeds {
    /// Commands that were answered GOOD, and times that reservations were broken.
    pub(super) changes: u64,
    /// Commands that could not be stored.
    pub(super) failures: u64,
    /// Processes that were killed.
    pub(super) kills: u64,
    /// Files that went from one to the next while they were open.
    pub(super) upgrades: u64,
    /// The most registrations.
    pub(super) registrations_max: usize,
}

impl Deeds {
    pub(super) fn add(&mut self, other: &Self) {
        self.changes += other.changes;
        self.failures += other.failures;
        self.kills += other.kills;
        self.upgrades += other.upgrades;
        self.registrations_max = self.registrations_max.max(other.registrations_max);
    }
}

/// The lives of a file, over.
pub(super) struct Story {
    pub(super) events: Vec<Event>,
    pub(super) deeds: Deeds,
}

/// How a process comes by the file.
enum Comes {
    Opens,
    /// Another one has handed it over, with what guests found.
    Takes {
        fd: OwnedFd,
        handed: HandedRecord,
        units: Vec<(LogicalUnitName, Vec<u8>)>,
        found: Found,
    },
}

/// Why it ended: a promise was not kept, or something else went wrong.
pub(super) enum Ends {
    Violation(String),
    Error(Error),
}

impl<E: Into<Error>> From<E> for Ends {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

struct Lives<'a> {
    scene: &'a Scene,
    names: &'a Names,
    path: &'a Path,
    tape: Arc<Tape>,
    rng: Rng,
    /// What may be there now.
    may: May,
    deeds: Deeds,
}

/// Lives them, with the file at `path`.
pub(super) fn live(
    scene: &Scene,
    names: &Names,
    path: &Path,
    left: &Left,
    tape: Tape,
    rng: &mut Rng,
) -> Result<Story, Ends> {
    match &left.image {
        Some(contents) => std::fs::write(path, contents)?,
        None => drop(std::fs::remove_file(path)),
    }
    let mut lives = Lives {
        scene,
        names,
        path,
        tape: Arc::new(tape),
        rng: Rng::new(rng.next(), 0),
        may: left.may.clone(),
        deeds: Deeds::default(),
    };
    let mut comes = Comes::Opens;
    for _ in 0..scene.processes {
        comes = lives.process(comes)?;
    }
    drop(comes);
    let events = lives.tape.finish().context("an event cannot be marked")?;
    Ok(Story { events, deeds: lives.deeds })
}

impl Lives<'_> {
    /// One process: how the next one comes by the file.
    fn process(&mut self, comes: Comes) -> Result<Comes, Ends> {
        let (process, file, units, before) = match comes {
            Comes::Opens => {
                let (process, file) = self.open()?;
                (process, file, LogicalUnits::default(), None)
            }
            Comes::Takes { fd, handed, units, found } => {
                let process = self.begin(false);
                let file = RecordFile::adopt_seen(self.path, fd, handed, process.clone());
                if process.is_dead() {
                    self.deeds.kills += 1;
                    return Ok(Comes::Opens);
                }
                if !file.is_uncertain() {
                    self.is_now(&found);
                }
                process.take_written();
                let logical = LogicalUnits::default();
                for (name, bytes) in units {
                    logical.leave_reservations(name, &bytes).map_err(|error| anyhow!("{error}"))?;
                }
                (process, file, logical, Some(found))
            }
        };
        let file = Arc::new(file);
        if before.is_none() && self.rng.once_in(10) && !self.breaks(&process, &file, &units) {
            self.deeds.kills += 1;
            return Ok(Comes::Opens);
        }
        let mut guests = Guests::new(Some(&file), units)?;
        let found = guests.find()?;
        match before {
            Some(before) if before != found => {
                return Err(Ends::Violation(format!("guests had {before:?} before an upgrade, and have {found:?}")));
            }
            // What another record may say is not to be seen.
            Some(_) => {}
            None if self.may.permits(&found.left()) => self.is_now(&found),
            None => {
                return Err(Ends::Violation(format!("a process finds {found:?} instead of {:?}", self.may)));
            }
        }
        self.serve(&mut guests, &process, &file)?;
        if process.is_dead() {
            self.deeds.kills += 1;
            return Ok(Comes::Opens);
        }
        if self.rng.once_in(2) {
            // Killed at rest.
            process.kill();
            self.deeds.kills += 1;
            return Ok(Comes::Opens);
        }
        let found = guests.find()?;
        let (fd, handed) = file.hand_over().context("the file cannot be handed over")?;
        self.deeds.upgrades += 1;
        Ok(Comes::Takes { fd, handed, units: guests.units.reservations(), found })
    }

    fn begin(&mut self, opens: bool) -> Arc<Process> {
        let rng = &mut self.rng;
        let steps = if rng.once_in(2) { Some(rng.within(0..=2 * self.scene.commands)) } else { None };
        let steps = if opens && rng.once_in(3) { Some(rng.within(0..=5)) } else { steps };
        let (fails, without) = (self.scene.fails, self.scene.without);
        Process::new(&self.tape, Luck { steps, fails, without, rng: Rng::new(rng.next(), 0) }, opens)
    }

    /// Processes that begin, until one has opened the file.
    fn open(&mut self) -> Result<(Arc<Process>, RecordFile), Ends> {
        let by = Instant::now() + LETS_GO;
        for _ in 0..BEGINNINGS {
            let process = self.begin(true);
            let opened = loop {
                match RecordFile::open_seen(self.path, process.clone()) {
                    Err(RecordError::InUse { .. }) if Instant::now() < by => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    opened => break opened,
                }
            };
            match opened {
                _ if process.is_dead() => self.deeds.kills += 1,
                Ok(file) => {
                    process.serves();
                    process.take_written();
                    return Ok((process, file));
                }
                Err(_) if process.failures() > 0 => {}
                Err(error) => return Err(Ends::Violation(format!("a process cannot open the file: {error}"))),
            }
        }
        Err(anyhow!("no process comes to open the file").into())
    }

    /// Reservations are broken while nobody has the disk. Whether the process goes on.
    fn breaks(&mut self, process: &Process, file: &Arc<RecordFile>, units: &LogicalUnits) -> bool {
        let asked = self.asked();
        let broken = units.break_reservations(DISK, Some(file)).is_ok();
        self.during(asked, self.may.clone().or(&Found::default()));
        if broken && !process.is_dead() {
            self.deeds.changes += 1;
            self.is_now(&Found::default());
            return true;
        }
        process.kill();
        false
    }

    /// Guests ask for one thing after the other, until the process dies or they have had enough.
    fn serve(&mut self, guests: &mut Guests, process: &Process, file: &Arc<RecordFile>) -> Result<(), Ends> {
        let mut before = guests.find()?;
        for _ in 0..self.rng.within(0..=self.scene.commands) {
            let command = load::draw(&before, self.names, self.scene.manner, &mut self.rng);
            let asked = self.asked();
            let answer = match &command {
                Command::Ask { guest, cdb, list } => guests.drivers[*guest].ask(cdb, list, 0)?,
                Command::Break => match guests.units.break_reservations(DISK, Some(file)) {
                    Ok(()) => Answer::Good(Vec::new()),
                    Err(_) => Answer::Failed,
                },
            };
            let after = guests.find()?;
            self.answered(asked, &answer, (&before, &after), process, file)
                .map_err(|what| Ends::Violation(format!("{command:x?} is answered {answer:x?}: {what}")))?;
            if process.is_dead() {
                break;
            }
            self.deeds.registrations_max = self.deeds.registrations_max.max(after.registrations().len());
            before = after;
        }
        Ok(())
    }

    /// Something is asked for: what may be there meanwhile is known when it has ended.
    fn asked(&self) -> usize {
        self.tape.push(Event::May(self.may.clone()))
    }

    /// Since something was asked for, all of this may have been there, and may be.
    fn during(&mut self, asked: usize, may: May) {
        self.tape.since(asked, may.clone());
        self.may = may;
    }

    /// It has ended: there is this alone.
    fn is_now(&mut self, found: &Found) {
        self.may = May::only(found);
        self.tape.push(Event::May(self.may.clone()));
    }

    fn answered(
        &mut self,
        asked: usize,
        answer: &Answer,
        (before, after): (&Found, &Found),
        process: &Process,
        file: &RecordFile,
    ) -> Result<(), String> {
        let written = process.take_written();
        if *answer == Answer::Failed {
            // What guests would have found then, nobody has seen.
            let refused = written.iter().filter_map(|slot| record(slot)).collect::<Vec<_>>();
            self.during(asked, self.may.clone().or_any_of(&refused));
        } else {
            self.during(asked, self.may.clone().or(after));
        }
        if process.is_dead() {
            // Nobody has heard of it.
            return Ok(());
        }
        match answer {
            Answer::Good(_) => {
                self.deeds.changes += 1;
                // RESERVE and RELEASE of SCSI-2 have nothing stored, and find nobody registered.
                if !file.is_uncertain() {
                    self.is_now(after);
                } else if before != after {
                    return Err("nobody knows what is there".to_owned());
                }
            }
            _ if before != after => return Err(format!("there was {before:?}, and there is {after:?}")),
            Answer::Failed => {
                self.deeds.failures += 1;
                if !file.is_uncertain() {
                    self.is_now(before);
                }
            }
            Answer::Conflict | Answer::Check(..) => {}
        }
        Ok(())
    }
}

/// The reservations of which a slot was to be written; nothing if it is none.
fn record(slot: &[u8]) -> Option<Found> {
    if slot.len() != SLOT_BYTES {
        return None;
    }
    let len = u32::from_le_bytes(*slot.get(RECORD_LEN_AT..)?.first_chunk()?) as usize;
    let record = slot.get(RECORD_AT..RECORD_AT + len)?;
    if record.is_empty() {
        return Some(Found::default());
    }
    Found::of(&Reservations::from_bytes(record).ok()?.after_power_loss()).ok()
}
