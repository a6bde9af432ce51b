//! A disk's part in its export: config space, terms of its rings, capacity.

use super::DiskRing;
use super::ring::Terms;
use crate::device::{Device, Took};
use crate::label::Label;
use crate::nbd::NbdRing;
use crate::queue::Broken;
use crate::ring_set::RingSet;
use crate::stream::Handshakes;
use crate::{DiskOptions, ExportError, NbdOptions, Ring};
use device::blk::spec::feature;
use device::blk::{Config, DiscardLimits, Settings, WriteZeroesLimits, serial};
use engine::Io;
use std::num::NonZeroU8;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::Storage;
use storage::kit::{Jobs, LOOKS};
use vhost_user::RingStart;
use vring::Note;

/// Data segments of a request that the driver is told of: with header and status, 128 descriptors.
const SEG_MAX: u32 = 126;
/// The longest data segment that a driver is told of, where it is told of one: more than any makes.
const SIZE_MAX_BYTES: u32 = 1 << 30;
/// Sectors of one discard or write-zeroes segment: 2 GiB, which QEMU and Linux pass on in one piece.
const RANGE_SECTORS_MAX: u32 = 4 << 20;
/// Segments of one discard or write-zeroes request.
const RANGE_SEGMENTS_MAX: u32 = 16;

struct State {
    config: Config,
    negotiated: u64,
    belief: Belief,
    /// Whether a ring has begun in this session.
    rings_ran: bool,
}

/// What says that the write cache is as the driver believes it to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Belief {
    /// Nothing but the options.
    Assumed,
    /// Its frontend has read of it in this session. It may have kept an older answer for its driver.
    Read,
    /// The driver has set it, or an earlier life of the disk left word.
    Settled,
}

impl State {
    /// Nobody says whether the driver flushes.
    fn distrust(&mut self, export: &str) {
        tracing::warn!(
            export,
            "its frontend comes back and leaves open whether the guest flushes: every write is made durable"
        );
        self.config.set_writeback(false);
        self.belief = Belief::Settled;
    }
}

/// What a disk's note says ([`Device::note`]): whether the driver believes in a write cache and flushes it. Frontends read
/// the byte once, keep it over any number of backends (QEMU's `blkcfg.wce`), and neither ask nor tell again.
const WRITE_BACK: NonZeroU8 = NonZeroU8::new(1).unwrap();
const WRITE_THROUGH: NonZeroU8 = NonZeroU8::new(2).unwrap();

/// A disk that is served.
pub(crate) struct Disk {
    /// It changes while every ring is held: see [`Export::hold`](crate::Export::hold).
    storage: Mutex<Arc<dyn Storage>>,
    /// Questions of where it has data.
    pub(crate) looks: Jobs,
    /// Handshakes of those who reach it over TLS.
    pub(crate) handshakes: Handshakes,
    serial: String,
    queues: u16,
    /// Whether the options ask for a write cache.
    write_back: bool,
    pub(crate) nbd: NbdOptions,
    state: Mutex<State>,
}

impl Disk {
    pub(crate) fn new(
        options: DiskOptions,
        queue_size_max: u16,
        storage: Arc<dyn Storage>,
    ) -> Result<Disk, ExportError> {
        let config = Config::new(settings(&options, queue_size_max, storage.as_ref()))?;
        if options.nbd.tls.is_some() {
            Handshakes::prepare();
        }
        Ok(Disk {
            storage: Mutex::new(storage),
            looks: Jobs::on(&LOOKS),
            handshakes: Handshakes::new(),
            serial: options.serial,
            queues: options.queues,
            write_back: options.write_back,
            nbd: options.nbd,
            state: Mutex::new(State { config, negotiated: 0, belief: Belief::Assumed, rings_ran: false }),
        })
    }

    /// What stands behind it now.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What its rings drive. One that changes hands is taken before.
    fn driven(&self) -> Result<Arc<dyn Storage>, Broken> {
        let storage = self.storage();
        match storage.custody() {
            Some(custody) => custody.held().ok_or(Broken::NotHeld),
            None => Ok(storage),
        }
    }

