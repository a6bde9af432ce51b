//! The logical units of a device, which all its rings share.
//!
//! A unit's state is behind a lock, and has a version: a ring keeps a copy, and looks at the version before each command.

use super::Which;
use super::reserve::NEXUS;
use crate::ExportError;
use crate::queue::Broken;
use device::scsi::reservations::{Gate, Reservations};
use device::scsi::{
    Attention, Attentions, Identity, Limits, Mode, Naa, Rotation, Sense, Unit as Facts, UnitSettings, UnmapLimits,
};
use engine::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use storage::{Description, Storage, VolumeStatus};
use values::Lun;

/// Bytes of one read or write, at most: what the device says of itself to drivers, in sectors.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 32 << 20;
/// Bytes of one UNMAP or WRITE SAME, at most: 4 GiB.
const RANGE_BYTES_MAX: u64 = 4 << 30;
/// Descriptors of one UNMAP.
const UNMAP_DESCRIPTORS_MAX: u32 = 64;
/// Bytes that one COMPARE AND WRITE compares, at most.
const SWAP_BYTES_MAX: u32 = 32 << 10;

/// What a unit says of itself, beside the vendor (SPC-5, "Standard INQUIRY data").
const PRODUCT: &str = "disk";
/// The first four characters of the version.
const REVISION: &str = {
    let version = env!("CARGO_PKG_VERSION");
    if version.len() > 4 { version.split_at(4).0 } else { version }
};

/// A logical unit as its operator wants it.
pub struct UnitOptions {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is.
    pub disk: String,
    /// Serial number the guest sees.
    pub serial: String,
    /// What stands behind it.
    pub storage: Arc<dyn Storage>,
}

/// A logical unit as it is at one moment.
#[derive(Clone, Debug)]
pub struct UnitStatus {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is.
    pub disk: String,
    /// Serial number the guest sees.
    pub serial: String,
    /// Capacity as the guest sees it, in bytes.
    pub capacity_bytes: u64,
    /// Logical block size as the guest sees it, in bytes.
    pub block_size_bytes: u32,
    /// What stands behind it.
    pub description: Description,
    /// Of one that changes hands: whether it is this process's now.
    pub held: Option<bool>,
    /// Its intent log, if it has one.
    pub volume: Option<Box<VolumeStatus>>,
}

/// What all units of a device have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) block_size_bytes: u32,
    pub(crate) write_back: bool,
    pub(crate) write_back_changeable: bool,
}

/// What a driver may change of a unit, and what it is to be told.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) facts: Facts,
    attentions: Attentions,
    pub(crate) reservations: Reservations,
}

impl State {
    fn new(facts: Facts) -> State {
        State { facts, attentions: Attentions::NONE.with(Attention::PowerOn), reservations: Reservations::volatile() }
    }

    /// Whether the driver is to be told of something first.
    pub(crate) fn attention(&self) -> bool {
        !self.attentions.is_empty()
    }

    /// What reservations let the driver do.
    pub(crate) fn gate(&self) -> Gate {
        self.reservations.gate(NEXUS)
    }

    /// It is told of this with its next command.
    pub(crate) fn establish(&mut self, attention: Attention) {
        self.attentions = self.attentions.with(attention);
    }
}

/// A logical unit.
pub(crate) struct Unit {
    pub(crate) lun: Lun,
    disk: String,
    pub(crate) identity: Identity,
    storage: Mutex<Arc<dyn Storage>>,
    /// Counts changes of its state.
    version: AtomicU64,
    state: Mutex<State>,
    swaps: Mutex<Swaps>,
}

/// COMPARE AND WRITE commands: one at a time.
#[derive(Default)]
struct Swaps {
    /// Commands so far, by which they are told apart.
    count: u64,
    /// Whose turn it is.
    turn: Option<u64>,
    line: VecDeque<(u64, Reply)>,
}

/// A command's turn on its unit, or its place in the line. Dropped, it is the next one's.
pub(crate) struct SwapTurn {
    unit: Arc<Unit>,
    number: u64,
}

impl SwapTurn {
    /// Whether it is this one's turn.
    pub(crate) fn has_come(&self) -> bool {
        self.unit.swaps().turn == Some(self.number)
    }
}

impl fmt::Debug for SwapTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwapTurn").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for SwapTurn {
    fn drop(&mut self) {
        let mut swaps = self.unit.swaps();
        if swaps.turn != Some(self.number) {
            swaps.line.retain(|(number, _)| *number != self.number);
            return;
        }
        let next = swaps.line.pop_front();
        swaps.turn = next.as_ref().map(|(number, _)| *number);
        drop(swaps);
        if let Some((_, reply)) = next {
            reply.complete(0);
        }
    }
}

impl Unit {
    fn new(options: UnitOptions, common: Common) -> Result<Unit, ExportError> {
        let UnitOptions { lun, disk, serial, storage } = options;
        let facts = Facts::new(settings(storage.as_ref(), common))?;
        let identity = Identity::new(PRODUCT, REVISION, &serial, Naa::local(hash(&serial)))?;
        Ok(Unit {
            lun,
            disk,
            identity,
            storage: Mutex::new(storage),
            version: AtomicU64::new(1),
            state: Mutex::new(State::new(facts)),
            swaps: Mutex::default(),
        })
    }

