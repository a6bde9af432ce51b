//! The logical units of a device, which all its rings share.

use super::Which;
use super::logical::{Logical, LogicalUnits, Others, ReservationStatus, State, View};
use super::lost::LostTasks;
use super::port::Port;
use crate::ExportError;
use crate::queue::Broken;
use device::scsi::{Attention, Counting, Identity, Limits, Mode, Nexus, Rotation, Sense, UnitSettings, UnmapLimits};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use storage::{Description, RecordFile, Storage, VolumeStatus};
use values::Lun;

/// Bytes of one read or write, at most: what the device says of itself to drivers, in sectors.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 32 << 20;
/// Bytes of one UNMAP or WRITE SAME, at most: 4 GiB.
const RANGE_BYTES_MAX: u64 = 4 << 30;
/// Descriptors of one UNMAP.
const UNMAP_DESCRIPTORS_MAX: u32 = 64;
/// Bytes that one COMPARE AND WRITE compares, at most.
const SWAP_BYTES_MAX: u32 = 32 << 10;

/// A logical unit as its operator wants it.
pub struct UnitOptions {
    /// Where the guest finds it.
    pub lun: Lun,
    /// Name of the disk that it is.
    pub disk: String,
    /// Whether all devices that have the disk have one logical unit of it.
    pub is_shared: bool,
    /// Serial number the guest sees.
    pub serial: String,
    /// What stands behind it.
    pub storage: Arc<dyn Storage>,
    /// What keeps its reservations over a loss of power, if anything does.
    pub kept: Option<Arc<RecordFile>>,
    /// The driver is told when its storage has fewer bytes left than these; 0: it is not.
    pub threshold_bytes: u64,
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
    /// Of one on other machines: how things stand with it.
    pub link: Option<storage::Link>,
    /// Who has reserved it, if anybody has.
    pub reservation: Option<ReservationStatus>,
    /// Its intent log, if it has one.
    pub volume: Option<Box<VolumeStatus>>,
}

/// Looks after a unit: requests may be under way on it that outlast its device.
#[derive(Debug, Clone)]
pub struct UnitWatch(Weak<Unit>);

impl UnitWatch {
    /// Whether anybody has the unit: its device, or requests.
    pub fn is_held(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// What all units of a device have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub(crate) block_size_bytes: u32,
    pub(crate) write_back: bool,
    pub(crate) write_back_changeable: bool,
}

/// A logical unit as a device has it.
pub(crate) struct Unit {
    pub(crate) lun: Lun,
    pub(crate) logical: Arc<Logical>,
    pub(crate) port: Arc<Port>,
    /// The number of the device's path to it.
    path: u64,
    /// The capacity that the driver has been told.
    told_bytes: AtomicU64,
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.logical.leave(self.path);
    }
}

impl Unit {
    fn new(options: UnitOptions, common: Common, of: &LogicalUnits, port: &Arc<Port>) -> Result<Unit, ExportError> {
        let (lun, logical) = (options.lun, of.unit(options, common, port)?);
        let path = logical.join(port.clone(), lun)?;
        let told_bytes = logical.look(|state| state.facts.settings().capacity_bytes).into();
        Ok(Unit { lun, logical, port: port.clone(), path, told_bytes })
    }

    pub(crate) fn identity(&self) -> &Identity {
        self.logical.identity()
    }

    /// What stands behind it now.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        self.logical.storage()
    }

    /// What rings drive. One that changes hands is taken before.
    pub(crate) fn driven(&self) -> Result<Arc<dyn Storage>, Broken> {
        let storage = self.storage();
        match storage.custody() {
            Some(custody) => custody.held().ok_or(Broken::NotHeld),
            None => Ok(storage),
        }
    }

    /// Who its driver is, to reservations.
    pub(crate) fn nexus(&self) -> Nexus {
        self.port.nexus
    }

    /// Its state as the driver has it, and the version of that or an older one.
    pub(crate) fn view(&self) -> (u64, View) {
        self.logical.view(self.path, self.nexus())
    }

    /// Changes its state, as the driver on this path wants it. Rings see that before they take another command.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut State, u64) -> T) -> T {
        self.logical.change(|state| f(state, self.path))
    }

    /// What the driver is to be told first, which it is by that.
    pub(crate) fn take_attention(&self) -> Option<Sense> {
        self.change(State::take_attention).map(Attention::sense)
    }

    /// The driver has seen it otherwise.
    pub(crate) fn forget_attention(&self, attention: Attention) {
        self.change(|state, path| state.forget_attention(path, attention));
    }

    /// Whom to ask for tasks of other devices, of those nexuses.
    pub(crate) fn others_of(&self, is_one: impl Fn(Nexus) -> bool) -> Others {
        self.logical.look(|state| state.others_of(self.path, is_one))
    }

    /// A ring of the device has fallen with these tasks under way.
    pub(super) fn lose(&self, tasks: Arc<LostTasks>) {
        self.change(|state, path| state.lose(path, tasks));
    }

    /// They have ended.
    pub(super) fn find(&self, tasks: &Arc<LostTasks>) {
        self.change(|state, path| state.find(path, tasks));
    }

    /// Takes the storage's capacity over: whether it is another one than the driver knows.
    fn follow_capacity(&self) -> Result<bool, ExportError> {
        let capacity_bytes = self.logical.follow_capacity()?;
        Ok(self.told_bytes.swap(capacity_bytes, Ordering::Relaxed) != capacity_bytes)
    }

    pub(crate) fn status(&self) -> UnitStatus {
        let storage = self.storage();
        let (facts, reservation) = self.logical.look(|state| (state.facts, state.reserved()));
        UnitStatus {
            lun: self.lun,
            disk: self.logical.disk().to_owned(),
            serial: self.identity().serial().to_owned(),
            capacity_bytes: facts.settings().capacity_bytes,
            block_size_bytes: facts.block_bytes(),
            description: storage.describe(),
            held: storage.custody().map(storage::Custody::is_held),
            link: storage.remote().and_then(storage::Remote::link),
            reservation,
            volume: storage.volume().map(|volume| Box::new(volume.status())),
        }
    }
}

