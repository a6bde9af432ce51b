//! A SCSI device's part in its export: config space, units, events.

use super::control::ControlRing;
use super::events::{EventRing, News};
use super::logical::LogicalUnits;
use super::pass;
use super::port::Port;
use super::ring::{ScsiRing, Terms};
use super::units::{Common, List, TRANSFER_BYTES_MAX, UnitOptions, UnitStatus, UnitWatch, Units, number};
use crate::device::{Device, Took};
use crate::label::Label;
use crate::queue::Broken;
use crate::ring_set::RingSet;
use crate::{ExportError, Ring};
use device::scsi::spec::{feature, queue};
use device::scsi::{Address, Attention, Config, Event, Reset, Settings};
use engine::Io;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use storage::Storage;
use storage::kit::{Jobs, LOOKS};
use values::Lun;
use vhost_user::RingStart;
use vring::RingPosition;

/// Data segments of a request that the driver is told of: with header and response, 128 descriptors.
const SEG_MAX: u32 = 126;
/// Commands that a driver has under way on one unit, at most, as it is told: as many as a ring has by default.
const COMMANDS_PER_LUN: u32 = 1024;
const SECTOR_BYTES: u32 = 512;
/// How long requests on a unit that is taken out may take to end before the caller is told that they have not.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A SCSI device to serve.
pub struct ScsiOptions {
    /// Request queues a frontend may use, 1 to 254.
    pub request_queues: u16,
    /// Logical block size of all units, in bytes: 512 or 4096.
    pub block_size_bytes: u32,
    /// Whether units have a write cache.
    pub write_back: bool,
    /// Whether a guest may turn it off and on.
    pub write_back_changeable: bool,
    /// The units that there are at first.
    pub units: Vec<UnitOptions>,
    /// Those of all devices of the daemon.
    pub logical_units: LogicalUnits,
}

struct State {
    config: Config,
    negotiated: u64,
}

/// A SCSI device that is served.
pub(crate) struct Scsi {
    request_queues: u16,
    units: Arc<Units>,
    looks: Jobs,
    news: Arc<News>,
    /// By index, whether the session's rings have begun here. One that has lived elsewhere is of a driver whom another program, another
    /// host or an earlier session has told of what happens, until now.
    begun: Box<[AtomicBool]>,
    /// The session's driver is such a one, and hears of it.
    is_told: AtomicBool,
    state: Mutex<State>,
    /// Held while the list of units changes.
    changing: Mutex<()>,
}

impl Scsi {
    /// The device of this export, whose port has a number already or gets one.
    pub(crate) fn new(
        options: ScsiOptions,
        queue_size_max: u16,
        export: &str,
        port: Option<u16>,
    ) -> Result<Scsi, ExportError> {
        let ScsiOptions { request_queues, block_size_bytes, write_back, write_back_changeable, units, logical_units } =
            options;
        let port = Arc::new(Port::new(export, port));
        let common = Common { block_size_bytes, write_back, write_back_changeable };
        let units = Units::new(units, common, logical_units, port)?;
        let transfer_bytes_max = pass::transfer_bytes_max(units.list().values()).unwrap_or(TRANSFER_BYTES_MAX);
        let settings = Settings {
            request_queues,
            seg_max: SEG_MAX.min(u32::from(queue_size_max).saturating_sub(2).max(1)),
            max_sectors: (transfer_bytes_max.min(TRANSFER_BYTES_MAX) / SECTOR_BYTES).max(1),
            commands_per_lun: COMMANDS_PER_LUN,
            ..Settings::default()
        };
        LOOKS.prepare();
        Ok(Scsi {
            request_queues,
            units: Arc::new(units),
            looks: Jobs::on(&LOOKS),
            news: Arc::default(),
            begun: (0..request_queues + queue::REQUEST).map(|_| AtomicBool::new(false)).collect(),
            is_told: AtomicBool::new(false),
            state: Mutex::new(State { config: Config::new(settings)?, negotiated: 0 }),
            changing: Mutex::default(),
        })
    }

