//! Volumes on a real kernel's block layer: what `record` makes up, Linux does here.
//!
//! A guest with User Mode Linux has a device on which dm-log-writes logs all that reaches it, in the order in which it becomes
//! certain. The volume lives on that device, by the same storage that the daemon opens, under the same load as elsewhere, and what
//! the load asks and is told stands between the kernel's entries as marks. Outside of the guest both become one trace (`merge`),
//! and the power goes behind each entry of it. What this sees and a model cannot is whether a durable write is one to the kernel,
//! and whether a flush reaches the device in front of all that counts on it. What some of the cuts leave the daemon's program has to
//! check, replay and copy as well (`look`).

pub(crate) mod inside;
pub(in crate::powercut) mod log;
mod look;
pub(in crate::powercut) mod mark;
mod merge;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::lab::{Lab, Turn};
use guest::{Guest, Machine, Shell, uml};

use super::live::{Before, Life};
use super::trace::{Scene, Trace};
use crate::rng::Rng;

const LIFE: &str = concat!(include_str!("log.sh"), include_str!("life.sh"));
/// The program's name in the share.
const PROGRAM: &str = "torture";
/// One for each queue of the load.
const PROCESSORS: u32 = 2;
/// Device and log are in the guest's memory: half of it may be files.
const MEMORY_MIB: u32 = 1024;
/// A life takes seconds; a volume that hangs takes for ever.
const LIFE_LIMIT: Duration = Duration::from_secs(180);
/// One life in so many goes through the page cache.
const BUFFERED: u64 = 4;

/// A guest in which volumes live, one after the other.
pub(super) struct Stand {
    // Ends before others have their turn.
    guest: Guest,
    program: PathBuf,
    lives: u32,
    _turn: Turn,
}

impl Stand {
    /// Boots it, once there is a place for it in the lab. `program` is the daemon's.
    pub(super) fn boot(program: &Path) -> Result<Self> {
        let turn = Lab::locate()?.wait_for_place()?;
        turn.require_uml_smp()?;
        let machine = Machine { processors: PROCESSORS, memory_mib: MEMORY_MIB, ..Machine::default() };
        let guest = uml::boot(&turn.kit(), &machine, &[])?;
        // A copy: a build that goes on meanwhile may replace it.
        fs::copy("/proc/self/exe", guest.share().join(PROGRAM)).context("cannot copy this program for the guest")?;
        Ok(Self { guest, program: program.to_owned(), lives: 0, _turn: turn })
    }

    /// The release of its kernel.
    pub(super) fn kernel(&self) -> &str {
        self.guest.kernel()
    }

    /// What of a scene there can be: a device does not grow, and has its log inside.
    pub(super) fn scene(mut scene: Scene) -> Scene {
        scene.growth_bytes.clear();
        scene.external_log = false;
        scene
    }

    /// Has the program look at what a cut has left in a scene.
    pub(super) fn look(&self, scene: &Scene, left: &Before) -> Result<()> {
        look::look(&self.program, left).with_context(|| format!("{scene}: what a cut has left"))
    }

    /// Has a volume live in the guest.
    pub(super) fn live(&mut self, scene: &Scene, before: &Before, rng: &mut Rng) -> Result<Life> {
        self.lives += 1;
        self.try_live(scene, before, rng).with_context(|| format!("{scene}, in the guest"))
    }

    fn try_live(&mut self, scene: &Scene, before: &Before, rng: &mut Rng) -> Result<Life> {
        // A new name each time: the guest may remember what an old one held.
        let name = format!("life-{}", self.lives);
        let directory = self.guest.share().join(&name);
        fs::create_dir(&directory)?;
        let device = before.devices.first().context("a volume has a device")?;
        fs::write(directory.join("data.img"), device)?;
        let trace = before.clone().into_trace(scene.clone());
        fs::write(directory.join("before.json"), serde_json::to_vec(&trace)?)?;
        let direct = if rng.once_in(BUFFERED) { "" } else { " --direct" };
        let script = format!(
            "life=\"$job/{name}\" program=\"$job/{PROGRAM}\" options=\"--seed {}{direct}\"\n{LIFE}",
            rng.next()
        );
        let output = self.guest.run(&script, LIFE_LIMIT)?;
        let said = format!("{}{}", output.stdout, output.stderr);
        ensure!(output.status == 0, "status {}: {}", output.status, said.trim());

        let tape = fs::read(directory.join("tape.json"))?;
        let (tape, commits, sweeps): (Trace, u64, u64) = serde_json::from_slice(&tape).context("the load's tape")?;
        let log = log::read(&File::open(directory.join("log.img"))?).context("the kernel's log")?;
        let trace = merge::merge(Trace { before: before.devices.clone(), ..tape }, log)?;
        merge::check_end(&trace, &fs::read(directory.join("after.img"))?)?;
        fs::remove_dir_all(&directory)?;
        Ok(Life { trace, commits, sweeps })
    }
}
