//! Logical units: what all devices through which one is reached have in common.
//!
//! A unit's state is behind a lock, and has a version: a ring keeps a copy of its part, and looks at the version before each command.

use super::Which;
use super::lost::LostTasks;
use super::port::Port;
use super::swaps::Swaps;
use super::units::{Common, UnitOptions, hash, settings, whole_blocks};
use crate::ExportError;
use crate::label::Keeper;
use device::scsi::reservations::{FileError, Gate, Reservations};
use device::scsi::{Attention, Attentions, Identity, Mode, Naa, Nexus, TargetPort, Unit as Facts};
use engine::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use storage::kit::{Jobs, RECORDS};
use storage::{RecordFile, Storage};
use values::Lun;

/// What a unit says of itself, beside the vendor (SPC-5, "Standard INQUIRY data").
const PRODUCT: &str = "disk";
/// The first four characters of the version.
const REVISION: &str = {
    let version = env!("CARGO_PKG_VERSION");
    if version.len() > 4 { version.split_at(4).0 } else { version }
};

/// Commands on one unit that wait for those of other drivers, at most: the rings of these look at all of them with each command that begins
/// or ends.
const WAITING_MAX: usize = 16;

/// How long whoever breaks reservations waits until that is stored, and a change of a guest's before it.
const BREAK_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Where the SCSI devices of a daemon find the logical units of its disks. A shared disk is one logical unit of all
/// devices that have it: their drivers reserve it from each other. Any other disk is one to each of them.
#[derive(Clone, Default)]
pub struct LogicalUnits(Arc<Mutex<Shelf>>);

#[derive(Default)]
struct Shelf {
    units: BTreeMap<LogicalUnitName, Weak<Logical>>,
    /// What an earlier program has left of units, until all devices are here again.
    left: BTreeMap<LogicalUnitName, Left>,
}

/// What an earlier program has left of a unit.
#[derive(Clone, Default)]
struct Left {
    reservations: Option<Reservations>,
    /// The ports by which it was reached.
    ports: BTreeSet<TargetPort>,
    condition: Option<UnitCondition>,
}

/// What drivers have made of a logical unit, and what they have not been told yet: all that a program that goes on with it needs beside
/// [reservations](LogicalUnits::reservations), so that no driver hears of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitCondition {
    /// WCE.
    pub write_cache: bool,
    /// D_SENSE.
    pub descriptor_sense: bool,
    /// START STOP UNIT has stopped it.
    pub stopped: bool,
    /// Its drivers know that there is little space left.
    pub space_is_low: bool,
    /// What is to be told, by port and LUN, as bits; nothing is 0.
    pub attentions: Vec<(u16, Lun, u16)>,
}

/// Which logical unit of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogicalUnitName {
    /// Its disk.
    pub disk: String,
    /// The export whose device alone has it; `None` for a shared disk's.
    pub export: Option<String>,
}

impl LogicalUnits {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The logical unit of a disk.
    ///
    /// # Errors
    /// The disk cannot be one, or is one already that looks different.
    pub(super) fn unit(&self, options: UnitOptions, common: Common, port: &Port) -> Result<Arc<Logical>, ExportError> {
        let export = (!options.is_shared).then(|| port.export.clone());
        let name = LogicalUnitName { disk: options.disk.clone(), export };
        // Let go of behind the lock: whoever has it last closes its disk.
        let found;
        let mut shelf = self.lock();
        found = shelf.units.get(&name).and_then(Weak::upgrade);
        // One whose requests are still under way may outlive its disk, whose name is another one's by now.
        let is_its = |unit: &&Arc<Logical>| Arc::ptr_eq(&unit.storage(), &options.storage);
        if let Some(unit) = found.as_ref().filter(is_its) {
            return if unit.identity.serial() == options.serial && unit.common == common {
                Ok(unit.clone())
            } else {
                Err(ExportError::AnotherUnit { disk: options.disk, serial: unit.identity.serial().to_owned() })
            };
        }
        shelf.units.retain(|_, unit| unit.strong_count() > 0);
        // Whoever comes first may fail.
        let left = shelf.left.get(&name).cloned().unwrap_or_default();
        let unit = Arc::new(Logical::new(options, common, left)?);
        shelf.units.insert(name, Arc::downgrade(&unit));
        Ok(unit)
    }