    /// Lets another storage stand behind it if this one does now; rings take it up when they are [released](Self::releaser).
    pub(crate) fn set_storage(&self, before: &Arc<dyn Storage>, storage: &Arc<dyn Storage>) {
        let mut behind = self.storage.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&behind, before) {
            *behind = storage.clone();
        }
    }

    /// What lets a ring go on that this order holds, with what stands behind the disk then.
    pub(crate) fn releaser(self: &Arc<Self>, order: u64) -> impl Fn(&mut Ring, &mut Io<'_>) + Clone + Send + 'static {
        let (disk, tell) = (self.clone(), self.teller());
        move |ring, _| {
            tell(ring);
            // A release that comes late finds requests under way, which belong to the storage that they were started on. It is the same
            // one then, or a later release brings another.
            if ring.requests_in_flight() == 0 {
                if let Some(ring) = ring.of::<DiskRing>() {
                    ring.set_storage(disk.storage());
                } else if let Some(ring) = ring.of::<NbdRing>() {
                    ring.set_storage(disk.storage());
                }
            }
            let attachment = ring.attachment_mut();
            let waiting = attachment.is_waiting();
            attachment.turns_mut().open(order, waiting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Capacity and logical block size as the guest sees them, in bytes.
    pub(crate) fn geometry(&self) -> (u64, u32) {
        let state = self.lock();
        let settings = state.config.settings();
        (settings.capacity_bytes, settings.block_size_bytes)
    }

    fn terms(&self) -> Terms {
        let state = self.lock();
        Terms {
            limits: state.config.limits(),
            // Who wants no cache has none, also where a driver believes in one, that it flushes.
            write_through: state.config.write_through(state.negotiated)
                || (!self.write_back && state.negotiated & feature::CONFIG_WCE == 0),
            serial: serial(&self.serial),
        }
    }

    /// Whether the options ask for a write cache.
    pub(crate) fn has_write_cache(&self) -> bool {
        self.write_back
    }

    /// What tells a ring what it has to keep to from now on.
    fn teller(&self) -> impl Fn(&mut Ring) + Clone + Send + 'static {
        let (terms, offer) = (self.terms(), self.offer());
        move |ring| {
            if let Some(ring) = ring.of::<DiskRing>() {
                ring.set_terms(terms.clone());
            } else if let Some(ring) = ring.of::<NbdRing>() {
                ring.set_offer(offer.clone());
            }
        }
    }

    /// Tells every running ring what it has to keep to from now on.
    fn spread_terms(&self, rings: &RingSet) {
        rings.with_all(self.teller());
    }

    /// Whether the write cache is on, if a driver relies on that. What a frontend has read before its driver has a ring it may have
    /// read for a driver of before.
    pub(crate) fn write_back(&self) -> Option<bool> {
        let state = self.lock();
        let relied_on = state.belief == Belief::Settled || (state.belief == Belief::Read && state.rings_ran);
        relied_on.then_some(state.config.settings().writeback)
    }

    /// Goes on with the write cache as the process had it that served this disk before and handed it over.
    pub(crate) fn set_write_back(&self, on: bool) {
        let mut state = self.lock();
        state.config.set_writeback(on);
        state.belief = Belief::Settled;
    }

    /// Whether the guest could be told of this capacity.
    pub(crate) fn check_capacity(&self, capacity_bytes: u64) -> Result<(), ExportError> {
        let block_size_bytes = self.geometry().1;
        if !capacity_bytes.is_multiple_of(u64::from(block_size_bytes)) {
            return Err(ExportError::Capacity { capacity_bytes, block_size_bytes });
        }
        Ok(())
    }

    /// Takes the storage's capacity over and tells the rings.
    pub(crate) fn follow_capacity(&self, rings: &RingSet) -> Result<(), ExportError> {
        let capacity_bytes = whole_blocks(self.storage().capacity_bytes(), self.geometry().1);
        self.lock().config.set_capacity_bytes(capacity_bytes)?;
        let tell = self.teller();
        rings.tell(&rings.running(), move |ring, _| tell(ring));
        Ok(())
    }
}

impl Device for Disk {
    fn features(&self) -> u64 {
        self.lock().config.features()
    }

    /// Another life of the disk may have offered its driver to turn the write cache off, which it knows from then on; and another
    /// program a longest segment (qemu-storage-daemon), which is the driver's to keep to.
    fn features_known(&self) -> u64 {
        self.features() | feature::CONFIG_WCE | feature::SIZE_MAX
    }

    fn acknowledged(&self, rings: &RingSet, features: u64) {
        {
            let mut state = self.lock();
            let before = std::mem::replace(&mut state.negotiated, features);
            // Its rings are older than the feature: nobody has asked what a ring that starts with it is asked.
            let is_new = feature::CONFIG_WCE & features & !before != 0;
            if is_new && state.rings_ran && state.belief == Belief::Assumed {
                state.distrust(rings.export());
            }
        }
        self.spread_terms(rings);
    }

    /// Reads, writes, flushes and discards have the same effect twice as once.
    fn has_inflight(&self) -> bool {
        true
    }

    /// The image is for whoever migrates: both sides open the same, or a copy.
    fn has_log(&self) -> bool {
        true
    }

    fn has_config(&self) -> bool {
        true
    }

    fn config(&self, offset: u32, out: &mut [u8]) -> bool {
        let mut state = self.lock();
        // Whoever asks before there is a ring has no older knowledge. Later it may be that only the capacity is taken over.
        if state.belief == Belief::Assumed && !state.rings_ran && state.config.is_writeback_among(offset, out.len()) {
            state.belief = Belief::Read;
        }
        state.config.read(offset, out).is_ok()
    }

    fn set_config(&self, rings: &RingSet, offset: u32, data: &[u8]) -> bool {
        let written = {
            let mut state = self.lock();
            let negotiated = state.negotiated;
            let written = state.config.write(offset, data, negotiated).is_ok();
            if written {
                state.belief = Belief::Settled;
            }
            written
        };
        if written {
            self.spread_terms(rings);
        }
        written
    }

    fn note(&self) -> Option<NonZeroU8> {
        let state = self.lock();
        let on = state.config.settings().writeback;
        (state.belief != Belief::Assumed).then_some(if on { WRITE_BACK } else { WRITE_THROUGH })
    }

    /// A driver that believes the cache to be off never flushes. So a ring is served without one if that was its last life,
    /// and where a frontend comes back and nothing says what it believes.
    fn recall(&self, rings: &RingSet, note: Note) {
        let mut state = self.lock();
        state.rings_ran = true;
        let negotiated = state.negotiated;
        let was = state.config.write_through(negotiated);
        // A driver that knows of the byte without having been offered it has it from elsewhere.
        let is_read = state.belief == Belief::Read && state.config.features() & feature::CONFIG_WCE != 0;
        match note {
            Note::Left(WRITE_BACK) => {}
            Note::Unused if state.belief == Belief::Settled || is_read => return,
            Note::Missing if state.belief == Belief::Settled => return,
            // Without the feature a driver cannot know of the byte.
            Note::Unused | Note::Missing if negotiated & feature::CONFIG_WCE == 0 => return,
            Note::Unused | Note::Missing => {
                state.distrust(rings.export());
            }
            Note::Left(_) => state.config.set_writeback(false),
        }
        state.belief = Belief::Settled;
        let is = state.config.write_through(negotiated);
        drop(state);
        if is != was {
            self.spread_terms(rings);
        }
    }

    fn take(&self, rings: &RingSet, is_wanted: &dyn Fn() -> bool) -> Result<Took, String> {
        let storage = self.storage();
        let Some(custody) = storage.custody() else { return Ok(Took::default()) };
        custody.take(is_wanted).map_err(|error| error.to_string())?;
        // It may have grown where it was before.
        let (known_bytes, block_size_bytes) = self.geometry();
        if whole_blocks(storage.capacity_bytes(), block_size_bytes) == known_bytes {
            return Ok(Took::default());
        }
        self.follow_capacity(rings).map_err(|error| error.to_string())?;
        Ok(Took { config_changed: true, lost: None })
    }

    fn give_up(&self, patience: Duration) -> Result<bool, String> {
        let storage = self.storage();
        let given = storage.custody().map_or(Ok(false), |custody| custody.give_up(patience));
        given.map_err(|error| format!("{}: {error}", storage.describe().target))
    }

    fn is_held(&self) -> bool {
        self.storage().custody().is_some_and(storage::Custody::is_to_be_given_up)
    }

    fn changes_hands(&self) -> bool {
        self.storage().custody().is_some_and(storage::Custody::is_changing)
    }

    fn ring(&self, _index: u16, start: RingStart, label: Label) -> Result<Ring, Broken> {
        let ring = DiskRing::new(start, self.terms(), self.driven()?, label)?;
        Ok(Ring::new(ring))
    }

    fn started(&self, rings: &RingSet, index: u16) {
        // The terms may have changed while the ring was built.
        rings.with(index, self.teller());
    }

    fn places(&self) -> u16 {
        self.queues
    }

    fn session_ended(&self) {
        let mut state = self.lock();
        (state.negotiated, state.belief, state.rings_ran) = (0, Belief::Assumed, false);
        // The next frontend's driver finds what the options say, unless its inflight region says that it knows better.
        state.config.set_writeback(self.write_back);
    }
}

/// A tail smaller than a block cannot be addressed.
fn whole_blocks(bytes: u64, block_size_bytes: u32) -> u64 {
    bytes / u64::from(block_size_bytes) * u64::from(block_size_bytes)
}

fn settings(options: &DiskOptions, queue_size_max: u16, storage: &dyn Storage) -> Settings {
    let about = storage.describe();
    let block_size_bytes = options.block_size_bytes.max(about.block_size_bytes);
    let physical = about.physical_block_bytes.max(block_size_bytes);
    let granularity = about.discard_granularity_bytes.max(block_size_bytes);
    Settings {
        capacity_bytes: whole_blocks(storage.capacity_bytes(), block_size_bytes),
        block_size_bytes,
        physical_block_exp: (physical / block_size_bytes).ilog2() as u8,
        optimal_io_bytes: about.optimal_io_bytes / block_size_bytes * block_size_bytes,
        // Of a stream these are connections, of which the device is not told.
        queues: options.queues.min(Config::QUEUES_MAX),
        // Guests of qemu-storage-daemon migrate to where both are offered.
        size_max_bytes: options.write_back_changeable.then_some(SIZE_MAX_BYTES),
        seg_max: SEG_MAX.min(u32::from(queue_size_max).saturating_sub(2).max(1)),
        read_only: about.read_only,
        discard: about.discard.then_some(DiscardLimits {
            max_sectors: RANGE_SECTORS_MAX,
            max_segments: RANGE_SEGMENTS_MAX,
            alignment_bytes: granularity,
        }),
        write_zeroes: about.write_zeroes.then_some(WriteZeroesLimits {
            max_sectors: RANGE_SECTORS_MAX,
            max_segments: RANGE_SEGMENTS_MAX,
            may_unmap: about.discard,
        }),
        writeback: options.write_back,
        writeback_changeable: options.write_back_changeable,
    }
}
