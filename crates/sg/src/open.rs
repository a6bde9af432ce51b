//! From a path to a device that answers, and that nobody else on this host drives.

use crate::error::SgError;
use crate::ffi::{self, Ended};
use crate::helper::Helper;
use crate::opcode;
use crate::options::SgOptions;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::read_to_string;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use storage::OpenError;

/// The driver's device nodes: SCSI_GENERIC_MAJOR of Linux' `include/uapi/linux/major.h`.
const MAJOR: u32 = 21;
/// How long commands of ours may take.
const TIMEOUT_MS: u32 = 20_000;
/// How long those of others are waited for: as long as the host gives a disk's, and some more.
const PATIENCE: Duration = Duration::from_secs(45);
const PAUSE: Duration = Duration::from_millis(5);
/// How often nothing is seen under way before that is believed: a command that waits for its turn is not counted.
const QUIET_LOOKS: u32 = 20;
/// Most bytes of one command where the driver does not say.
const TRANSFER_BYTES: u32 = 64 << 10;
/// Commands that find something to be told first are sent again, a few times.
const TRIES: u32 = 4;

/// Peripheral device types (SPC-5, "Standard INQUIRY data").
pub(crate) mod kind {
    pub(crate) const DISK: u8 = 0x00;
    pub(crate) const CD: u8 = 0x05;
    pub(crate) const OPTICAL: u8 = 0x07;
    pub(crate) const ZONED: u8 = 0x14;
    pub(crate) const UNKNOWN: u8 = 0x1f;
}

/// A device that is open.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) fd: Arc<OwnedFd>,
    /// What keeps the host from using its block device.
    pub(crate) block: Option<Arc<OwnedFd>>,
    pub(crate) about: About,
    /// There is a helper for reservations.
    pub(crate) helper: Option<Helper>,
}

/// What it says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About {
    /// Its type.
    pub(crate) kind: u8,
    /// Blocks, and bytes of each, where it has any.
    pub(crate) blocks: Option<(u64, u32)>,
    /// Most bytes of one command.
    pub(crate) transfer_bytes_max: u32,
}

impl About {
    /// That of a device which an earlier program has asked; what it has left is its capacity and the length of its blocks.
    pub(crate) fn known(fd: impl AsFd, capacity_bytes: u64, block_bytes: u32) -> About {
        let fd = fd.as_fd();
        let number = rustix::fs::fstat(fd).map(|about| about.st_rdev);
        let kind = number.ok().and_then(|number| {
            let home = home_of(rustix::fs::major(number), rustix::fs::minor(number));
            read_to_string(home.join("type")).ok()?.trim().parse().ok()
        });
        About {
            // What is not known is nothing that is repeated.
            kind: kind.unwrap_or(kind::UNKNOWN),
            blocks: (capacity_bytes > 0).then(|| (capacity_bytes / u64::from(block_bytes.max(1)), block_bytes)),
            transfer_bytes_max: transfer_bytes_max(fd),
        }
    }

    /// Its capacity in whole sectors; 0 for what has no blocks.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.blocks.map_or(0, |(blocks, bytes)| blocks.saturating_mul(bytes.into()) / 512 * 512)
    }
}

/// What the kernel says of the device of a node.
fn home_of(major: u32, minor: u32) -> PathBuf {
    PathBuf::from(format!("/sys/dev/char/{major}:{minor}/device"))
}

fn failed(options: &SgOptions) -> impl Fn(Errno) -> SgError {
    |source| SgError::Open { path: options.path.clone(), source: source.into(), hint: hint(source, options) }
}

/// Looks at the node of a device, which is not opened: what the kernel says of it is where this leads.
pub(crate) fn node(options: &SgOptions) -> Result<PathBuf, SgError> {
    let node = rustix::fs::stat(&options.path).map_err(failed(options))?;
    let (major, minor) = (rustix::fs::major(node.st_rdev), rustix::fs::minor(node.st_rdev));
    if FileType::from_raw_mode(node.st_mode) != FileType::CharacterDevice || major != MAJOR {
        return Err(SgError::NotGeneric { path: options.path.clone() });
    }
    Ok(home_of(major, minor))
}

/// Opens a device, and looks at it.
pub(crate) fn open(options: &SgOptions) -> Result<Device, OpenError> {
    let path = || options.path.clone();
    // Before it is opened: a tape is wound by opening some nodes of it.
    let home = node(options)?;
    let alone = if options.lock { OFlags::EXCL } else { OFlags::empty() };
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(&options.path, OFlags::RDWR | alone | flags, Mode::empty()) {
        // Only who may write has the device for itself, and may send all commands that read. What else there is has to do.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) if options.read_only => {
            tracing::warn!(path = %options.path.display(), "may not be opened for writing: others can have the device, too, and the kernel sends few commands");
            rustix::fs::open(&options.path, OFlags::RDONLY | flags, Mode::empty())
        }
        opened => opened,
    };
    let fd = fd.map_err(|errno| match errno {
        Errno::BUSY if options.lock => SgError::InUse { path: path() },
        errno => failed(options)(errno),
    })?;
    if !ffi::is_generic(&fd) {
        return Err(SgError::NotGeneric { path: path() }.into());
    }
    if options.lock && !home.exists() {
        tracing::warn!(path = %options.path.display(), "cannot see in /sys whether the host uses the device, and whether commands are under way on it");
    }
    let block = if options.lock { claim(&options.path, &home)? } else { None };
    if options.lock {
        settled(&options.path, &home)?;
    }
    let about = look(&options.path, &fd)?;
    let helper = options
        .pr_helper
        .as_ref()
        .map(|socket| Helper::connect(socket).map_err(|source| SgError::Helper { path: socket.clone(), source }));
    Ok(Device { fd: Arc::new(fd), block, about, helper: helper.transpose()? })
}