    /// The reservations of all units that somebody is registered with, for the program that goes on with them.
    pub fn reservations(&self) -> Vec<(LogicalUnitName, Vec<u8>)> {
        let units: Vec<_> =
            self.lock().units.iter().filter_map(|(name, it)| Some((name.clone(), it.upgrade()?))).collect();
        let of =
            |unit: &Logical| unit.look(|state| (!state.reservations.is_empty()).then(|| state.reservations.to_bytes()));
        units.into_iter().filter_map(|(name, unit)| Some((name, of(&unit)?))).collect()
    }

    /// The conditions of all units, for the program that goes on with them.
    pub fn conditions(&self) -> Vec<(LogicalUnitName, UnitCondition)> {
        let units: Vec<_> =
            self.lock().units.iter().filter_map(|(name, it)| Some((name.clone(), it.upgrade()?))).collect();
        units.into_iter().map(|(name, unit)| (name, unit.look(State::condition))).collect()
    }

    /// An earlier program has left a unit so.
    pub fn leave_condition(&self, name: LogicalUnitName, condition: UnitCondition) {
        self.lock().left.entry(name).or_default().condition = Some(condition);
    }

    /// Ends what guests have reserved of a disk, on each unit that it is: who was kept out by that is not any more. `kept` is what keeps it
    /// over a loss of power. Waits, for a while.
    ///
    /// # Errors
    /// It cannot be stored, and is as before; or a change is being stored that has not ended.
    pub fn break_reservations(&self, disk: &str, kept: Option<&Arc<RecordFile>>) -> io::Result<()> {
        let by = Instant::now() + BREAK_PATIENCE;
        // An earlier disk of the name may be a unit still, while requests on it are under way.
        let is_its = |unit: &Logical| unit.disk == disk && unit.kept.as_ref().map(Arc::as_ptr) == kept.map(Arc::as_ptr);
        // Let go of behind the lock: whoever has one last closes its disk.
        let all: Vec<_>;
        let storing = {
            let shelf = self.lock();
            all = shelf.units.values().filter_map(Weak::upgrade).collect();
            let is_kept =
                |kept: &&Arc<RecordFile>| kept.is_storing() || kept.is_uncertain() || !kept.record().is_empty();
            // No unit begins with it from then on until it is stored.
            match kept.filter(is_kept).filter(|_| !all.iter().any(|unit| is_its(unit))) {
                Some(kept) => Some(kept.clone().storing()?),
                None => None,
            }
        };
        match storing {
            Some(storing) => {
                // No unit may ever have been there.
                RECORDS.prepare();
                stored_by(by, &Jobs::on(&RECORDS), move || storing.store(&[]))
            }
            None => all.iter().filter(|unit| is_its(unit)).try_for_each(|unit| unit.break_reservations(by)),
        }
    }

    /// Whether this storage of a disk has less space left than its threshold: whoever has it as a unit is told when that begins, or when
    /// they do.
    pub fn set_space_low(&self, storage: &Arc<dyn Storage>, is_low: bool) {
        let all: Vec<_> = self.lock().units.values().filter_map(Weak::upgrade).collect();
        let is_news = |state: &State| state.has_threshold() && state.is_space_low != is_low;
        for unit in all.iter().filter(|unit| Arc::ptr_eq(&unit.storage(), storage) && unit.look(is_news)) {
            unit.change(|state| {
                state.is_space_low = is_low;
                if is_low {
                    state.tell_all(Attention::SpaceIsLow);
                } else {
                    // It is no news any more to whoever has not heard of it.
                    for path in state.paths.values_mut() {
                        path.attentions = path.attentions.without(Attention::SpaceIsLow);
                    }
                }
            });
        }
    }

    /// An earlier program has left these reservations of a unit.
    ///
    /// # Errors
    /// They are none.
    pub fn leave_reservations(&self, name: LogicalUnitName, bytes: &[u8]) -> Result<(), FileError> {
        let reservations = Reservations::from_bytes(bytes)?;
        self.lock().left.entry(name).or_default().reservations = Some(reservations);
        Ok(())
    }

    /// The device of an earlier program with this number of its port is to have the unit of a shared disk again: those that are here
    /// before it do not see it go and come.
    pub fn expect(&self, disk: &str, port: u16) {
        let name = LogicalUnitName { disk: disk.to_owned(), export: None };
        self.lock().left.entry(name).or_default().ports.insert(TargetPort(port));
    }