/// A tail smaller than a block cannot be addressed.
pub(super) fn whole_blocks(bytes: u64, block_size_bytes: u32) -> u64 {
    bytes / u64::from(block_size_bytes) * u64::from(block_size_bytes)
}

pub(super) fn settings(storage: &dyn Storage, common: Common, threshold_bytes: u64) -> UnitSettings {
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
        // What is not thin has all its space from the beginning.
        counting: storage.counted().filter(|_| about.discard).map(|_| Counting { threshold_bytes }),
    }
}

/// The units of a device, by LUN.
pub(crate) struct Units {
    common: Common,
    of: LogicalUnits,
    port: Arc<Port>,
    list: RwLock<Arc<BTreeMap<Lun, Arc<Unit>>>>,
}

/// The units of one moment.
pub(crate) type List = Arc<BTreeMap<Lun, Arc<Unit>>>;

impl Units {
    pub(crate) fn new(
        units: Vec<UnitOptions>,
        common: Common,
        of: LogicalUnits,
        port: Arc<Port>,
    ) -> Result<Units, ExportError> {
        let unit = |options: UnitOptions| Ok((options.lun, Arc::new(Unit::new(options, common, &of, &port)?)));
        let units = units.into_iter().map(unit).collect::<Result<BTreeMap<_, _>, ExportError>>()?;
        Ok(Units { common, of, port, list: RwLock::new(Arc::new(units)) })
    }

    /// The device's port.
    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
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
        let unit = Arc::new(Unit::new(options, self.common, &self.of, &self.port)?);
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
            unit.change(|state, path| state.establish(path, Attention::LunsChanged));
        }
    }

    pub(crate) fn has(&self, lun: Lun) -> bool {
        self.list().contains_key(&lun)
    }

    pub(crate) fn has_target(&self, target: u8) -> bool {
        has_target(&self.list(), target)
    }

    fn of(&self, which: Which) -> Vec<Arc<Unit>> {
        self.list().values().filter(|unit| which.is(unit.lun, which.tag.unwrap_or_default())).cloned().collect()
    }

    /// Whom to ask for tasks of other devices on these units.
    pub(crate) fn others_on(&self, which: Which) -> Others {
        Others::of(self.of(which).iter().map(|unit| unit.others_of(|_| true)))
    }

    /// Resets these units, of which no task is under way, for all their drivers.
    pub(crate) fn reset(&self, which: Which) {
        for unit in self.of(which) {
            unit.change(|state, _| {
                state.facts.reset();
                // What RESERVE has made ends; persistent reservations stay.
                state.reservations.reset();
                state.tell_all(Attention::DeviceReset);
            });
        }
    }

    /// The driver begins with these units as one that has lost its way to them, which nobody else hears of.
    pub(crate) fn lose_nexus(&self, which: Which) {
        for unit in self.of(which) {
            let nexus = unit.nexus();
            unit.change(|state, path| {
                state.reservations.nexus_lost(nexus);
                state.establish(path, Attention::NexusLoss);
            });
        }
    }

    /// A driver begins, or another one than before.
    pub(crate) fn begin(&self) {
        for unit in self.list().values() {
            unit.change(|state, path| state.begins(path, unit.nexus()));
        }
    }

    /// Whether every unit has a write cache that a guest may have turned on.
    pub(crate) fn have_write_caches(&self) -> bool {
        let has_one = |unit: &Arc<Unit>| unit.logical.look(|state| state.facts.mode().write_cache);
        self.common.write_back_changeable && self.list().values().all(has_one)
    }

    /// An earlier life of the device has left them so. Where another device has the unit already, its driver may have changed that.
    pub(crate) fn turn_write_caches_on(&self) {
        if !self.common.write_back_changeable {
            return;
        }
        for unit in self.list().values() {
            unit.change(|state, _| {
                if state.is_first() {
                    let mode = Mode { write_cache: true, ..state.facts.mode() };
                    state.facts.set_mode(mode);
                }
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
        self.list().values().for_each(|unit| unit.logical.set_storage(before, storage));
    }

    pub(crate) fn watch(&self) -> BTreeMap<Lun, UnitWatch> {
        self.list().values().map(|unit| (unit.lun, UnitWatch(Arc::downgrade(unit)))).collect()
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
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
