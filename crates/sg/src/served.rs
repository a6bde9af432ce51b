//! The storage: a device that is open.

use crate::admit::{Rules, admit};
use crate::error::SgError;
use crate::ffi::{self, PIECES_MAX, Way};
use crate::helper::{DATA_BYTES_MAX, Helped, Helper};
use crate::open::{About, Device, kind};
use crate::options::SgOptions;
use crate::{opcode, outcome};
use engine::{Completion, Io, Pool, Reply, Token};
use libc::iovec;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use storage::kit::{Lent, copy_in, copy_out};
use storage::{
    Description, Execution, Handed, Loss, OpenError, Pass, PassCommand, PassData, Passed, Refusal, Step, Storage,
    StorageError, Task,
};
use values::Span;

/// Commands of one descriptor that the driver has under way at once (SG_MAX_QUEUE in Linux' `drivers/scsi/sg.c`): as many threads wait for
/// them, the first of which are always there.
pub const COMMANDS_MAX: usize = 16;
const THREADS: usize = 2;
/// How long a command may take: what Linux gives those of its own, twice over for disks; what winds a tape takes long.
const DISK_TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(14_400);

/// A device that is open.
pub struct SgStorage {
    device: Arc<Driven>,
    /// What keeps the host from using its block device.
    block: Option<Arc<OwnedFd>>,
    pool: Pool,
    about: About,
    target: String,
}

/// What threads have of it.
struct Driven {
    fd: Arc<OwnedFd>,
    helper: Option<Helper>,
    rules: Rules,
    timeout_ms: u32,
}

impl SgStorage {
    /// Starts the threads for a device that is open.
    pub(crate) fn start(options: &SgOptions, device: Device) -> Result<SgStorage, SgError> {
        let Device { fd, block, about, helper } = device;
        let threads = |source| SgError::Threads { path: options.path.clone(), source };
        let pool = ffi::without_signals(|| Pool::growing("sg", THREADS, COMMANDS_MAX)).map_err(threads)?;
        let usual = if matches!(about.kind, kind::DISK | kind::ZONED) { DISK_TIMEOUT } else { TIMEOUT };
        let timeout = options.timeout.map_or(usual, |Span(timeout)| timeout);
        Ok(SgStorage {
            device: Arc::new(Driven {
                fd,
                helper,
                rules: Rules { read_only: options.read_only, unfiltered: options.unfiltered, kind: about.kind },
                timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            }),
            block,
            pool,
            about,
            target: options.path.display().to_string(),
        })
    }

    /// Goes on with what another program has opened. The device is asked nothing: it may be slow or gone, and what it has to say first is for
    /// the guest.
    pub(crate) fn adopt(options: &SgOptions, mut handed: Handed) -> Result<SgStorage, OpenError> {
        let fd = handed.take_data()?;
        if !ffi::is_generic(&*fd) {
            return Err(OpenError::NothingHanded);
        }
        let bytes = handed.seen.as_ref().map_or(512, |seen| seen.block_size_bytes);
        let about = About::known(&*fd, handed.capacity_bytes, bytes);
        let helper = options.pr_helper.as_deref().map(Helper::later);
        Ok(SgStorage::start(options, Device { fd, block: handed.lock, about, helper })?)
    }
}

impl Driven {
    /// Performs a command, and waits for its end.
    fn perform(&self, cdb: &[u8], data: PassData, pieces: &[iovec], bytes: u32) -> Passed {
        match (&self.helper, cdb.first()) {
            (Some(_), Some(&opcode::PERSISTENT_RESERVE_IN)) if data == PassData::Out => Passed::Refused(Refusal::Field),
            (Some(_), Some(&opcode::PERSISTENT_RESERVE_OUT)) if data == PassData::In => Passed::Refused(Refusal::Field),
            (Some(helper), Some(&opcode::PERSISTENT_RESERVE_IN)) => self.help(helper, &bounded(cdb), None, pieces),
            (Some(helper), Some(&opcode::PERSISTENT_RESERVE_OUT)) => {
                // PARAMETER LIST LENGTH (SPC-5, "PERSISTENT RESERVE OUT command").
                let asked =
                    cdb.get(5..9).map_or(0, |len| len.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)));
                if asked > DATA_BYTES_MAX || asked > bytes as usize {
                    return Passed::Refused(Refusal::Field);
                }
                let mut list = vec![0; asked];
                // SAFETY: the pieces are a guest's memory, mapped until the command has ended, and have as many bytes; the list is ours.
                unsafe { copy_out(pieces, 0, list.as_mut_ptr(), asked as u64) };
                self.help(helper, cdb, Some(&list), pieces)
            }
            _ => self.send(cdb, data, pieces, bytes),
        }
    }

    fn send(&self, cdb: &[u8], data: PassData, pieces: &[iovec], bytes: u32) -> Passed {
        let way = match data {
            PassData::None => Way::None,
            PassData::Out => Way::Out,
            PassData::In => Way::In,
        };
        // SAFETY: the pieces are a guest's memory, mapped until the command has ended.
        match unsafe { ffi::perform(&*self.fd, cdb, (way, pieces, bytes), self.timeout_ms) } {
            Ok(ended) => outcome::of(ended),
            Err(error) => {
                tracing::debug!(operation = cdb.first(), %error, "a command was not sent");
                outcome::of_errno(error.raw_os_error().unwrap_or(libc::EIO))
            }
        }
    }

    /// Has the helper do it.
    fn help(&self, helper: &Helper, cdb: &[u8], list: Option<&[u8]>, pieces: &[iovec]) -> Passed {
        match helper.perform(&*self.fd, cdb, list) {
            Helped::Ended(ended, data) => {
                let moved_bytes = match list {
                    Some(list) => list.len() as u64,
                    None => storage::kit::total(pieces).min(data.len() as u64),
                };
                if list.is_none() {
                    // SAFETY: the pieces are a guest's memory, mapped until the command has ended; the data is ours.
                    unsafe { copy_in(pieces, 0, data.as_ptr(), moved_bytes) };
                }
                outcome::of(ffi::Ended { moved_bytes, ..ended })
            }
            Helped::Busy => Passed::Lost(Loss::Busy),
            Helped::Away(error) => {
                tracing::warn!(%error, "the helper for reservations is away");
                Passed::Refused(Refusal::Helper)
            }
            Helped::Unknown(error) => {
                tracing::warn!(%error, "the helper for reservations has not answered");
                Passed::Lost(Loss::Other)
            }
        }
    }
}

