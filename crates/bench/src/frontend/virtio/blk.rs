//! virtio-blk (virtio 1.3, 5.2).

use anyhow::{Context, Result};
use frontkit::blk::{HEADER_BYTES, header, kind, status};
use rustix::io::Errno;

use super::queue::{Encoding, Queue};
use super::{Disk, Operation, Verdict, data_bytes, failed, plan, request_queues};
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::driver;
use crate::frontend::spec::{Limits, Spec};

/// VIRTIO_BLK_F_SIZE_MAX, _RO, _BLK_SIZE, _FLUSH and _MQ (5.2.3).
pub(super) const FEATURES: u64 = SIZE_MAX | READ_ONLY | BLOCK_SIZE | FLUSH | QUEUES;
const SIZE_MAX: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const QUEUES: u64 = 1 << 12;
/// The beginning of `struct virtio_blk_config` (5.2.4): capacity in sectors, size_max, .., blk_size, .., num_queues.
const CONFIG_BYTES: u32 = 36;
const SECTOR_BYTES: u64 = 512;
/// A status byte.
pub(super) const ANSWER_BYTES: usize = 1;

/// The device has started with these queues.
pub(super) fn set_up(mut link: driver::Device, spec: &Spec) -> Result<Disk> {
    let config = link.config(CONFIG_BYTES)?.context("the server shows no configuration")?;
    let has = |feature| link.features() & feature != 0;
    let limits = Limits {
        capacity_bytes: u64_at(&config, 0)?.saturating_mul(SECTOR_BYTES),
        block_bytes: if has(BLOCK_SIZE) { u32_at(&config, 20)? } else { SECTOR_BYTES as u32 },
        segment_bytes_max: if has(SIZE_MAX) { u32_at(&config, 8)? } else { 0 },
        queues: if has(QUEUES) { u16_at(&config, 34)? } else { 1 },
    };
    let (is_read_only, has_flush) = (has(READ_ONLY), has(FLUSH));
    let started = link.start(&vec![plan(spec); request_queues(spec, limits.queues)])?;
    let queue = |(queue, buffers)| Queue::new(queue, buffers, Encoding::Blk, spec.depth, data_bytes(spec));
    let queues = started.into_iter().map(queue).collect();
    Ok(Disk { link, queues, limits, is_read_only, has_flush })
}

/// Writes a request's header (5.2.6); how long it is.
pub(super) fn encode(head: &mut [u8], operation: Operation) -> usize {
    let (kind, offset) = match operation {
        Operation::Read(offset) => (kind::IN, offset),
        Operation::Write(offset) => (kind::OUT, offset),
        Operation::Flush => (kind::FLUSH, 0),
    };
    head[..HEADER_BYTES as usize].copy_from_slice(&header(kind, offset / SECTOR_BYTES));
    HEADER_BYTES as usize
}

/// What a status byte means.
pub(super) fn judge(answer: &[u8]) -> Verdict {
    match answer.first() {
        Some(&status::OK) => Verdict::Done,
        Some(&status::UNSUPP) => failed(Errno::NOTSUP),
        _ => failed(Errno::IO),
    }
}
