//! A connection to a vhost-user-blk server, made by libblkio.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use blkio::{Blkio, Blkioq, Errno};

use super::Error;
use super::spec::{Limits, Part, Spec};

/// A server that has not answered the set-up messages after this time never will.
const SETUP_TIME_MAX: Duration = Duration::from_secs(10);
/// A request takes a header, a data and a status descriptor (virtio 1.3, 5.2.6): libblkio has no indirect ones.
const DESCRIPTORS_PER_REQUEST: u32 = 3;

/// A connected frontend with its queues. The server sees it until it is dropped.
pub(crate) struct Device {
    // Dropped before `blkio`, whose memory they use.
    pub(crate) queues: Vec<Blkioq>,
    pub(crate) buffers_address: usize,
    pub(crate) parts: Vec<Part>,
    pub(crate) limits: Limits,
    #[expect(dead_code, reason = "owns the connection and all memory the queues use")]
    blkio: Blkio,
}

impl Device {
    /// Connects to `socket` and sets up what `spec` asks for.
    pub(crate) fn open(socket: &Path, spec: &Spec) -> Result<Self, Error> {
        // libblkio waits for answers without end, so it waits on a thread of its own.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (path, spec) = (socket.to_owned(), spec.clone());
        thread::Builder::new()
            .name("bench-connect".into())
            .spawn(move || {
                // Nobody listens any more when the answer came too late.
                let _late = sender.send(set_up(&path, &spec));
            })
            .map_err(|cause| Error::Thread { cause })?;
        match receiver.recv_timeout(SETUP_TIME_MAX) {
            Ok(device) => device,
            Err(_) => Err(Error::Mute { socket: socket.to_owned(), seconds: SETUP_TIME_MAX.as_secs() }),
        }
    }
}

fn set_up(socket: &Path, spec: &Spec) -> Result<Device, Error> {
    let failed = |step: &'static str| move |cause: blkio::Error| Error::SetUp { step, cause };
    let mut blkio = connect(socket, !spec.rw.writes())?;
    let limits = read_limits(&blkio).map_err(failed("read the configuration of the disk"))?;
    let parts = spec.parts(&limits)?;

    let descriptors = (u32::from(spec.depth) * DESCRIPTORS_PER_REQUEST).next_power_of_two().max(64);
    let kind = if spec.poll { "num-poll-queues" } else { "num-queues" };
    blkio.set_i32("num-queues", 0).map_err(failed("choose queues"))?;
    blkio.set_i32(kind, i32::from(spec.queues)).map_err(failed("choose queues"))?;
    blkio.set_i32("queue-size", descriptors as i32).map_err(failed("choose the queue size"))?;
    let outcome = blkio.start().map_err(|cause| match cause.errno() {
        Errno::ROFS => Error::ReadOnly,
        _ => Error::SetUp { step: "set up the queues", cause },
    })?;

    let bytes = spec.buffer_stride_bytes() * u64::from(spec.depth) * u64::from(spec.queues);
    let region = blkio.alloc_mem_region(bytes as usize).map_err(failed("allocate buffers"))?;
    blkio.map_mem_region(&region).map_err(failed("share the buffers"))?;
    let queues = outcome.queues.into_iter().chain(outcome.poll_queues).collect();
    Ok(Device { queues, buffers_address: region.addr, parts, limits, blkio })
}

fn connect(socket: &Path, read_only: bool) -> Result<Blkio, Error> {
    let failed = |cause| Error::Connect { socket: PathBuf::from(socket), cause };
    let path = socket.to_str().ok_or_else(|| Error::Path { socket: socket.to_owned() })?;
    let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(failed)?;
    blkio.set_str("path", path).map_err(failed)?;
    // libblkio refuses a read-only disk unless told that this is meant.
    blkio.set_bool("read-only", read_only).map_err(failed)?;
    blkio.connect().map_err(failed)?;
    Ok(blkio)
}

fn read_limits(blkio: &Blkio) -> Result<Limits, blkio::Error> {
    let positive = |name| blkio.get_i32(name).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(Limits {
        capacity_bytes: blkio.get_u64("capacity")?,
        block_bytes: positive("request-alignment")?,
        segment_bytes_max: positive("max-segment-len")?,
        queues: u16::try_from(positive("max-queues")?).unwrap_or(u16::MAX),
    })
}
