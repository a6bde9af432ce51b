//! Logical units: what all devices through which one is reached have in common.
//!
//! A unit's state is behind a lock, and has a version: a ring keeps a copy of its part, and looks at the version before each command.

use super::Which;
use super::port::Port;
use super::swaps::Swaps;
use super::units::{Common, UnitOptions, hash, settings, whole_blocks};
use crate::ExportError;
use crate::label::Keeper;
use device::scsi::reservations::{FileError, Gate, Reservations};
use device::scsi::{Attention, Attentions, Identity, Naa, Nexus, TargetPort, Unit as Facts};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use storage::Storage;
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

/// Where the SCSI devices of a daemon find the logical units of its disks, and have their ports. A shared disk is one logical unit of all
/// devices that have it: their drivers reserve it from each other. Any other disk is one to each of them.
#[derive(Clone, Default)]
pub struct LogicalUnits(Arc<Mutex<Shelf>>);

#[derive(Default)]
struct Shelf {
    units: BTreeMap<LogicalUnitName, Weak<Logical>>,
    ports: Vec<Weak<Port>>,
    /// What an earlier program has left of units that are not here yet.
    left: BTreeMap<LogicalUnitName, Reservations>,
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

    /// A port for the device of this export: with this number, or the first that is free.
    pub(crate) fn port(&self, export: &str, number: Option<u16>) -> Arc<Port> {
        let mut shelf = self.lock();
        shelf.ports.retain(|port| port.strong_count() > 0);
        let taken: Vec<_> = shelf.ports.iter().filter_map(Weak::upgrade).map(|port| port.nexus.port).collect();
        let is_free = |number: &u16| *number > 0 && !taken.contains(&TargetPort(*number));
        let number = number.filter(is_free).or_else(|| (1..=u16::MAX).find(is_free)).unwrap_or(u16::MAX);
        let port = Arc::new(Port::new(export, TargetPort(number)));
        shelf.ports.push(Arc::downgrade(&port));
        port
    }

    /// The logical unit of a disk.
    ///
    /// # Errors
    /// The disk cannot be one, or is one already that looks different.
    pub(super) fn unit(&self, options: UnitOptions, common: Common, port: &Port) -> Result<Arc<Logical>, ExportError> {
        let export = (!options.is_shared).then(|| port.export.clone());
        let name = LogicalUnitName { disk: options.disk.clone(), export };
        let mut shelf = self.lock();
        // One whose requests are still under way may outlive its disk, whose name is another one's by now.
        let is_its = |unit: &Arc<Logical>| Arc::ptr_eq(&unit.storage(), &options.storage);
        if let Some(unit) = shelf.units.get(&name).and_then(Weak::upgrade).filter(is_its) {
            return if unit.identity.serial() == options.serial && unit.common == common {
                Ok(unit)
            } else {
                Err(ExportError::AnotherUnit { disk: options.disk, serial: unit.identity.serial().to_owned() })
            };
        }
        shelf.units.retain(|_, unit| unit.strong_count() > 0);
        let left = shelf.left.remove(&name);
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

    /// An earlier program has left these reservations of a unit.
    ///
    /// # Errors
    /// They are none.
    pub fn leave_reservations(&self, name: LogicalUnitName, bytes: &[u8]) -> Result<(), FileError> {
        let reservations = Reservations::from_bytes(bytes)?.into_volatile();
        self.lock().left.insert(name, reservations);
        Ok(())
    }
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
    /// Devices that have it, by the numbers that they got when they came.
    paths: BTreeMap<u64, Path>,
    /// Paths so far.
    came: u64,
}

/// A device's way to it.
struct Path {
    port: Arc<Port>,
    lun: Lun,
    attentions: Attentions,
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
        if self.paths.len() == 1 {
            self.facts.reset();
        }
        self.reservations.nexus_lost(nexus);
        let news = self.first_news();
        if let Some(path) = self.paths.get_mut(&path) {
            path.attentions = Attentions::NONE.with(news);
        }
    }

    /// What a driver hears first: after power on there are no reservations, after a reset there may be (SPC-5, "Reservations").
    fn first_news(&self) -> Attention {
        if self.reservations.is_empty() { Attention::PowerOn } else { Attention::Reset }
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

    /// The ports by which it is reached.
    pub(crate) fn ports(&self) -> Vec<TargetPort> {
        self.paths.values().map(|path| path.port.nexus.port).collect()
    }

    /// Whom to ask for the tasks that come by those other paths whose nexuses are among these, and how they are called there.
    pub(crate) fn others_of(&self, path: u64, is_one: impl Fn(Nexus) -> bool) -> Vec<(Arc<dyn Keeper>, Which)> {
        let others = self.paths.iter().filter(|(other, it)| **other != path && is_one(it.port.nexus));
        others.filter_map(|(_, it)| Some((it.port.keeper()?, Which::of_unit(it.lun)))).collect()
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

impl Logical {
    fn new(options: UnitOptions, common: Common, left: Option<Reservations>) -> Result<Logical, ExportError> {
        let UnitOptions { disk, serial, storage, .. } = options;
        let facts = Facts::new(settings(storage.as_ref(), common))?;
        let identity = Identity::new(PRODUCT, REVISION, &serial, Naa::local(hash(&serial)))?;
        let reservations = left.unwrap_or_else(Reservations::volatile);
        Ok(Logical {
            disk,
            identity,
            common,
            storage: Mutex::new(storage),
            version: AtomicU64::new(1),
            state: Mutex::new(State { facts, reservations, paths: BTreeMap::new(), came: 0 }),
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

    /// A device has it from now on: the number of its path.
    pub(crate) fn join(&self, port: Arc<Port>, lun: Lun) -> u64 {
        self.change(|state| {
            let path = state.came;
            state.came += 1;
            let attentions = Attentions::NONE.with(state.first_news());
            state.paths.insert(path, Path { port, lun, attentions });
            if state.paths.len() == 2 {
                // It says that it has several ports now.
                state.tell_others(path, Attention::InquiryChanged);
            }
            path
        })
    }

    /// It has it no longer.
    pub(crate) fn leave(&self, path: u64) {
        self.change(|state| {
            let Some(Path { port, .. }) = state.paths.remove(&path) else { return };
            state.reservations.nexus_lost(port.nexus);
            if state.paths.len() == 1 {
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