/// PERSISTENT RESERVE IN with an ALLOCATION LENGTH that the helper takes: it hangs up on more.
fn bounded(cdb: &[u8]) -> Vec<u8> {
    let mut bounded = cdb.to_vec();
    if let Some(len) = bounded.get_mut(7..9)
        && usize::from(u16::from_be_bytes([len[0], len[1]])) > DATA_BYTES_MAX
    {
        len.copy_from_slice(&(DATA_BYTES_MAX as u16).to_be_bytes());
    }
    bounded
}

impl Pass for SgStorage {
    fn is_disk(&self) -> bool {
        self.about.kind == kind::DISK
    }

    fn transfer_bytes_max(&self) -> u32 {
        self.about.transfer_bytes_max
    }

    fn block_bytes(&self) -> Option<u32> {
        self.about.blocks.map(|(_, bytes)| bytes)
    }

    fn pass(&self, task: &mut Task, command: PassCommand, reply: Reply) {
        let PassCommand { cdb, data, place } = command;
        let fits = task.bytes() <= self.about.transfer_bytes_max.into() && task.buffers.len() <= PIECES_MAX;
        let admitted = admit(&cdb, data, self.device.rules).and(if fits { Ok(()) } else { Err(Refusal::Field) });
        if let Err(refusal) = admitted {
            // Nothing else can have been put there.
            let _first = place.set(Passed::Refused(refusal));
            drop(place);
            return reply.complete(0);
        }
        let (device, bytes) = (self.device.clone(), task.bytes() as u32);
        let pieces = Lent::new(&task.buffers);
        self.pool.go(move || {
            // SAFETY: the task is the storage's until the reply completes, which is behind this.
            let passed = device.perform(&cdb, data, unsafe { pieces.list() }, bytes);
            let _first = place.set(passed);
            // Before the answer is seen: who has it may close the storage.
            drop((device, place));
            reply.complete(0);
        });
    }
}

impl Storage for SgStorage {
    fn describe(&self) -> Description {
        let block_size_bytes = self.about.blocks.map_or(512, |(_, bytes)| bytes);
        // What other devices than disks have is nothing that anybody reads here.
        let block_size_bytes = if matches!(block_size_bytes, 512..=4096) && block_size_bytes.is_power_of_two() {
            block_size_bytes
        } else {
            512
        };
        Description {
            kind: "sg",
            target: self.target.clone(),
            read_only: self.device.rules.read_only,
            direct: true,
            block_size_bytes,
            physical_block_bytes: block_size_bytes,
            optimal_io_bytes: 0,
            discard: false,
            discard_granularity_bytes: 512,
            write_zeroes: false,
            execution: Execution::Auto,
            execution_chosen: Execution::Pool(COMMANDS_MAX),
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.about.capacity_bytes()
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        debug_assert!(false, "nothing is ever pending");
        Step::Done(Err(StorageError::Unsupported(task.operation.action())))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        if capacity_bytes == self.capacity_bytes() {
            return Ok(());
        }
        let reason = "its size is the device's own, of which a guest is told by the device".to_owned();
        Err(StorageError::Grow { target: self.target.clone(), asked_bytes: capacity_bytes, reason })
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        let seen = Some(self.describe());
        Ok(Handed { seen, ..Handed::new(self.capacity_bytes(), self.device.fd.clone(), self.block.clone()) })
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        match execution {
            Execution::Auto => Ok(()),
            _ => Err(StorageError::Execution { execution, kind: "sg" }),
        }
    }

    fn passes(&self) -> Option<&dyn Pass> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_is_asked_for_no_more_than_it_takes() {
        let ask = |len: [u8; 2]| bounded(&[0x5e, 0, 0, 0, 0, 0, 0, len[0], len[1], 0]);
        assert_eq!(ask([0xff, 0xff])[7..9], [0x20, 0]);
        assert_eq!(ask([0x20, 0])[7..9], [0x20, 0]);
        assert_eq!(ask([0, 8])[7..9], [0, 8]);
        assert_eq!(bounded(&[0x5e, 0]), [0x5e, 0]);
    }
}
