//! virtio-blk (virtio 1.3, 5.2).

use anyhow::{Context, Result, bail, ensure};
use frontkit::Session;
use frontkit::blk::{self, NO_STATUS, kind, status};

use super::language::{Durability, Features, Geometry, Verdict};
use super::request::{Kind, Request};
use super::ring::{Head, Wanted};

/// Features that the frontend takes if they are offered (5.2.3).
mod feature {
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const CONFIG_WCE: u64 = 1 << 11;
    pub(super) const MQ: u64 = 1 << 12;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// A driver that may turn the cache off keeps that over servers that would not offer it: QEMU asks for what its driver has.
pub(super) const MAY_BE_LACKING: u64 = feature::CONFIG_WCE;
/// Where the byte of the write cache is (5.2.4).
const WRITEBACK_AT: u32 = 32;

/// Length of the configuration space up to the last field that is read here (5.2.4).
const CONFIG_BYTES: u32 = 60;
const BLK_SIZE_AT: usize = 20;
/// A serial number (5.2.6) and a segment of WRITE_ZEROES, in bytes.
const ID_BYTES: u32 = 20;
const SEGMENT_BYTES: u32 = 16;

/// What a device has told, and what was told it.
#[derive(Debug)]
pub(super) struct Blk {
    durability: Durability,
    geometry: Option<Geometry>,
    serial: Option<Vec<u8>>,
    /// A server has acknowledged that it has no write cache. No other one is told: QEMU's driver asks once, too.
    cache_is_off: bool,
}

impl Blk {
    pub(super) fn new(durability: Durability) -> Self {
        Self { durability, geometry: None, serial: None, cache_is_off: false }
    }

    fn turns_cache_off(&self) -> bool {
        self.durability == Durability::Cacheless
    }

    pub(super) fn features(&self) -> Features {
        Features {
            required: if self.turns_cache_off() { feature::CONFIG_WCE } else { 0 },
            optional: feature::BLK_SIZE | feature::FLUSH | feature::MQ | feature::WRITE_ZEROES,
        }
    }

    /// The disk is what it was, whoever serves.
    pub(super) fn read_config(&mut self, session: &mut Session) -> Result<()> {
        let geometry = geometry(session)?;
        let now = Geometry { flush: geometry.flush && !self.turns_cache_off(), ..geometry };
        let before = *self.geometry.get_or_insert(now);
        ensure!(before == now, "the server is not what the last one was: the disk was {before:x?}, is {now:x?}");
        Ok(())
    }

    pub(super) fn geometry(&self) -> Result<Geometry> {
        self.geometry.context("nobody has read the configuration space")
    }

    pub(super) fn settle_cache(&mut self, session: &mut Session) -> Result<()> {
        if !self.turns_cache_off() {
            return Ok(());
        }
        if !self.cache_is_off {
            session.set_config(WRITEBACK_AT, &[0])?;
            self.cache_is_off = true;
        }
        let byte = session.config(WRITEBACK_AT, 1)?;
        ensure!(byte == [0], "the server has a write cache again, which a driver that has turned it off never flushes");
        Ok(())
    }

    /// The serial number stays, whoever serves.
    pub(super) fn judge_serial(&mut self, data: &[u8]) -> Result<()> {
        let data = &data[..ID_BYTES as usize];
        let known = self.serial.get_or_insert_with(|| data.to_vec());
        ensure!(known == data, "the serial number was {known:02x?}, is {data:02x?}");
        Ok(())
    }
}

fn geometry(session: &mut Session) -> Result<Geometry> {
    let (config, features) = (session.config(0, CONFIG_BYTES)?, session.features);
    let (Some(capacity), Some(block)) =
        (config.first_chunk::<8>(), config.get(BLK_SIZE_AT..).and_then(<[u8]>::first_chunk))
    else {
        bail!("GET_CONFIG: {} bytes are no configuration of a disk", config.len());
    };
    let block_bytes = if features & feature::BLK_SIZE == 0 { 512 } else { u32::from_le_bytes(*block) };
    let geometry = Geometry {
        sectors: u64::from_le_bytes(*capacity),
        block_sectors: u64::from(block_bytes / 512),
        write_zeroes: features & feature::WRITE_ZEROES != 0,
        discard: false,
        swap_sectors: 0,
        flush: features & feature::FLUSH != 0,
    };
    ensure!(
        geometry.block_sectors > 0 && geometry.sectors >= geometry.block_sectors,
        "GET_CONFIG: {geometry:?} is no disk"
    );
    Ok(geometry)
}

/// Bytes of data. Swaps and reservations are never drawn for these disks.
fn data_bytes(request: &Request) -> u32 {
    match request.kind {
        Kind::Zeroes | Kind::Discard => SEGMENT_BYTES,
        Kind::Flush | Kind::Reserve => 0,
        Kind::Ask(_) => ID_BYTES,
        Kind::Read | Kind::Write | Kind::Swap => request.sector_bytes(),
    }
}

pub(super) fn encode(request: &Request, data: &mut [u8]) -> Wanted {
    let (kind, sector) = match request.kind {
        Kind::Read => (kind::IN, request.first),
        Kind::Write | Kind::Swap => (kind::OUT, request.first),
        Kind::Zeroes => (kind::WRITE_ZEROES, 0),
        Kind::Discard => (kind::DISCARD, 0),
        Kind::Flush | Kind::Reserve => (kind::FLUSH, 0),
        Kind::Ask(_) => (kind::GET_ID, 0),
    };
    let bytes = data_bytes(request);
    if matches!(request.kind, Kind::Zeroes | Kind::Discard) {
        let segment = &mut data[..SEGMENT_BYTES as usize];
        segment.fill(0);
        segment[..8].copy_from_slice(&request.first.to_le_bytes());
        segment[8..12].copy_from_slice(&(request.count as u32).to_le_bytes());
    }
    Wanted {
        head: Head::of(&blk::header(kind, sector)),
        answer_bytes: 1,
        answer_first: false,
        bytes,
        from_device: request.reads(),
        torn_at: 0,
        indirect: false,
        turn: 0,
    }
}

pub(super) fn judge(request: &Request, answer: &[u8], written: u32) -> Result<Verdict> {
    match answer {
        [status::OK] => {}
        [NO_STATUS] => bail!("was completed without a status: it came before it was served"),
        answer => bail!("failed with status {answer:?}"),
    }
    let delivered = if request.reads() { data_bytes(request) } else { 0 };
    ensure!(written == delivered + 1, "wrote {written} bytes, not {}", delivered + 1);
    Ok(Verdict::Done)
}
