//! What the NBD clients of a disk find.

use super::ring::Protected;
use super::{DirtyBitmap, NbdRing};
use crate::Ring;
use crate::disk::Disk;
use crate::label::Label;
use crate::stream::{Clients, Greeted, Handshakes, Pipe};
use device::nbd::{BlockSizes, Terms, spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a client may take until it has chosen the export.
const GREETING: Duration = Duration::from_secs(10);

/// What every client of a disk is told, and what its requests are checked against.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) terms: Terms,
    /// Every write must be durable before it is answered.
    pub(crate) write_through: bool,
    /// What requests had better be multiples of, in bytes.
    pub(crate) preferred_bytes: u32,
    /// Buffers are cleared before something is read into them, since the storage may leave them as they are.
    pub(crate) clears: bool,
    /// The name by which clients ask for it; that of the export if there is none.
    pub(super) name: Option<Arc<str>>,
    /// What they may ask for besides where there is data.
    pub(super) bitmap: Option<Arc<DirtyBitmap>>,
}

/// What clients take for a block that are told nothing, in bytes.
const BLOCK_BYTES_UNTOLD: u32 = 512;

impl Offer {
    /// Transmission flags (NBD protocol, "Transmission flags").
    pub(super) fn flags(&self, structured: bool) -> u16 {
        use spec::transmission_flag as flag;
        let also = |has: bool, flag: u16| if has { flag } else { 0 };
        // Storages know no connections: a flush covers what was written by any of them.
        let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        always
            | also(structured, flag::SEND_DF)
            | also(self.terms.read_only, flag::READ_ONLY)
            | also(self.terms.trim, flag::SEND_TRIM)
            | also(self.terms.write_zeroes, flag::SEND_WRITE_ZEROES)
    }

    /// Whether a client has to know the block sizes.
    pub(super) fn has_large_blocks(&self) -> bool {
        self.terms.block_bytes > BLOCK_BYTES_UNTOLD
    }

    pub(super) fn block(&self) -> BlockSizes {
        let (minimum, preferred) = (self.terms.block_bytes, self.preferred_bytes);
        BlockSizes { minimum, preferred, maximum: self.terms.payload_max }
    }
}

/// A client that is connected.
#[derive(Debug, Default)]
pub(super) struct Client {
    chosen: AtomicBool,
}

impl Client {
    /// It has chosen the export.
    pub(super) fn has_chosen(&self) {
        self.chosen.store(true, Ordering::Release);
    }
}

impl Greeted for Client {
    fn has_greeted(&self) -> bool {
        self.chosen.load(Ordering::Acquire)
    }
}

impl Clients for Disk {
    fn connect(&self, pipe: Pipe, label: Label) -> (Ring, Arc<dyn Greeted>) {
        storage::kit::LOOKS.prepare();
        let client = Arc::<Client>::default();
        let door = self.nbd.tls.clone();
        door.iter().for_each(|_| Handshakes::prepare());
        let door = door.map(|certificates| Protected { certificates, handshakes: self.handshakes.clone() });
        let storage = (self.storage(), self.looks.clone());
        let ring = NbdRing::new(pipe, storage, self.offer(), (client.clone(), door), label);
        (Ring::new(ring), client)
    }

    fn greeting(&self) -> Duration {
        GREETING
    }

    fn stay(&self, clients: usize) -> String {
        format!(
            "it serves a disk over NBD to {clients} connected client(s), whose connections cannot be handed over: \
             disconnect them, or restart the daemon instead"
        )
    }
}

impl Disk {
    /// What NBD clients are told of it now.
    pub(crate) fn offer(&self) -> Offer {
        let storage = self.storage();
        let about = storage.describe();
        let (size_bytes, block_bytes) = self.geometry();
        let terms = Terms {
            size_bytes,
            block_bytes,
            read_only: about.read_only,
            trim: about.discard && !about.read_only,
            write_zeroes: about.write_zeroes && !about.read_only,
            block_status: false,
            payload_max: spec::PAYLOAD_BYTES_PORTABLE,
        };
        let preferred_bytes = about.physical_block_bytes.max(4096).max(block_bytes);
        let (name, bitmap) = (self.nbd.name.as_deref().map(Arc::from), self.nbd.bitmap.clone());
        let write_through = !self.has_write_cache();
        Offer { terms, write_through, preferred_bytes, clears: !storage.fills(), name, bitmap }
    }
}
