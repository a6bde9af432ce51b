//! The region in which a backend writes down what is in flight, kept by the frontend while backends die (vhost-user,
//! "Inflight I/O tracking").
//!
//! The frontend asks the first backend for one (GET_INFLIGHT_FD) and shows it to this one and to all later ones
//! (SET_INFLIGHT_FD) before it starts a ring. What is written into it, and how rings go on from it, is `vring`'s.

use std::num::NonZeroU8;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;
use vring::{InflightQueue, Mapping, Note, QUEUE_SIZE_MAX};

use crate::memory::{page_bytes, span};
use crate::refusal::Refusal;

/// Descriptors that each queue of a region which we make has room for, at least. QEMU asks for a region by its device's
/// property `queue-size`, 128 by default, and lets drivers make rings of up to 1024 (its VIRTQUEUE_MAX_SIZE).
const ROOM: u16 = 1024;

/// A region that a session uses, as another program needs it to go on with the session.
#[derive(Debug)]
pub struct InflightState {
    /// Bytes that the frontend gave it.
    pub bytes: u64,
    /// Where in the file it begins, in bytes.
    pub file_offset: u64,
    /// Queues that it has room for.
    pub queues: u16,
    /// Descriptors of each, as the frontend says; see also `bytes`.
    pub queue_size: u16,
    /// The file, shared as that of a [region](crate::RegionState).
    pub file: Arc<OwnedFd>,
}

/// The region of one session.
#[derive(Debug)]
pub(crate) struct Inflight {
    state: InflightState,
    mapping: Arc<Mapping>,
    /// Where in the mapping it begins, in bytes.
    start: usize,
    /// Descriptors that each queue's part has room for.
    entries: u16,
}