fn hint(errno: Errno, options: &SgOptions) -> &'static str {
    match errno {
        Errno::NOENT => "; `lsscsi -g` lists the devices, and `modprobe sg` makes their nodes",
        Errno::ACCESS | Errno::PERM if !options.read_only => "; `read_only` needs less permission",
        _ => "",
    }
}

/// Keeps the host from using the block device of the same unit, where there is one that we may open.
fn claim(path: &Path, home: &Path) -> Result<Option<Arc<OwnedFd>>, SgError> {
    let Ok(mut names) = home.join("block").read_dir() else { return Ok(None) };
    let Some(Ok(name)) = names.next() else { return Ok(None) };
    let block = name.file_name().to_string_lossy().into_owned();
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(Path::new("/dev").join(&block), flags, Mode::empty()) {
        Ok(fd) => Ok(Some(Arc::new(fd))),
        Err(Errno::BUSY) => Err(SgError::HostUses { path: path.to_owned(), block }),
        Err(error) => {
            tracing::warn!(path = %path.display(), block, %error, "the host is not kept from using the device's block device");
            Ok(None)
        }
    }
}

/// Waits until no command is under way: one of a server that was killed goes on, and would come behind what is written later.
fn settled(path: &Path, home: &Path) -> Result<(), SgError> {
    let start = Instant::now();
    let is_busy = || {
        let busy = read_to_string(home.join("device_busy")).ok();
        busy.and_then(|commands| commands.trim().parse::<u64>().ok()).is_some_and(|commands| commands > 0)
    };
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        quiet = if is_busy() { 0 } else { quiet + 1 };
        if start.elapsed() >= PATIENCE {
            return Err(SgError::Late { path: path.to_owned(), seconds: PATIENCE.as_secs() });
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Asks a device what it is.
pub(crate) fn look(path: &Path, fd: impl AsFd) -> Result<About, SgError> {
    let fd = fd.as_fd();
    let silent = |why: String| SgError::Silent { path: path.to_owned(), why };
    let mut inquiry = [0; 36];
    let cdb = [opcode::INQUIRY, 0, 0, 0, inquiry.len() as u8, 0];
    let ended = ffi::read(fd, &cdb, &mut inquiry, TIMEOUT_MS).map_err(|error| silent(error.to_string()))?;
    if !is_good(&ended) || ended.moved_bytes == 0 {
        return Err(silent(format!("status {:#04x}, host status {:#04x}", ended.status, ended.host_status)));
    }
    let kind = inquiry[0] & 0x1f;
    let has_blocks = matches!(kind, kind::DISK | kind::CD | kind::OPTICAL | kind::ZONED);
    let blocks = if has_blocks { capacity(fd) } else { None };
    Ok(About { kind, blocks, transfer_bytes_max: transfer_bytes_max(fd) })
}

fn transfer_bytes_max(fd: impl AsFd) -> u32 {
    ffi::transfer_bytes_max(fd).ok().filter(|bytes| *bytes > 0).unwrap_or(TRANSFER_BYTES)
}

fn is_good(ended: &Ended) -> bool {
    (ended.status, ended.host_status) == (0, 0)
}

/// Blocks, and bytes of each; `None` where there is no medium, and where it does not say.
fn capacity(fd: impl AsFd) -> Option<(u64, u32)> {
    let fd = fd.as_fd();
    let ask = |cdb: &[u8], answer: &mut [u8]| {
        let mut tries = 0..TRIES;
        tries.any(|_| {
            let ended = ffi::read(fd, cdb, answer, TIMEOUT_MS);
            ended.is_ok_and(|ended| is_good(&ended) && ended.moved_bytes == answer.len() as u64)
        })
    };
    let mut short = [0; 8];
    if !ask(&[opcode::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], &mut short) {
        return None;
    }
    let [last, bytes] = [0, 4].map(|at| u32::from_be_bytes([short[at], short[at + 1], short[at + 2], short[at + 3]]));
    if last < u32::MAX {
        return Some((u64::from(last) + 1, bytes)).filter(|(_, bytes)| *bytes > 0);
    }
    let mut long = [0; 32];
    let mut cdb = [0; 16];
    // READ CAPACITY (16).
    (cdb[0], cdb[1], cdb[13]) = (opcode::SERVICE_ACTION_IN_16, 0x10, long.len() as u8);
    if !ask(&cdb, &mut long) {
        return None;
    }
    let (last, rest) = long.split_first_chunk::<8>()?;
    let (bytes, _) = rest.split_first_chunk::<4>()?;
    let blocks = u64::from_be_bytes(*last).checked_add(1)?;
    Some((blocks, u32::from_be_bytes(*bytes))).filter(|(_, bytes)| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        open(&SgOptions::new(path)).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_device_of_the_driver_is_not_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(
                refused(path).contains("is no device of the generic SCSI driver: name one of /dev/sg*"),
                "{path:?}"
            );
        }
        assert!(refused(Path::new("/nonexistent/sg0")).contains("`lsscsi -g` lists the devices"));
    }

    #[test]
    fn capacities_are_of_whole_sectors() {
        let of = |blocks| About { kind: kind::DISK, blocks, transfer_bytes_max: 4096 }.capacity_bytes();
        assert_eq!([of(None), of(Some((8, 4096))), of(Some((3, 520)))], [0, 32768, 1536]);
        assert_eq!(of(Some((u64::MAX, u32::MAX))), u64::MAX / 512 * 512);
    }
}
