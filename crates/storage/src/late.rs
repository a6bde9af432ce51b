//! I/O that a killed process has left behind.
//!
//! What io_uring has given to a device goes on when its process dies, until the device answers: nothing waits for it. A server
//! that starts meanwhile and does the dead one's requests once more must not get ahead of it. A write that arrives late would
//! undo what the guest has written since, and a read would land in memory that the guest has put to another use.
//!
//! The kernel keeps an open file description until the last I/O on it has ended, and with it the description's locks. So whoever
//! opens an image has a number, at random, and two marks (shared locks of one byte) with it: *under way* on the description that does
//! the I/O, and *alive* on another one that does none, which is gone as soon as its process is. An image with the first mark of a number
//! and not the second is one of the dead's, and is waited for. So the dead are told from the living, of which there may be
//! many: readers, and those who go without locks.
//!
//! A storage takes its mark away when it is dropped: its I/O has ended then, and workers may keep the description registered for a
//! while. So nothing need be remembered of what this process has served; others may have served the image since.
//!
//! Before there were numbers, writers that excluded others marked one byte that is the same for all. They still do: a program of
//! that time may come next. Nobody but the dead can be in the way there, once the image's locks are held.

use crate::OpenError;
use crate::file::open_to_look;
use crate::lock::{held, lock, unlock};
use rustix::fs::OFlags;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The mark of all writers that exclude others. Far from the bytes that QEMU's programs lock (100 and 200 and some more). It need
/// not be inside the file.
const WRITER: i64 = 300;
/// The first of the marks of I/O under way, one for each number.
const UNDER_WAY: i64 = 1 << 61;
/// And of those that say alive.
const ALIVE: i64 = 1 << 62;
/// Numbers are below it.
const NUMBERS: i64 = 1 << 60;
/// Most marks of others that are looked at. Who makes more of them keeps others away, as by the image's locks.
const MARKS_MAX: usize = 4096;
/// How long a device may take to answer before it is a person's turn. Linux gives a disk's command 30 seconds, and `vringd ctl` gives
/// up after 60.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);
/// What the kernel's cleaning up takes at most: so long anybody may wait.
const BRIEF: Duration = Duration::from_secs(1);
/// How many may wait longer at once: the threads by which images are added serve all other calls into the daemon as well.
const WAITS_MAX: usize = 2;
/// Between two looks. The kernel takes some tens of milliseconds to clean up after a process that used io_uring, even if it
/// had nothing under way (9 to 44 on Linux 6.18), and no time after others.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until no process that is gone has I/O under way on the image that is open as `data`, for as long as a device may take. `alone`: the
/// caller holds the image's locks as a writer.
///
/// # Errors
/// That took too long, others wait already, or the file system has no locks.
pub fn settled(path: &Path, data: impl AsFd, alone: bool) -> Result<(), OpenError> {
    wait(path, data, alone, PATIENCE)
}

