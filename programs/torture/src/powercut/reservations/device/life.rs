//! The part of it that lives in the guest: processes that keep reservations in a file on a mapped device.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::Lived;
use crate::powercut::device::inside::forget_vdso;
use crate::powercut::device::mark::Marker;
use crate::powercut::reservations::guests::Guests;
use crate::powercut::reservations::life::{self, Deeds, Ends, Left, Scene};
use crate::powercut::reservations::watch::{Event, Missing, Tape};
use crate::powercut::reservations::{Plan, draw};
use crate::rng::Rng;

/// Options of `xtask torture powercut-reservations-life`, which its caller on the host knows.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the mapped device that the file system is on.
    #[arg(long)]
    device: String,
    /// The file.
    #[arg(long)]
    path: PathBuf,
    /// Where what has happened goes.
    #[arg(long)]
    lived: PathBuf,
    /// Seed of the run.
    #[arg(long)]
    seed: u64,
    /// Number of the file within it.
    #[arg(long)]
    file: u32,
    /// The step that is left out.
    #[arg(long)]
    without_step: Option<Missing>,
}

/// Lives them.
pub(crate) fn run(options: &Options) -> Result<()> {
    forget_vdso()?;
    let plan = Plan { seed: options.seed, cuts: 0, without: options.without_step, on_device: true };
    let mut rng = Rng::new(options.seed, u64::from(options.file));
    // What a file system does that fails, it does to all of its files.
    let scene = Scene { fails: None, ..draw(plan, options.file, &mut rng) };
    let names = Guests::names()?;
    let marker = Marker::open(&options.device)?;
    let tape = Tape::marking(move |number| marker.mark(number));
    let lived = match life::live(&scene, &names, &options.path, &Left::nothing(), tape, &mut rng) {
        Ok(story) => {
            let may = (0..).zip(story.events).filter_map(|(number, event)| match event {
                Event::May(may) => Some((number, may)),
                Event::Done(_) => None,
            });
            Lived { may: may.collect(), deeds: story.deeds, violation: None }
        }
        Err(Ends::Violation(what)) => Lived { may: Vec::new(), deeds: Deeds::default(), violation: Some(what) },
        Err(Ends::Error(error)) => return Err(error),
    };
    let file = File::create(&options.lived).with_context(|| format!("cannot create {}", options.lived.display()))?;
    serde_json::to_writer(&file, &lived)?;
    Ok(())
}