    /// What stands behind it now.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What rings drive. One that changes hands is taken before.
    pub(crate) fn driven(&self) -> Result<Arc<dyn Storage>, Broken> {
        let storage = self.storage();
        match storage.custody() {
            Some(custody) => custody.held().ok_or(Broken::NotHeld),
            None => Ok(storage),
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

    /// Its state as it is, and the version of that or an older one.
    pub(crate) fn state(&self) -> (u64, State) {
        let version = self.version();
        (version, self.lock().clone())
    }

    /// Changes its state. Rings see that before they take another command.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = f(&mut state);
        self.version.fetch_add(1, Ordering::Release);
        answer
    }

    /// What the driver is to be told first, which it is by that.
    pub(crate) fn take_attention(&self) -> Option<Sense> {
        self.change(|state| {
            let (first, left) = state.attentions.take();
            state.attentions = left;
            first.map(Attention::sense)
        })
    }

    /// The driver has seen it otherwise.
    pub(crate) fn forget_attention(&self, attention: Attention) {
        self.change(|state| state.attentions = state.attentions.without(attention));
    }

    /// Takes the storage's capacity over: whether it is another one.
    fn follow_capacity(&self) -> Result<bool, ExportError> {
        let storage = self.storage();
        self.change(|state| {
            let block_bytes = state.facts.block_bytes();
            let capacity_bytes = whole_blocks(storage.capacity_bytes(), block_bytes);
            if capacity_bytes == state.facts.settings().capacity_bytes {
                return Ok(false);
            }
            state.facts.set_capacity_bytes(capacity_bytes)?;
            state.establish(Attention::CapacityChanged);
            Ok(true)
        })
    }

    fn swaps(&self) -> MutexGuard<'_, Swaps> {
        self.swaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A COMPARE AND WRITE gets in line. If it is not its turn at once, `reply` completes when it is.
    pub(crate) fn line_up(self: &Arc<Self>, reply: impl FnOnce() -> Reply) -> SwapTurn {
        let mut swaps = self.swaps();
        swaps.count += 1;
        let number = swaps.count;
        match swaps.turn {
            Some(_) => swaps.line.push_back((number, reply())),
            None => swaps.turn = Some(number),
        }
        SwapTurn { unit: self.clone(), number }
    }

    pub(crate) fn status(&self) -> UnitStatus {
        let storage = self.storage();
        let state = self.lock();
        UnitStatus {
            lun: self.lun,
            disk: self.disk.clone(),
            serial: self.identity.serial().to_owned(),
            capacity_bytes: state.facts.settings().capacity_bytes,
            block_size_bytes: state.facts.block_bytes(),
            description: storage.describe(),
            held: storage.custody().map(storage::Custody::is_held),
            volume: storage.volume().map(|volume| Box::new(volume.status())),
        }
    }
}

/// A tail smaller than a block cannot be addressed.
fn whole_blocks(bytes: u64, block_size_bytes: u32) -> u64 {
    bytes / u64::from(block_size_bytes) * u64::from(block_size_bytes)
}

fn settings(storage: &dyn Storage, common: Common) -> UnitSettings {
    let about = storage.describe();
    let block_bytes = common.block_size_bytes.max(about.block_size_bytes);
    let physical = about.physical_block_bytes.max(block_bytes);
    let granularity_blocks = (about.discard_granularity_bytes / block_bytes).max(1);
    let range_blocks = u32::try_from(RANGE_BYTES_MAX / u64::from(block_bytes)).unwrap_or(u32::MAX);
    let unmap = UnmapLimits {
        blocks_max: range_blocks,
        descriptors_max: UNMAP_DESCRIPTORS_MAX,
        granularity_blocks,
        zeroes: false,
    };
    UnitSettings {
        capacity_bytes: whole_blocks(storage.capacity_bytes(), block_bytes),
        block_bytes,
        physical_block_exp: (physical / block_bytes).ilog2() as u8,
        optimal_bytes: about.optimal_io_bytes / block_bytes * block_bytes,
        read_only: about.read_only,
        rotation: Rotation::Unknown,
        limits: Limits {
            transfer_blocks_max: TRANSFER_BYTES_MAX / block_bytes,
            write_same_blocks_max: if about.write_zeroes { range_blocks } else { 0 },
            compare_and_write_blocks_max: u8::try_from(SWAP_BYTES_MAX / block_bytes).unwrap_or(u8::MAX),
            unmap: about.discard.then_some(unmap),
        },
        // Whoever may turn it on does so, or never flushes.
        mode: Mode { write_cache: common.write_back && !common.write_back_changeable, ..Mode::default() },
        write_cache_changeable: common.write_back_changeable,
    }
}

/// The units of a device, by LUN.
pub(crate) struct Units {
    common: Common,
    list: RwLock<Arc<BTreeMap<Lun, Arc<Unit>>>>,
}

/// The units of one moment.
pub(crate) type List = Arc<BTreeMap<Lun, Arc<Unit>>>;

impl Units {
    pub(crate) fn new(units: Vec<UnitOptions>, common: Common) -> Result<Units, ExportError> {
        let units = units.into_iter().map(|options| Ok((options.lun, Arc::new(Unit::new(options, common)?))));
        let units = units.collect::<Result<BTreeMap<_, _>, ExportError>>()?;
        Ok(Units { common, list: RwLock::new(Arc::new(units)) })
    }