/// Waits until no process that is gone has I/O under way on the image that is open as `data`. `alone`: the caller holds the image's
/// locks as a writer.
///
/// # Errors
/// That took longer than `patience`, others wait already, or the file system has no locks.
pub(crate) fn wait(path: &Path, data: impl AsFd, alone: bool, patience: Duration) -> Result<(), OpenError> {
    let failed = |source| OpenError::Lock { path: path.to_owned(), source };
    let begin = Instant::now();
    let mut turn = None;
    let in_the_way = || Ok(alone && held(&data, WRITER..WRITER + 1)?.is_some() || has_dead(&data)?);
    while in_the_way().map_err(failed)? {
        let waited = begin.elapsed();
        if waited >= patience {
            return Err(OpenError::Late { path: path.to_owned(), seconds: patience.as_secs() });
        }
        if waited >= BRIEF && turn.is_none() {
            turn = Some(Turn::take().ok_or_else(|| OpenError::LateToo { path: path.to_owned(), others: WAITS_MAX })?);
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Whether a process that is gone has I/O under way on the file at `path`, for whoever waits in his own way. Where that cannot be told it is
/// for whoever opens the file to say so.
pub fn has_left_io(path: &Path) -> bool {
    open_to_look(path, OFlags::RDONLY).is_ok_and(|file| has_dead(&file).unwrap_or(false))
}

static WAITS: AtomicUsize = AtomicUsize::new(0);

/// One of those who wait, until it is dropped.
struct Turn;

impl Turn {
    fn take() -> Option<Turn> {
        let room = |waits| (waits < WAITS_MAX).then_some(waits + 1);
        WAITS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok().map(|_| Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WAITS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether anybody's I/O is under way who is not alive any more.
fn has_dead(data: impl AsFd) -> io::Result<bool> {
    let mut ranges: Vec<Range<i64>> = std::iter::once(UNDER_WAY..UNDER_WAY + NUMBERS).collect();
    let mut looks = 0;
    while let Some(range) = ranges.pop() {
        let Some(found) = held(&data, range.clone())? else { continue };
        // One is not told that both marks went between the two looks: it looks again.
        let number = found.start - UNDER_WAY;
        looks += 1;
        if looks > MARKS_MAX || held(&data, ALIVE + number..ALIVE + number + 1)?.is_none() {
            return Ok(true);
        }
        // Any lock of the range is told, not the first.
        ranges.extend([range.start..found.start, found.end..range.end].into_iter().filter(|rest| !rest.is_empty()));
    }
    Ok(false)
}

/// Marks I/O as under way on `data`, for as long as `alive` is open: a description of its own, without I/O. Marks of an earlier program
/// of this process are replaced.
///
/// # Errors
/// The file system has no locks.
pub(crate) fn mark(data: impl AsFd, alive: impl AsFd, alone: bool) -> io::Result<()> {
    let number = (Uuid::new_v4().as_u128() % NUMBERS as u128) as i64;
    let one = |first: i64| first + number..first + number + 1;
    unmark(&data)?;
    unlock(&alive, ALIVE..ALIVE + NUMBERS)?;
    // In this order: the living are at no moment taken for the dead.
    lock(&alive, one(ALIVE))?;
    lock(&data, one(UNDER_WAY))?;
    if alone { lock(&data, WRITER..WRITER + 1) } else { Ok(()) }
}

/// All I/O on `data` has ended.
pub(crate) fn unmark(data: impl AsFd) -> io::Result<()> {
    let all: [Range<i64>; 2] = [UNDER_WAY..UNDER_WAY + NUMBERS, WRITER..WRITER + 1];
    all.into_iter().try_for_each(|range| unlock(&data, range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileOptions, FileStorage, Storage};
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use tempfile::NamedTempFile;

    /// Whether it is read-only, and locked.
    const KINDS: [(bool, bool); 4] = [(false, true), (false, false), (true, true), (true, false)];

    fn image() -> NamedTempFile {
        let image = NamedTempFile::new().unwrap();
        image.as_file().set_len(4096).unwrap();
        image
    }

    fn options(image: &NamedTempFile, (read_only, lock): (bool, bool)) -> FileOptions {
        FileOptions { read_only, lock, ..FileOptions::new(image.path()) }
    }

    fn attempt(image: &NamedTempFile, kind: (bool, bool)) -> Result<FileStorage, OpenError> {
        FileStorage::open_within(&options(image, kind), Duration::ZERO)
    }

    fn open(image: &NamedTempFile) -> OwnedFd {
        File::options().read(true).write(true).open(image.path()).unwrap().into()
    }

    /// What is left of a server of this kind that was killed with I/O under way: the description that the I/O holds.
    fn killed(image: &NamedTempFile, kind: (bool, bool)) -> OwnedFd {
        let (data, alive) = (open(image), open(image));
        mark(&data, alive, kind == (false, true)).unwrap();
        data
    }

    #[test]
    fn everybody_waits_for_the_dead() {
        for dead in KINDS {
            for kind in KINDS {
                let image = image();
                // That this process has served it before says nothing of what others have done since.
                drop(attempt(&image, kind).unwrap());
                let under_way = killed(&image, dead);
                let error = attempt(&image, kind).err().unwrap();
                assert!(matches!(error, OpenError::Late { .. }), "{kind:?} behind {dead:?}: {error}");
                assert!(error.to_string().contains(image.path().to_str().unwrap()), "{error}");
                std::thread::scope(|scope| {
                    let waiting = scope.spawn(|| FileStorage::open_without_threads(&options(&image, kind)));
                    drop(under_way);
                    waiting.join().unwrap().unwrap();
                });
            }
        }
    }

    #[test]
    fn who_waits_in_his_own_way_is_told_of_the_dead() {
        let image = image();
        let has = || has_left_io(image.path());
        let living = attempt(&image, (false, true)).unwrap();
        assert!(!has());
        drop(living);
        let under_way = killed(&image, (false, true));
        assert!(has());
        drop(under_way);
        assert!(!has() && !has_left_io(Path::new("/nonexistent")));
    }

    #[test]
    fn who_comes_when_others_wait_is_told_so() {
        let image = image();
        let dead = killed(&image, (false, true));
        let waiting: Vec<Turn> = std::iter::from_fn(Turn::take).collect();
        assert_eq!(waiting.len(), WAITS_MAX);
        let error = FileStorage::open_within(&options(&image, (false, true)), PATIENCE).err().unwrap();
        assert!(matches!(error, OpenError::LateToo { .. }), "{error}");
        assert!(error.to_string().contains(image.path().to_str().unwrap()), "{error}");
        drop((waiting, dead));
        assert_eq!(WAITS.load(Ordering::Relaxed), 0);
        attempt(&image, (false, true)).unwrap();
    }

    #[test]
    fn writers_of_the_time_before_numbers_are_waited_for() {
        let image = image();
        let dead = open(&image);
        lock(&dead, WRITER..WRITER + 1).unwrap();
        assert!(matches!(attempt(&image, (false, true)), Err(OpenError::Late { .. })));
        // And will wait for us.
        drop(dead);
        let _ours = attempt(&image, (false, true)).unwrap();
        assert!(held(open(&image), WRITER..WRITER + 1).unwrap().is_some());
    }

    #[test]
    fn nobody_waits_for_the_living() {
        let image = image();
        let readers: Vec<_> = (0..20).map(|_| attempt(&image, (true, true)).unwrap()).collect();
        let others: Vec<_> = (0..20).map(|n| attempt(&image, (n % 2 == 0, false)).unwrap()).collect();
        let dead = killed(&image, (true, true));
        for kind in [(true, true), (true, false), (false, false)] {
            assert!(matches!(attempt(&image, kind), Err(OpenError::Late { .. })), "among the living");
        }
        drop((dead, readers));
        attempt(&image, (false, false)).unwrap();
        drop(others);
        attempt(&image, (false, true)).unwrap();
    }

    #[test]
    fn a_storage_that_is_gone_is_in_nobodys_way_although_a_worker_holds_its_description() {
        for kind in KINDS {
            let image = image();
            let served = attempt(&image, kind).unwrap();
            let registered = served.hand_over().unwrap().data.unwrap();
            drop(served);
            attempt(&image, kind).unwrap();
            drop(registered);
        }
    }

    #[test]
    fn marks_go_along_with_an_upgrade() {
        for kind in KINDS {
            let image = image();
            let first = attempt(&image, kind).unwrap();
            let handed = first.hand_over().unwrap();
            drop(first);
            let second = FileStorage::adopt(&options(&image, kind), handed).unwrap();
            let other = open(&image);
            assert!(held(&other, UNDER_WAY..UNDER_WAY + NUMBERS).unwrap().is_some(), "{kind:?}");
            assert!(!has_dead(&other).unwrap(), "{kind:?}");
            drop(second);
            attempt(&image, kind).unwrap();
        }
    }

    #[test]
    fn more_marks_than_anybody_needs_are_not_looked_through() {
        let image = image();
        let (data, alive) = (open(&image), open(&image));
        lock(&alive, ALIVE..ALIVE + NUMBERS).unwrap();
        for number in 0..=MARKS_MAX as i64 {
            let at = UNDER_WAY + 3 * number;
            lock(&data, at..at + 1).unwrap();
        }
        assert!(has_dead(open(&image)).unwrap());
        unlock(&data, UNDER_WAY..UNDER_WAY + 3).unwrap();
        assert!(!has_dead(open(&image)).unwrap());
        // One long lock is one mark.
        lock(&data, UNDER_WAY..UNDER_WAY + NUMBERS).unwrap();
        assert!(!has_dead(open(&image)).unwrap());
    }
}