    /// All devices of an earlier program are here again, or will not be.
    pub fn expect_no_more(&self) {
        let units: Vec<_> = {
            let mut shelf = self.lock();
            shelf.left.clear();
            shelf.units.values().filter_map(Weak::upgrade).collect()
        };
        units.iter().for_each(|unit| unit.expect_no_more());
    }
}

/// Has this done on a thread that may wait for a file system.
///
/// # Errors
/// It fails, or has not ended by then.
fn stored_by(by: Instant, jobs: &Jobs, store: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, stored) = channel();
    jobs.go(move || drop(done.send(store())));
    let left = by.saturating_duration_since(Instant::now());
    stored.recv_timeout(left).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What a file has kept of reservations: what is left of them after a loss of power.
///
/// # Errors
/// [`ExportError::Reservations`]; [`ExportError::Storing`].
pub fn kept_in(file: &RecordFile) -> Result<Reservations, ExportError> {
    if file.is_storing() {
        return Err(ExportError::Storing { path: file.path().to_owned() });
    }
    let record = file.record();
    if record.is_empty() {
        return Ok(Reservations::new());
    }
    let refused = |error| ExportError::Reservations { path: file.path().to_owned(), error };
    Ok(Reservations::from_bytes(&record).map_err(refused)?.after_power_loss())
}

/// Looks whether a file has reservations that a unit can begin with.
///
/// # Errors
/// [`ExportError::Reservations`]; [`ExportError::Storing`].
pub fn check_reservations(file: &RecordFile) -> Result<(), ExportError> {
    kept_in(file).map(drop)
}

/// A logical unit.
pub(crate) struct Logical {
    disk: String,
    identity: Identity,
    common: Common,
    storage: Mutex<Arc<dyn Storage>>,
    /// Counts changes of its state.
    version: AtomicU64,
    state: Mutex<State>,
    pub(super) swaps: Swaps,
    /// Commands that wait for those of other drivers.
    waiting: AtomicUsize,
    /// What keeps its reservations over a loss of power.
    kept: Option<Arc<RecordFile>>,
    /// The work of that, one at a time.
    jobs: Jobs,
}