    /// Those of this moment.
    pub(crate) fn list(&self) -> List {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, list: BTreeMap<Lun, Arc<Unit>>) {
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(list);
    }

    /// Adds one. Whoever calls sees to it that nobody else changes the list.
    pub(crate) fn add(&self, options: UnitOptions) -> Result<Arc<Unit>, ExportError> {
        let unit = Arc::new(Unit::new(options, self.common)?);
        let mut list = (*self.list()).clone();
        list.insert(unit.lun, unit.clone());
        self.replace(list);
        self.inventory_changed(unit.lun);
        Ok(unit)
    }

    /// Takes one out, as above.
    pub(crate) fn remove(&self, lun: Lun) -> Option<Arc<Unit>> {
        let mut list = (*self.list()).clone();
        let unit = list.remove(&lun)?;
        self.replace(list);
        self.inventory_changed(lun);
        Some(unit)
    }

    /// Others of its target are asked what there is (SPC-5, "REPORTED LUNS DATA HAS CHANGED").
    fn inventory_changed(&self, lun: Lun) {
        for unit in self.list().values().filter(|unit| unit.lun.target == lun.target && unit.lun != lun) {
            unit.change(|state| state.establish(Attention::LunsChanged));
        }
    }

    pub(crate) fn has(&self, lun: Lun) -> bool {
        self.list().contains_key(&lun)
    }

    pub(crate) fn has_target(&self, target: u8) -> bool {
        has_target(&self.list(), target)
    }

    /// Resets these units, of which no task is under way.
    pub(crate) fn reset(&self, which: Which) {
        for unit in self.list().values().filter(|unit| which.is(unit.lun, which.tag.unwrap_or_default())) {
            unit.change(|state| {
                state.facts.reset();
                // What RESERVE has made ends; persistent reservations stay.
                state.reservations.nexus_lost(NEXUS);
                state.establish(Attention::DeviceReset);
            });
        }
    }

    /// A driver begins, or another one than before: each unit is as after power on.
    pub(crate) fn power_on(&self) {
        for unit in self.list().values() {
            unit.change(|state| {
                let mut facts = state.facts;
                facts.reset();
                *state = State::new(facts);
            });
        }
    }

    /// Whether every unit has a write cache that a guest may have turned on.
    pub(crate) fn have_write_caches(&self) -> bool {
        self.common.write_back_changeable && self.list().values().all(|unit| unit.lock().facts.mode().write_cache)
    }

    /// An earlier life of the device has left them so.
    pub(crate) fn turn_write_caches_on(&self) {
        if !self.common.write_back_changeable {
            return;
        }
        for unit in self.list().values() {
            unit.change(|state| {
                let mode = Mode { write_cache: true, ..state.facts.mode() };
                state.facts.set_mode(mode);
            });
        }
    }

    /// Takes the capacities of all storages over. Those that are others now.
    pub(crate) fn follow_capacities(&self) -> Result<Vec<Lun>, ExportError> {
        let mut changed = Vec::new();
        for unit in self.list().values() {
            if unit.follow_capacity()? {
                changed.push(unit.lun);
            }
        }
        Ok(changed)
    }

    /// Another storage stands behind the unit that has this one.
    pub(crate) fn set_storage(&self, before: &Arc<dyn Storage>, storage: &Arc<dyn Storage>) {
        for unit in self.list().values() {
            let mut behind = unit.storage.lock().unwrap_or_else(PoisonError::into_inner);
            if Arc::ptr_eq(&behind, before) {
                *behind = storage.clone();
            }
        }
    }

    pub(crate) fn status(&self) -> Vec<UnitStatus> {
        self.list().values().map(|unit| unit.status()).collect()
    }
}

/// The units of a target.
pub(crate) fn of_target(list: &List, target: u8) -> impl Iterator<Item = &Arc<Unit>> {
    list.range(Lun { target, number: 0 }..=Lun { target, number: Lun::NUMBER_MAX }).map(|(_, unit)| unit)
}

/// Whether a target has any units.
pub(crate) fn has_target(list: &List, target: u8) -> bool {
    of_target(list, target).next().is_some()
}

/// The number of a unit, as the device's code has it.
pub(crate) fn number(lun: Lun) -> device::scsi::Lun {
    device::scsi::Lun::new(lun.number).unwrap_or(device::scsi::Lun::ZERO)
}

/// FNV-1a with 64 bits: what names a unit for years must not change with a library.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