/// GET_INFLIGHT_FD: a new region for `asked.num_queues` queues of `asked.queue_size` descriptors or some more, in a file
/// that cannot be made shorter. What is in it has never been used.
pub(crate) fn create(asked: &VhostUserInflight, queues_max: usize) -> Result<(VhostUserInflight, OwnedFd), Refusal> {
    let (queues, queue_size) = (asked.num_queues, asked.queue_size);
    let bytes = bytes_needed(queues, queue_size.max(ROOM), queues_max)?;
    let make = || -> rustix::io::Result<OwnedFd> {
        let file = memfd_create("vhost-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    };
    let file = make().map_err(|error| Refusal::InflightMap(error.into()))?;
    Ok((VhostUserInflight::new(bytes, 0, queues, queue_size), file))
}

/// Bytes that the queues take together, for a shape that the device can have.
fn bytes_needed(queues: u16, queue_size: u16, queues_max: usize) -> Result<u64, Refusal> {
    if usize::from(queues) > queues_max || queue_size > QUEUE_SIZE_MAX {
        return Err(Refusal::InflightQueues { queues, queue_size, queues_max });
    }
    Ok(u64::from(queues) * InflightQueue::bytes(queue_size) as u64)
}

/// Descriptors that each queue's part has room for: more than the frontend says, if the region is as large as those that
/// [`create`] makes.
fn entries(state: &InflightState) -> u16 {
    let roomy = u64::from(state.queues) * InflightQueue::bytes(ROOM) as u64;
    if state.bytes == roomy { state.queue_size.max(ROOM) } else { state.queue_size }
}

impl Inflight {
    /// SET_INFLIGHT_FD: the region that `shown` describes.
    ///
    /// A file that the frontend shortens later takes its own guest's record away, and nothing else: the mapping survives
    /// that. So the file need not be sealed, as those are not that other backends have made.
    pub(crate) fn map(shown: &VhostUserInflight, file: OwnedFd, queues_max: usize) -> Result<Inflight, Refusal> {
        Inflight::restored(
            InflightState {
                bytes: shown.mmap_size,
                file_offset: shown.mmap_offset,
                queues: shown.num_queues,
                queue_size: shown.queue_size,
                file: file.into(),
            },
            queues_max,
        )
    }

    /// The region that [`Inflight::state`] described.
    pub(crate) fn restored(state: InflightState, queues_max: usize) -> Result<Inflight, Refusal> {
        let (queues, queue_size) = (state.queues, state.queue_size);
        let entries = entries(&state);
        let needed = bytes_needed(queues, entries, queues_max)?;
        let failed = |error: rustix::io::Errno| Refusal::InflightMap(error.into());
        let stat = fstat(&state.file).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refusal::InflightFile);
        }
        let in_file = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(state.file_offset);
        let room = in_file.min(state.bytes);
        let short = || Refusal::InflightSize { queues, queue_size, needed, room };
        if needed > room {
            return Err(short());
        }
        let (map_start, map_len, start) = page_bytes(&state.file)
            .map(|page| span(state.file_offset, state.file_offset.saturating_add(needed), page))
            .map_err(Refusal::InflightMap)?
            .ok_or_else(short)?;
        let mapping = Mapping::shared(&state.file, map_start, map_len).map_err(Refusal::InflightMap)?;
        Ok(Inflight { state, mapping: Arc::new(mapping), start, entries })
    }

    /// What another program needs to map the same region.
    pub(crate) fn state(&self) -> InflightState {
        let InflightState { bytes, file_offset, queues, queue_size, file } = &self.state;
        InflightState {
            bytes: *bytes,
            file_offset: *file_offset,
            queues: *queues,
            queue_size: *queue_size,
            file: file.clone(),
        }
    }

    /// The part of ring `index`, which has `size` descriptors. `None` if those are more than the region has room for.
    ///
    /// Such a ring is served as one without a region, and not refused: its guest has no part in what its frontend asked for,
    /// or another backend made.
    pub(crate) fn queue(&self, index: u16, size: u16) -> Result<Option<InflightQueue>, Refusal> {
        let (queues, entries) = (self.state.queues, self.entries);
        if index >= queues {
            return Err(Refusal::InflightRing { index, queues });
        }
        if size > entries {
            tracing::warn!(
                "ring {index} has {size} descriptors, the inflight region has room for {entries}: what is in flight when \
                 this process is killed will be lost"
            );
            return Ok(None);
        }
        Ok(Some(self.part(index)?))
    }

    fn part(&self, index: u16) -> Result<InflightQueue, vring::InflightError> {
        let offset = self.start + usize::from(index) * InflightQueue::bytes(self.entries);
        InflightQueue::new(self.mapping.clone(), offset, self.entries)
    }

    /// The note in the part of ring `index` ([`InflightQueue::note`]).
    pub(crate) fn note(&self, index: u16) -> Note {
        // A ring without a part is refused, where it starts.
        if index >= self.state.queues {
            return Note::Unused;
        }
        self.part(index).map_or(Note::Unused, |part| part.note())
    }

    /// Leaves `note` in the part of ring `index`.
    pub(crate) fn set_note(&self, index: u16, note: Option<NonZeroU8>) {
        if index < self.state.queues
            && let Ok(part) = self.part(index)
        {
            part.set_note(note);
        }
    }

    /// Leaves `note` in every part.
    pub(crate) fn set_notes(&self, note: Option<NonZeroU8>) {
        for index in 0..self.state.queues {
            self.set_note(index, note);
        }
    }

    /// RESET_DEVICE: the driver has given up all its requests. No ring runs.
    pub(crate) fn reset(&self) {
        for index in 0..self.state.queues {
            match self.part(index) {
                Ok(mut queue) => queue.reset(),
                // It would have been refused to every ring as well.
                Err(error) => tracing::warn!("inflight region of ring {index}: {error}"),
            }
        }
    }
}

/// The body of an answer that describes a region, as long as that of the question.
pub(crate) fn body(region: &VhostUserInflight, bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes);
    body.extend_from_slice(&region.mmap_size.to_ne_bytes());
    body.extend_from_slice(&region.mmap_offset.to_ne_bytes());
    body.extend_from_slice(&region.num_queues.to_ne_bytes());
    body.extend_from_slice(&region.queue_size.to_ne_bytes());
    body.resize(bytes, 0);
    body
}