/// One of the commands on a unit that wait for those of other drivers.
pub(crate) struct Waiting(Arc<Logical>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

/// What a driver may change of a unit, and what drivers are to be told.
pub(crate) struct State {
    pub(crate) facts: Facts,
    pub(crate) reservations: Reservations,
    /// A change of them is being stored: nobody makes another one meanwhile.
    pub(super) storing: bool,
    /// Devices that have it, by the numbers that they got when they came.
    paths: BTreeMap<u64, Path>,
    /// Ports of devices that are going to have it again.
    expected: BTreeSet<TargetPort>,
    /// What they are to be told then.
    left: BTreeMap<(TargetPort, Lun), Attentions>,
    /// Paths so far.
    came: u64,
    /// There is less space left than its threshold.
    is_space_low: bool,
}

/// A device's way to it.
struct Path {
    port: Arc<Port>,
    lun: Lun,
    attentions: Attentions,
    /// What rings of the device had begun when they fell.
    lost: Vec<Arc<LostTasks>>,
}

/// Whom to ask for tasks on a unit that come by other paths than one's own.
#[derive(Default)]
pub(crate) struct Others {
    /// Those who have the rings, and how the tasks are called there.
    pub(crate) keepers: Vec<(Arc<dyn Keeper>, Which)>,
    /// Tasks that no ring has any more.
    pub(crate) lost: Vec<Arc<LostTasks>>,
}

impl Others {
    /// Those of several units.
    pub(crate) fn of(all: impl IntoIterator<Item = Others>) -> Others {
        all.into_iter().fold(Others::default(), |mut sum, others| {
            sum.keepers.extend(others.keepers);
            sum.lost.extend(others.lost);
            sum
        })
    }
}

impl State {
    /// The driver of this path is told of this with its next command.
    pub(crate) fn establish(&mut self, path: u64, attention: Attention) {
        self.tell(attention, |other, _| other == path);
    }

    /// Those of all other paths are.
    pub(crate) fn tell_others(&mut self, path: u64, attention: Attention) {
        self.tell(attention, |other, _| other != path);
    }

    /// All are.
    pub(crate) fn tell_all(&mut self, attention: Attention) {
        self.tell(attention, |_, _| true);
    }

    /// That of this nexus is.
    pub(crate) fn tell_nexus(&mut self, nexus: Nexus, attention: Attention) {
        self.tell(attention, |_, path| path.port.nexus == nexus);
    }

    fn tell(&mut self, attention: Attention, is_told: impl Fn(u64, &Path) -> bool) {
        for (_, path) in self.paths.iter_mut().filter(|(number, path)| is_told(**number, path)) {
            path.attentions = path.attentions.with(attention);
        }
    }

    /// What is to be told first on a path, which it is by that.
    pub(crate) fn take_attention(&mut self, path: u64) -> Option<Attention> {
        let attentions = &mut self.paths.get_mut(&path)?.attentions;
        let (first, left) = attentions.take();
        *attentions = left;
        first
    }

    /// The driver has seen it otherwise.
    pub(crate) fn forget_attention(&mut self, path: u64, attention: Attention) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.attentions = path.attentions.without(attention);
        }
    }

    /// Another driver than before comes by this path: to it the unit has just been turned on, but for what is kept of reservations.
    pub(crate) fn begins(&mut self, path: u64, nexus: Nexus) {
        if self.is_reached_by_one() {
            self.facts.reset();
        }
        self.reservations.nexus_lost(nexus);
        let news = self.first_news();
        if let Some(path) = self.paths.get_mut(&path) {
            path.attentions = news;
        }
    }

    /// What a driver hears first: after power on there are no reservations, after a reset there may be (SPC-5, "Reservations").
    fn first_news(&self) -> Attentions {
        let begins = if self.reservations.is_empty() { Attention::PowerOn } else { Attention::Reset };
        let news = Attentions::NONE.with(begins);
        if self.is_space_low { news.with(Attention::SpaceIsLow) } else { news }
    }

    fn has_threshold(&self) -> bool {
        self.facts.settings().counting.is_some_and(|counting| counting.threshold_bytes > 0)
    }

    fn condition(&self) -> UnitCondition {
        let mode = self.facts.mode();
        let told = |path: &Path| (path.port.nexus.port.0, path.lun, path.attentions.bits());
        UnitCondition {
            write_cache: mode.write_cache,
            descriptor_sense: mode.descriptor_sense,
            stopped: self.facts.is_stopped(),
            space_is_low: self.is_space_low,
            attentions: self.paths.values().map(told).collect(),
        }
    }

    /// Who is registered and who holds a reservation, for its operator; `None` if nobody does.
    pub(crate) fn reserved(&self) -> Option<ReservationStatus> {
        let name = |nexus: Nexus| {
            let path = self.paths.values().find(|path| path.port.nexus == nexus);
            path.map_or_else(|| format!("{:016x}", nexus.initiator.0), |path| path.port.export.clone())
        };
        let (held, by_command) = (self.reservations.reservation(), self.reservations.reserved());
        let registered: Vec<_> = self.reservations.registrations().map(|(nexus, _)| name(nexus)).collect();
        (by_command.is_some() || !registered.is_empty()).then(|| ReservationStatus {
            kind: held.map(|held| held.kind.name()).or(by_command.map(|_| "reserve")),
            holder: held.and_then(|held| held.holder).or(by_command).map(name),
            registered,
        })
    }

    /// The ports by which it is reached. An export has one, also while requests of a device that it had before are under way.
    pub(crate) fn ports(&self) -> Vec<TargetPort> {
        let here = self.paths.values().map(|path| path.port.nexus.port);
        let ports: BTreeSet<_> = here.chain(self.expected.iter().copied()).collect();
        ports.into_iter().collect()
    }

    /// The first device that has it, and the only one so far.
    pub(crate) fn is_first(&self) -> bool {
        self.paths.len() == 1
    }

    /// By the devices of one export, of which one may be gone while requests of it are under way; and no other one is going to have it
    /// again.
    fn is_reached_by_one(&self) -> bool {
        let mut nexuses = self.paths.values().map(|path| path.port.nexus);
        let first = nexuses.next();
        let is_it = |port: &TargetPort| first.is_some_and(|nexus| nexus.port == *port);
        nexuses.all(|other| Some(other) == first) && self.expected.iter().all(is_it)
    }

    /// Whom to ask for the tasks that come by those other paths whose nexuses are among these.
    pub(crate) fn others_of(&self, path: u64, is_one: impl Fn(Nexus) -> bool) -> Others {
        let others = self.paths.iter().filter(|(other, it)| **other != path && is_one(it.port.nexus));
        Others::of(others.map(|(_, it)| {
            let keeper = it.port.keeper().map(|keeper| (keeper, Which::of_unit(it.lun)));
            Others { keepers: keeper.into_iter().collect(), lost: it.lost.clone() }
        }))
    }

    /// A ring of this path has fallen with tasks under way.
    pub(crate) fn lose(&mut self, path: u64, tasks: Arc<LostTasks>) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.lost.push(tasks);
        }
    }

    /// They have ended.
    pub(crate) fn find(&mut self, path: u64, tasks: &Arc<LostTasks>) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.lost.retain(|other| !Arc::ptr_eq(other, tasks));
        }
    }
}