    /// All queues: those for requests, and the two before them.
    pub(crate) fn queues(&self) -> u16 {
        self.request_queues + queue::REQUEST
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn terms(&self) -> Terms {
        let state = self.lock();
        Terms { sizes: state.config.sizes(), inout: state.negotiated & feature::INOUT != 0 }
    }

    fn spread_terms(&self, rings: &RingSet) {
        let terms = self.terms();
        rings.with_all(move |ring| {
            if let Some(ring) = ring.of::<ScsiRing>() {
                ring.set_terms(terms);
            }
        });
    }

    /// Whether a guest has turned all write caches on, where it may.
    pub(crate) fn write_back(&self) -> Option<bool> {
        self.units.have_write_caches().then_some(true)
    }

    /// An earlier program has left them so.
    pub(crate) fn turn_write_caches_on(&self) {
        self.units.turn_write_caches_on();
    }

    /// What stands behind its units.
    pub(crate) fn storages(&self) -> Vec<Arc<dyn Storage>> {
        self.units.list().values().map(|unit| unit.storage()).collect()
    }

    /// The number of its port.
    pub(crate) fn port(&self) -> u16 {
        self.units.port().nexus.port.0
    }

    pub(crate) fn watch_units(&self) -> BTreeMap<Lun, UnitWatch> {
        self.units.watch()
    }

    pub(crate) fn status(&self) -> Vec<UnitStatus> {
        self.units.status()
    }

    /// Adds a unit while the device serves, and tells the driver.
    pub(crate) fn add(&self, rings: &RingSet, options: UnitOptions) -> Result<UnitStatus, ExportError> {
        rings.take_changes()?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let lun = options.lun;
        if let Some(custody) = options.storage.custody()
            && !rings.running().is_empty()
        {
            // As when a ring starts: whoever has it is waited for.
            custody.take(&|| true).map_err(|error| ExportError::Take(error.to_string()))?;
        }
        let unit = self.units.add(options)?;
        self.spread_units(rings);
        self.tell(rings, feature::HOTPLUG, Event::Reset(address(lun), Reset::Rescan));
        Ok(unit.status())
    }

    /// Takes a unit out while the device serves, and tells the driver. Whoever calls holds its storage.
    ///
    /// # Errors
    /// Requests on it are still under way after a second: it is out of the device all the same.
    pub(crate) fn remove(&self, rings: &RingSet, lun: Lun) -> Result<(), ExportError> {
        rings.take_changes()?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(unit) = self.units.remove(lun) else { return Ok(()) };
        self.spread_units(rings);
        self.tell(rings, feature::HOTPLUG, Event::Reset(address(lun), Reset::Removed));
        let by = Instant::now() + DRAIN_PATIENCE;
        while Arc::strong_count(&unit) > 1 {
            if Instant::now() >= by {
                return Err(ExportError::UnitInFlight(lun));
            }
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        if let Some(custody) = unit.storage().custody()
            && let Err(error) = custody.give_up(DRAIN_PATIENCE)
        {
            return Err(ExportError::Take(error.to_string()));
        }
        Ok(())
    }

    fn spread_units(&self, rings: &RingSet) {
        let list = self.units.list();
        rings.tell(&rings.running(), move |ring, _| set_units(ring, &list));
    }

    /// Tells the driver of something, if it wants to hear of such things.
    fn tell(&self, rings: &RingSet, wants: u64, event: Event) {
        match self.lock().negotiated {
            // The driver may be one whose frontend connects again.
            0 => return self.news.missed(),
            negotiated if negotiated & wants == 0 => return,
            _ => self.news.add(event),
        }
        wake_events(rings);
    }

    /// Whether guests could be told of this capacity.
    pub(crate) fn check_capacity(&self, capacity_bytes: u64) -> Result<(), ExportError> {
        let blocks = self.status().into_iter().map(|unit| unit.block_size_bytes);
        match blocks.max().filter(|block_size_bytes| !capacity_bytes.is_multiple_of(u64::from(*block_size_bytes))) {
            Some(block_size_bytes) => Err(ExportError::Capacity { capacity_bytes, block_size_bytes }),
            None => Ok(()),
        }
    }

    /// Takes the capacities of all storages over, and tells the driver of those that have changed.
    pub(crate) fn follow_capacity(&self, rings: &RingSet) -> Result<(), ExportError> {
        for lun in self.units.follow_capacities()? {
            let event = Event::Changed(address(lun), Attention::CapacityChanged.code());
            self.tell(rings, feature::CHANGE, event);
        }
        Ok(())
    }

    /// Another storage stands behind the unit that has this one; rings take it up when they are [released](Self::releaser).
    pub(crate) fn set_storage(&self, before: &Arc<dyn Storage>, storage: &Arc<dyn Storage>) {
        self.units.set_storage(before, storage);
    }

    /// What lets a ring go on that this order holds, with what stands behind the units then.
    pub(crate) fn releaser(self: &Arc<Self>, order: u64) -> impl Fn(&mut Ring, &mut Io<'_>) + Clone + Send + 'static {
        move |ring, _| {
            // As of a disk: a release that comes late finds requests under way, which belong to what they were started on.
            if ring.requests_in_flight() == 0
                && let Some(ring) = ring.of::<ScsiRing>()
            {
                ring.set_storages();
            }
            let attachment = ring.attachment_mut();
            let waiting = attachment.is_waiting();
            attachment.turns_mut().open(order, waiting);
        }
    }
}

fn address(lun: Lun) -> Address {
    Address::Unit { target: lun.target, lun: number(lun) }
}

fn set_units(ring: &mut Ring, list: &List) {
    if let Some(ring) = ring.of::<ScsiRing>()
        && let Err(why) = ring.set_units(list.clone())
    {
        ring.ring.queue.break_down(why);
    }
}

/// Has the event queue, if it runs, look whether there is something to tell.
fn wake_events(rings: &RingSet) {
    let events: Vec<_> = rings.running().into_iter().filter(|(index, _)| *index == queue::EVENT).collect();
    // Its worker looks whether there is something to do behind all that it hears.
    rings.tell(&events, |_, _| {});
}

impl Device for Scsi {
    fn features(&self) -> u64 {
        self.lock().config.features()
    }

    fn acknowledged(&self, rings: &RingSet, features: u64) {
        self.lock().negotiated = features;
        if features & (feature::HOTPLUG | feature::CHANGE) == 0 {
            self.news.clear();
        }
        self.spread_terms(rings);
    }

    /// What must not be done twice is answered ABORTED COMMAND where it may have been done.
    fn has_inflight(&self) -> bool {
        true
    }

    /// Behind a migration each unit is as after power on, and says so.
    /// A device of the host stays there.
    fn has_log(&self) -> bool {
        self.storages().iter().all(|storage| storage.passes().is_none())
    }

    fn has_config(&self) -> bool {
        true
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        self.lock().config.read(offset, out).is_ok()
    }

    fn set_config(&self, rings: &RingSet, offset: u32, data: &[u8]) -> bool {
        let written = self.lock().config.write(offset, data).is_ok();
        if written {
            self.spread_terms(rings);
        }
        written
    }

    fn take(&self, rings: &RingSet, is_wanted: &dyn Fn() -> bool) -> Result<Took, String> {
        for storage in self.storages() {
            if let Some(custody) = storage.custody() {
                custody.take(is_wanted).map_err(|error| error.to_string())?;
            }
        }
        // They may have grown where they were before.
        self.follow_capacity(rings).map_err(|error| error.to_string())?;
        Ok(Took::default())
    }

    fn give_up(&self, patience: Duration) -> Result<bool, String> {
        let mut any = false;
        for storage in self.storages() {
            let given = storage.custody().map_or(Ok(false), |custody| custody.give_up(patience));
            any |= given.map_err(|error| format!("{}: {error}", storage.describe().target))?;
        }
        Ok(any)
    }

    fn is_held(&self) -> bool {
        self.storages().iter().any(|it| it.custody().is_some_and(storage::Custody::is_to_be_given_up))
    }

    fn changes_hands(&self) -> bool {
        self.storages().iter().any(|it| it.custody().is_some_and(storage::Custody::is_changing))
    }

    fn ring(&self, index: u16, start: RingStart, label: Label) -> Result<Ring, Broken> {
        let begins = self.begun.get(usize::from(index)).is_some_and(|begun| !begun.swap(true, Ordering::Relaxed));
        let has_lived = start.position != RingPosition::default();
        if begins && has_lived && !self.is_told.swap(true, Ordering::Relaxed) {
            self.news.missed();
        }
        self.units.port().has(&label);
        match index {
            queue::CONTROL => ControlRing::new(start, self.units.clone(), label).map(Ring::new),
            queue::EVENT => EventRing::new(start, self.news.clone(), label).map(Ring::new),
            _ => {
                let port = self.units.port().clone();
                ScsiRing::new(start, self.terms(), (port, self.units.list()), self.looks.clone(), label).map(Ring::new)
            }
        }
    }

    fn started(&self, rings: &RingSet, index: u16) {
        // Terms and units may have changed while the ring was built.
        let (terms, list) = (self.terms(), self.units.list());
        rings.with(index, move |ring| {
            set_units(ring, &list);
            if let Some(ring) = ring.of::<ScsiRing>() {
                ring.set_terms(terms);
                ring.is_found();
            }
        });
        if self.news.is_any() {
            wake_events(rings);
        }
    }

    fn places(&self) -> u16 {
        self.request_queues
    }

    /// Control and events go with the first request queue: they carry little.
    fn place_of(&self, index: u16) -> u16 {
        index.saturating_sub(queue::REQUEST)
    }

    /// What ends requests must not wait behind them.
    fn limited(&self, index: u16) -> bool {
        index >= queue::REQUEST
    }

    fn reset(&self) {
        self.news.clear();
        self.lock().config.reset();
    }

    fn session_ended(&self) {
        let mut state = self.lock();
        state.negotiated = 0;
        state.config.reset();
        drop(state);
        self.begun.iter().for_each(|begun| begun.store(false, Ordering::Relaxed));
        self.is_told.store(false, Ordering::Relaxed);
        self.news.forget();
        self.units.begin();
    }
}
