//! Qids: the numbers by which a client tells files apart.

use device::p9::{Qid, qid_type};
use passthrough::Attributes;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use values::Multidevs;

/// A device of the host: major and minor.
type Device = (u32, u32);

/// Set in every number that is not a file's own inode number.
const REMAPPED: u64 = 1 << 63;
/// A remapped number is a prefix of 15 bits and so many lower bits of an inode number.
const INO_BITS: u32 = 48;
/// The prefix of numbers that stand for one file each. Those below, from 1 on, stand for a device and the upper bits of its
/// inode numbers, which many file systems leave alone and others fill in a few ways.
const EXACT: u64 = 0x7fff;
/// Files that get a number each, when there are no prefixes left. A client that asks for more is told ENFILE.
const EXACT_MAX: usize = 65_536;

/// Makes the qids of an export.
#[derive(Debug)]
pub(super) struct Qids {
    /// The device of the directory itself.
    home: Device,
    multidevs: Multidevs,
    given: Mutex<Given>,
    warned: AtomicBool,
}

/// Numbers that were given out. They stay for as long as the export: a client may keep a qid for ever.
#[derive(Debug, Default)]
struct Given {
    /// By device and the upper bits of inode numbers.
    prefixes: HashMap<(Device, u64), u64>,
    exact: HashMap<(Device, u64), u64>,
}

impl Given {
    fn number(&mut self, device: Device, ino: u64) -> Result<u64, Errno> {
        let upper = (device, ino >> INO_BITS);
        let next = self.prefixes.len() as u64 + 1;
        let prefix = match self.prefixes.get(&upper) {
            Some(&prefix) => Some(prefix),
            None if next < EXACT => Some(*self.prefixes.entry(upper).or_insert(next)),
            None => None,
        };
        if let Some(prefix) = prefix {
            return Ok(REMAPPED | prefix << INO_BITS | ino & ((1 << INO_BITS) - 1));
        }
        let next = self.exact.len() as u64;
        match self.exact.get(&(device, ino)) {
            Some(&number) => Ok(number),
            None if self.exact.len() < EXACT_MAX => {
                let number = REMAPPED | EXACT << INO_BITS | next;
                self.exact.insert((device, ino), number);
                Ok(number)
            }
            None => Err(Errno::NFILE),
        }
    }
}

impl Qids {
    /// For an export whose directory is on the device `home`.
    pub(super) fn new(home: Device, multidevs: Multidevs) -> Qids {
        Qids { home, multidevs, given: Mutex::default(), warned: AtomicBool::new(false) }
    }

    /// The qid of a file with these attributes.
    ///
    /// # Errors
    /// As [`Qids::path`].
    pub(super) fn of(&self, attributes: &Attributes) -> Result<Qid, Errno> {
        let path = self.path(attributes.device, attributes.ino)?;
        Ok(Qid { kind: kind(attributes.mode), version: version(attributes), path })
    }

    /// The number of an inode on a device.
    ///
    /// # Errors
    /// `ENODEV` for another device than the directory's where those are forbidden, `ENFILE` when there are no numbers left.
    #[inline]
    pub(super) fn path(&self, device: Device, ino: u64) -> Result<u64, Errno> {
        if device == self.home && (ino & REMAPPED == 0 || self.multidevs != Multidevs::Remap) {
            return Ok(ino);
        }
        self.path_elsewhere(device, ino)
    }

    #[cold]
    fn path_elsewhere(&self, device: Device, ino: u64) -> Result<u64, Errno> {
        match self.multidevs {
            Multidevs::Remap => self.given.lock().unwrap_or_else(PoisonError::into_inner).number(device, ino),
            Multidevs::Forbid => Err(Errno::NODEV),
            Multidevs::Warn => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        major = device.0,
                        minor = device.1,
                        "files of several devices are served by their inode numbers alone, of which two may be the same; set \
                         multidevs to remap"
                    );
                }
                Ok(ino)
            }
        }
    }
}

/// The type of a qid: from the type in `mode` (`S_IFMT`).
pub(super) fn kind(mode: u32) -> u8 {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => qid_type::DIR,
        libc::S_IFLNK => qid_type::SYMLINK,
        _ => qid_type::FILE,
    }
}

/// Changes when the file does: its time and size. 0, always, for directories, of which a client must not think that another
/// directory took its place whenever a name comes or goes. Never 0 for others: Linux takes that for a file not to be cached.
fn version(attributes: &Attributes) -> u32 {
    if attributes.mode & libc::S_IFMT == libc::S_IFDIR {
        return 0;
    }
    let time = attributes.mtime;
    let version = time.seconds as u32 ^ time.nanoseconds ^ (attributes.size << 8) as u32;
    version.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Device = (8, 1);
    const AWAY: Device = (8, 2);

    #[test]
    fn numbers_of_all_devices_differ() {
        let qids = Qids::new(HOME, Multidevs::Remap);
        assert_eq!(qids.path(HOME, 7), Ok(7));
        let asked = [
            (HOME, 7),
            (HOME, 8),
            (HOME, REMAPPED | 7),
            (HOME, u64::MAX),
            (AWAY, 7),
            (AWAY, 8),
            (AWAY, 1 << INO_BITS | 7),
            ((9, 9), 7),
            ((9, 9), u64::MAX),
        ];
        let numbers: std::collections::HashSet<_> =
            asked.iter().map(|&(device, ino)| qids.path(device, ino).unwrap()).collect();
        assert_eq!(numbers.len(), asked.len());
        for (device, ino) in asked {
            assert!(numbers.contains(&qids.path(device, ino).unwrap()), "{device:?} {ino} has another number now");
        }
    }

    #[test]
    fn files_with_upper_bits_take_a_prefix_together() {
        let mut given = Given::default();
        for ino in 0..200_000 {
            given.number(HOME, REMAPPED | 5 << INO_BITS | ino).unwrap();
            given.number(AWAY, 7 << INO_BITS | ino).unwrap();
        }
        assert_eq!((given.prefixes.len(), given.exact.len()), (2, 0));
    }

    #[test]
    fn devices_beyond_the_prefixes_get_numbers_too_until_there_are_none() {
        let mut given = Given::default();
        for minor in 1..EXACT as u32 {
            given.number((1, minor), 5).unwrap();
        }
        assert_eq!(given.prefixes.len() as u64, EXACT - 1);
        let first = given.number((2, 0), 5).unwrap();
        assert_eq!(first >> INO_BITS, REMAPPED >> INO_BITS | EXACT);
        for ino in 0..EXACT_MAX as u64 - 1 {
            given.number((3, 0), ino).unwrap();
        }
        assert_eq!(given.number((4, 0), 5), Err(Errno::NFILE));
        assert_eq!(given.number((2, 0), 5), Ok(first), "what was given is still known");
    }

    #[test]
    fn other_devices_may_be_forbidden_or_stay_as_they_are() {
        let forbid = Qids::new(HOME, Multidevs::Forbid);
        assert_eq!(forbid.path(AWAY, 7), Err(Errno::NODEV));
        assert_eq!(forbid.path(HOME, u64::MAX), Ok(u64::MAX));
        let warn = Qids::new(HOME, Multidevs::Warn);
        assert_eq!(warn.path(AWAY, 7), Ok(7));
    }
}