/// Who has reserved a logical unit, by the names of exports, or of initiator ports (16 hexadecimal digits) where no export has the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationStatus {
    /// Type of the reservation: of a persistent one in the standard's words, or `reserve` for one of SCSI-2; `None` if there is none.
    pub kind: Option<&'static str>,
    /// Who holds it; `None` if nobody does, or everybody who is registered.
    pub holder: Option<String>,
    /// Whose guests are registered.
    pub registered: Vec<String>,
}

/// A unit's state as a path has it.
pub(crate) struct View {
    pub(crate) facts: Facts,
    /// The driver is to be told of something first.
    pub(crate) attention: bool,
    /// What reservations let the driver do.
    pub(crate) gate: Gate,
}

/// What an earlier program has left to be told, by whom it is for.
fn told_again((port, lun, attentions): (u16, Lun, u16)) -> ((TargetPort, Lun), Attentions) {
    ((TargetPort(port), lun), Attentions::from_bits(attentions))
}

/// Ends with a change of reservations that is being stored, however that ends.
struct Storing<'a>(&'a Logical);

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        self.0.lock().storing = false;
    }
}

impl Logical {
    fn new(options: UnitOptions, common: Common, left: Left) -> Result<Logical, ExportError> {
        let UnitOptions { disk, serial, storage, kept, threshold_bytes, .. } = options;
        let mut facts = Facts::new(settings(storage.as_ref(), common, threshold_bytes))?;
        let condition = left.condition.unwrap_or_default();
        if !condition.attentions.is_empty() {
            let UnitCondition { write_cache, descriptor_sense, stopped, .. } = condition;
            facts.set_mode(Mode { write_cache, descriptor_sense });
            facts.set_stopped(stopped);
        }
        let identity = Identity::new(PRODUCT, REVISION, &serial, Naa::local(hash(&serial)))?;
        let reservations = match (left.reservations, &kept) {
            (Some(left), Some(_)) => left,
            (left, None) => left.unwrap_or_default().into_volatile(),
            (None, Some(kept)) => kept_in(kept)?,
        };
        if kept.is_some() {
            RECORDS.prepare();
        }
        Ok(Logical {
            disk,
            identity,
            common,
            storage: Mutex::new(storage),
            version: AtomicU64::new(1),
            state: Mutex::new(State {
                facts,
                reservations,
                storing: false,
                paths: BTreeMap::new(),
                expected: left.ports,
                left: condition.attentions.into_iter().map(told_again).collect(),
                came: 0,
                is_space_low: condition.space_is_low,
            }),
            kept,
            jobs: Jobs::on(&RECORDS),
            swaps: Swaps::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(crate) fn disk(&self) -> &str {
        &self.disk
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// One more command waits for those of other drivers; `None` if there are as many as may.
    pub(crate) fn wait(self: Arc<Self>) -> Option<Waiting> {
        let more = |waiting| (waiting < WAITING_MAX).then_some(waiting + 1);
        let counted = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        counted.then(|| Waiting(self))
    }

    /// What stands behind it now.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another storage stands behind it, if this one did.
    pub(crate) fn set_storage(&self, before: &Arc<dyn Storage>, storage: &Arc<dyn Storage>) {
        let mut behind = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&behind, before) {
            *behind = storage.clone();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The version of its state, which changes after that.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Its state as a path has it, and the version of that or an older one.
    pub(crate) fn view(&self, path: u64, nexus: Nexus) -> (u64, View) {
        let version = self.version();
        let state = self.lock();
        let attention = state.paths.get(&path).is_some_and(|path| !path.attentions.is_empty());
        (version, View { facts: state.facts, attention, gate: state.reservations.gate(nexus) })
    }

    /// Looks at its state.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.lock())
    }

    /// Changes its state. Rings see that before they take another command.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = f(&mut state);
        self.version.fetch_add(1, Ordering::Release);
        answer
    }

    /// Whether these reservations are to be stored before anybody hears that they have come in place of those.
    pub(super) fn are_stored(&self, before: &Reservations, next: &Reservations) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_uncertain() || before.stored() != next.stored())
    }

    /// As below, on a thread of another kind: `reply` completes behind it, with 0 or an error of Linux.
    pub(super) fn store_elsewhere(
        self: Arc<Logical>,
        next: Reservations,
        attentions: Vec<(Nexus, Attention)>,
        reply: Reply,
    ) {
        let jobs = self.jobs.clone();
        jobs.run_elsewhere(reply, move || self.store(next, &attentions).map_or(-libc::EIO, |()| 0));
    }

    /// Has reservations stored that are the unit's from then on, with what else comes of that; nobody changes them until then. Blocks.
    ///
    /// # Errors
    /// They cannot be stored, and are as before.
    pub(super) fn store(&self, next: Reservations, attentions: &[(Nexus, Attention)]) -> io::Result<()> {
        let storing = Storing(self);
        if let Some(kept) = &self.kept {
            kept.store(&next.stored().unwrap_or_default()).inspect_err(|error| {
                let (disk, path) = (&self.disk, kept.path().display());
                tracing::error!(disk, %path, %error, "reservations cannot be stored");
            })?;
        }
        self.change(|state| {
            state.reservations = next;
            attentions.iter().for_each(|(nexus, what)| state.tell_nexus(*nexus, *what));
        });
        drop(storing);
        Ok(())
    }

    fn break_reservations(self: &Arc<Self>, by: Instant) -> io::Result<()> {
        while self.change(|state| std::mem::replace(&mut state.storing, true)) {
            if Instant::now() >= by {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        let mut next = self.look(|state| state.reservations.clone());
        let told = next.break_all();
        let unit = self.clone();
        stored_by(by, &self.jobs, move || unit.store(next, &told.attentions))
    }

    /// A device has it from now on: the number of its path.
    ///
    /// # Errors
    /// Another export's device that has it has the number of its port.
    pub(crate) fn join(&self, port: Arc<Port>, lun: Lun) -> Result<u64, ExportError> {
        self.change(|state| {
            let mut others = state.paths.values().map(|path| &path.port).filter(|other| other.export != port.export);
            if let Some(other) = others.find(|other| other.nexus.port == port.nexus.port) {
                let (disk, export, other) = (self.disk.clone(), port.export.clone(), other.export.clone());
                return Err(ExportError::SamePort { disk, export, other });
            }
            let path = state.came;
            state.came += 1;
            let news = || state.first_news();
            let attentions = state.left.get(&(port.nexus.port, lun)).copied().unwrap_or_else(news);
            state.left.remove(&(port.nexus.port, lun));
            let ports_before = state.ports().len();
            state.expected.remove(&port.nexus.port);
            state.paths.insert(path, Path { port, lun, attentions, lost: Vec::new() });
            if (ports_before, state.ports().len()) == (1, 2) {
                // It says that it has several ports now.
                state.tell_others(path, Attention::InquiryChanged);
            }
            Ok(path)
        })
    }

    /// It has it no longer.
    pub(crate) fn leave(&self, path: u64) {
        self.change(|state| {
            let ports_before = state.ports().len();
            let Some(Path { port, .. }) = state.paths.remove(&path) else { return };
            // The export's next device may be here already, and have reserved it.
            if !state.paths.values().any(|other| other.port.nexus == port.nexus) {
                state.reservations.nexus_lost(port.nexus);
            }
            if (ports_before, state.ports().len()) == (2, 1) {
                state.tell_all(Attention::InquiryChanged);
            }
        });
    }

    fn expect_no_more(&self) {
        self.change(|state| {
            state.left.clear();
            if !std::mem::take(&mut state.expected).is_empty() && state.is_reached_by_one() {
                state.tell_all(Attention::InquiryChanged);
            }
        });
    }

    /// Takes its storage's capacity over: what it is in bytes.
    pub(crate) fn follow_capacity(&self) -> Result<u64, ExportError> {
        let storage = self.storage();
        self.change(|state| {
            let capacity_bytes = whole_blocks(storage.capacity_bytes(), state.facts.block_bytes());
            if capacity_bytes != state.facts.settings().capacity_bytes {
                state.facts.set_capacity_bytes(capacity_bytes)?;
                state.tell_all(Attention::CapacityChanged);
            }
            Ok(capacity_bytes)
        })
    }
}
