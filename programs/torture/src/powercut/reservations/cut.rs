//! Cuts: behind each event of a file's lives the power goes, the file is opened as the daemon opens it, and what it says of
//! reservations has to be something that may be there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use storage::RecordFile;

use super::life::{Ends, Left, Scene};
use super::medium::{Image, Medium};
use super::state::Found;
use super::watch::{Careless, Event};
use crate::powercut::cut::Budget;
use crate::rng::Rng;

/// What was done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Power cuts, each followed by a look at what is kept.
    pub(super) cuts: u64,
    /// Events behind which the power went...
    pub(super) events: u64,
    /// ...and of these those behind which all was tried that a cut may leave.
    pub(super) exhausted: u64,
    /// The most that one left that way.
    pub(super) ways_max: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.events += other.events;
        self.exhausted += other.exhausted;
        self.ways_max = self.ways_max.max(other.ways_max);
    }
}

/// Makes the cuts behind each event while the `budget` lasts, with files at `path`. What one of them leaves, behind event `keep`, is
/// returned: other lives can begin with it.
pub(super) fn run(
    scene: &Scene,
    left: &Left,
    events: &[Event],
    path: &Path,
    budget: &Budget,
    keep: usize,
) -> (Tally, Result<Option<Left>, Ends>) {
    let mut tally = Tally::default();
    let result = cut(scene, left, events, path, budget, keep, &mut tally);
    (tally, result)
}

fn cut(
    scene: &Scene,
    left: &Left,
    events: &[Event],
    path: &Path,
    budget: &Budget,
    keep: usize,
    tally: &mut Tally,
) -> Result<Option<Left>, Ends> {
    let (mut medium, mut may, mut kept) = (Medium::new(&left.image), left.may.clone(), None);
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Done(done) => medium.happens(done),
            Event::May(now) => may = now.clone(),
        }
        // A cut is the same whatever was cut before it.
        let life = u64::from(scene.file) << 8 | u64::from(scene.generation);
        let mut rng = Rng::new(scene.seed ^ life << 32, number as u64);
        let (images, is_all) = medium.images(scene.exhaustive, &mut rng);
        tally.events += 1;
        tally.exhausted += u64::from(is_all);
        tally.ways_max = tally.ways_max.max(if is_all { images.len() as u64 } else { 0 });
        for image in &images {
            if !budget.take() {
                return Ok(kept);
            }
            tally.cuts += 1;
            let found = look(image, path)?;
            let is_right = found.as_ref().is_ok_and(|found| may.permits(found));
            if !is_right {
                let len = image.as_ref().map(Vec::len);
                return Err(Ends::Violation(format!(
                    "cut behind event {number} of {}, {len:?} bytes are left: {may:?} may be there, and is not: {found:?}",
                    events.len()
                )));
            }
        }
        if number == keep && !images.is_empty() {
            let image = images[rng.within(0..=images.len() as u64 - 1) as usize].clone();
            kept = Some(Left { image, may: may.clone() });
        }
    }
    Ok(kept)
}

/// What a daemon would make of what a cut has left; or why it does not serve the disk.
fn look(image: &Image, path: &Path) -> Result<Result<Found, String>> {
    match image {
        Some(contents) => fs::write(path, contents).context("cannot write a file anew")?,
        None => drop(fs::remove_file(path)),
    }
    kept(path)
}

/// What it would make of the file at this path.
pub(super) fn kept(path: &Path) -> Result<Result<Found, String>> {
    let opened = RecordFile::open_seen(path, Arc::new(Careless)).map_err(|error| error.to_string());
    let reservations = opened.and_then(|file| export::kept_in(&file).map_err(|error| error.to_string()));
    reservations.map(|reservations| Found::of(&reservations)).map_or_else(|why| Ok(Err(why)), |found| found.map(Ok))
}
