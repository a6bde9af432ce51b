use super::*;
use proptest::prelude::*;

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.reservations");
    (directory, path)
}

#[test]
fn a_record_is_there_when_the_file_is_opened_again() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    assert_eq!(file.record(), b"");
    for record in [&b"one"[..], b"", &[7; RECORD_BYTES_MAX], b"two"] {
        file.store(record).unwrap();
        assert_eq!(file.record(), record);
    }
    assert_eq!(file.store(&[0; RECORD_BYTES_MAX + 1]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    let line = RecordFile::open(&path).unwrap_err().to_string();
    assert!(line.contains("is in use: another disk or another daemon keeps its reservations there"), "{line}");
    // Another program has it without letting go of it.
    let (fd, handed) = file.hand_over().unwrap();
    drop(file);
    assert!(matches!(RecordFile::open(&path), Err(RecordError::InUse { .. })));
    let adopted = RecordFile::adopt(&path, fd, handed);
    assert!(!adopted.is_uncertain());
    assert_eq!(adopted.record(), b"two");
    adopted.store(b"three").unwrap();
    drop(adopted);
    assert_eq!(RecordFile::open(&path).unwrap().record(), b"three");
}

#[test]
fn what_somebody_does_to_the_file_is_put_right() {
    let (_directory, path) = place();
    for damage in [&b""[..], b"garbage", &[9; 2 * SLOT_BYTES], &[0; SLOT_BYTES]] {
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        std::fs::write(&path, damage).unwrap();
        let (fd, handed) = file.hand_over().unwrap();
        drop(file);
        let adopted = RecordFile::adopt(&path, fd, handed);
        assert_eq!((adopted.record().as_slice(), adopted.is_uncertain()), (&b"kept"[..], false));
        drop(adopted);
        assert_eq!(RecordFile::open(&path).unwrap().record(), b"kept");
        let file = RecordFile::open(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SLOT_BYTES as u64).unwrap();
        file.store(b"more").unwrap();
        drop(file);
        assert_eq!(RecordFile::open(&path).unwrap().record(), b"more");
    }
}

#[test]
fn what_cannot_be_stored_does_not_come_true_later() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    file.store(b"before").unwrap();
    let (fd, handed) = file.hand_over().unwrap();
    let read_only = RecordFile::adopt(&path, File::open(&path).unwrap().into(), handed.clone());
    assert!(read_only.store(b"refused").is_err());
    assert_eq!((read_only.record().as_slice(), read_only.is_uncertain()), (&b"before"[..], true));
    // It had come to the file all the same.
    let refused = Written { number: handed.number + 1, record: b"refused".to_vec() };
    file.file.put(&refused).unwrap();
    let mut state = file.lock();
    (state.next, state.is_uncertain) = (handed.number + 3, true);
    drop(state);
    file.store(b"before").unwrap();
    drop((file, fd));
    assert_eq!(RecordFile::open(&path).unwrap().record(), b"before");
}

#[test]
fn nothing_is_kept_in_a_file_that_was_removed() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    file.store(b"kept").unwrap();
    std::fs::remove_file(&path).unwrap();
    let refused = file.store(b"lost").unwrap_err().to_string();
    assert!(refused.contains("the file was removed"), "{refused}");
    assert_eq!(file.record(), b"kept");
}

#[test]
fn what_stands_behind_a_record_is_cut_off() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    file.store(b"kept").unwrap();
    drop(file);
    let mut longer = std::fs::read(&path).unwrap();
    longer.extend([7; 1000]);
    std::fs::write(&path, longer).unwrap();
    let file = RecordFile::open(&path).unwrap();
    assert_eq!(file.record(), b"kept");
    file.store(b"more").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES);
}

#[test]
fn what_others_have_written_meanwhile_comes_back_by_no_number() {
    let (directory, path) = place();
    let other = directory.path().join("other");
    let foreign = RecordFile::open(&other).unwrap();
    (0..9).for_each(|_| foreign.store(b"another").unwrap());
    let file = RecordFile::open(&path).unwrap();
    file.store(b"kept").unwrap();
    let (fd, handed) = file.hand_over().unwrap();
    std::fs::write(&path, std::fs::read(&other).unwrap()).unwrap();
    drop(file);
    drop(RecordFile::adopt(&path, fd, handed));
    let mut there = std::fs::read(&path).unwrap();
    assert_eq!(Written::latest(&there).unwrap().record, b"kept");
    there[..SLOT_BYTES].fill(0);
    assert_eq!(Written::latest(&there).unwrap().record, b"kept");
}

#[test]
fn one_record_is_stored_at_a_time_and_none_while_it_changes_hands() {
    let (_directory, path) = place();
    let file = Arc::new(RecordFile::open(&path).unwrap());
    let storing = file.clone().storing().unwrap();
    assert!(file.is_storing() && file.clone().storing().is_err());
    assert_eq!(file.store(b"other").unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(file.hand_over().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    storing.store(b"one").unwrap();
    assert_eq!((file.record().as_slice(), file.is_storing()), (&b"one"[..], false));
    file.hand_over().unwrap();
}

#[test]
fn a_file_that_was_there_keeps_its_owner() {
    let (_directory, path) = place();
    std::fs::write(&path, b"").unwrap();
    let before = std::fs::metadata(&path).unwrap().uid();
    RecordFile::open(&path).unwrap().give_to(before + 1, before + 1).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), before);
}

#[test]
fn what_is_no_such_file_is_left_alone() {
    let (directory, path) = place();
    for bytes in [&b"text"[..], &[7; 2 * SLOT_BYTES]] {
        std::fs::write(&path, bytes).unwrap();
        let line = RecordFile::open(&path).unwrap_err().to_string();
        let words = format!("{} has {} bytes and no record in them", path.display(), bytes.len());
        assert!(line.starts_with(&words), "{line}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    let nowhere = directory.path().join("none/d");
    let line = RecordFile::open(&nowhere).unwrap_err().to_string();
    assert!(line.starts_with(&format!("cannot make {}: No such file", nowhere.display())), "{line}");
    for path in [directory.path(), Path::new("/dev/zero")] {
        assert!(matches!(RecordFile::open(path), Err(RecordError::NoFile { .. })));
    }
    let link = directory.path().join("link");
    for target in [&nowhere, &path] {
        std::os::unix::fs::symlink(target, &link).unwrap();
        assert!(matches!(RecordFile::open(&link), Err(RecordError::NoFile { .. })));
        std::fs::remove_file(&link).unwrap();
    }
    // One that says it is empty and is not.
    let name = std::fs::read("/proc/self/comm").unwrap();
    assert!(matches!(RecordFile::open(Path::new("/proc/self/comm")), Err(RecordError::Foreign { .. })));
    assert_eq!(std::fs::read("/proc/self/comm").unwrap(), name);
    std::fs::write(&path, [0; 2 * SLOT_BYTES]).unwrap();
    drop(RecordFile::open(&path).unwrap());
    std::fs::write(&path, b"").unwrap();
    let file = RecordFile::open(&path).unwrap();
    file.store(b"kept").unwrap();
    drop(file);
    // What was cut while it was made is made again; a number that nothing comes behind is none.
    for len in [512, SLOT_BYTES, SLOT_BYTES + 100] {
        let place = directory.path().join("half");
        std::fs::write(&place, &blank()[..len]).unwrap();
        assert_eq!(RecordFile::open(&place).unwrap().record(), b"");
        std::fs::write(&place, Written { number: u64::MAX, record: vec![1] }.to_bytes().repeat(2)).unwrap();
        assert!(matches!(RecordFile::open(&place), Err(RecordError::Damaged { .. })));
    }
    let mut damaged = std::fs::read(&path).unwrap();
    damaged.iter_mut().step_by(512).skip(1).for_each(|byte| *byte ^= 1);
    std::fs::write(&path, damaged).unwrap();
    let line = RecordFile::open(&path).unwrap_err().to_string();
    assert!(line.contains("is damaged: both of its slots are"), "{line}");
}

/// Writes down what is done to a file, until its process is killed.
#[derive(Debug, Default)]
struct Log {
    steps: Mutex<Vec<&'static str>>,
    /// Steps that the process lives for; `None`: for all.
    lives_for: Option<usize>,
}

impl RecordWitness for Log {
    fn sees(&self, step: RecordStep<'_>) -> io::Result<bool> {
        let mut steps = self.steps.lock().unwrap();
        if self.lives_for.is_some_and(|lives_for| steps.len() >= lives_for) {
            return Ok(false);
        }
        steps.push(match step {
            RecordStep::Make => "make",
            RecordStep::Remove => "remove",
            RecordStep::Write { offset: 0, .. } => "write first",
            RecordStep::Write { .. } => "write second",
            RecordStep::SetLen(_) => "set length",
            RecordStep::Sync => "sync",
            RecordStep::SyncName => "sync name",
        });
        Ok(true)
    }
}

/// What is done to the file behind this path when it is opened by a process that lives for so many steps.
fn opening(path: &Path, lives_for: Option<usize>) -> Vec<&'static str> {
    let log = Arc::new(Log { lives_for, ..Log::default() });
    drop(RecordFile::open_seen(path, log.clone()).unwrap());
    std::mem::take(&mut *log.steps.lock().unwrap())
}

#[test]
fn a_name_that_a_killed_process_has_not_synced_is_synced_by_the_next_one() {
    let (_directory, path) = place();
    assert_eq!(opening(&path, Some(3)), ["make", "write first", "sync"]);
    assert_eq!(opening(&path, None), ["write first", "sync", "sync name", "write second", "sync"]);
    assert!(!opening(&path, None).contains(&"sync name"), "whoever wrote the other slot had it synced");
}

/// The pages of what could not be synced are as those of what was, and another sync says nothing of them.
#[test]
fn what_a_killed_process_could_not_sync_is_written_again_before_it_counts() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    for (record, its, other) in [(b"one", "write second", "write first"), (b"two", "write first", "write second")] {
        file.store(record).unwrap();
        // While it is in one slot only, it is made certain there; and then in the other one.
        let copy = path.with_extension("copy");
        std::fs::copy(&path, &copy).unwrap();
        assert_eq!(opening(&copy, None), [its, "sync", other, "sync"]);
        assert_eq!(RecordFile::open(&copy).unwrap().record(), record);
    }
}

/// What a loss of power has left of a record in one slot must not become whole by what is written to the slot next, of which power
/// may go as well.
#[test]
fn what_was_torn_does_not_come_back_with_another_record() {
    let (_directory, path) = place();
    let file = RecordFile::open(&path).unwrap();
    [&[1; 3000][..], b"kept"].iter().for_each(|record| file.store(record).unwrap());
    let before = std::fs::read(&path).unwrap();
    file.store(b"torn").unwrap();
    drop(file);
    let after = std::fs::read(&path).unwrap();
    let torn = |before: &[u8], after: &[u8], is_new: &dyn Fn(usize) -> bool| {
        let sectors = before.chunks(512).zip(after.chunks(512)).enumerate();
        sectors.flat_map(|(at, (old, new))| if is_new(at) { new } else { old }).copied().collect::<Vec<u8>>()
    };
    // Of the torn one the first sector is there; the others have what was there before.
    let first = (0..before.len() / 512).find(|at| before[at * 512..][..512] != after[at * 512..][..512]).unwrap();
    std::fs::write(&path, torn(&before, &after, &|at| at == first)).unwrap();
    let file = RecordFile::open(&path).unwrap();
    assert_eq!(file.record(), b"kept");
    let before = std::fs::read(&path).unwrap();
    file.store(b"next").unwrap();
    drop(file);
    let after = std::fs::read(&path).unwrap();
    // Of the next one all others are.
    for lacks in 0..before.len() / 512 {
        std::fs::write(&path, torn(&before, &after, &|at| at != lacks)).unwrap();
        let found = RecordFile::open(&path).unwrap().record();
        assert!([&b"kept"[..], b"next"].contains(&found.as_slice()), "{}", String::from_utf8_lossy(&found));
    }
}

proptest! {
    /// Power is cut while a record is written: any of its sectors are there, or not.
    #[test]
    fn after_a_loss_of_power_it_is_the_record_or_the_one_before(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..5),
        sectors in any::<u16>(),
    ) {
        let (_directory, path) = place();
        let file = RecordFile::open(&path).unwrap();
        let (last, before) = records.split_last().unwrap();
        before.iter().for_each(|record| file.store(record).unwrap());
        let whole_before = std::fs::read(&path).unwrap();
        file.store(last).unwrap();
        drop(file);
        let mut torn = std::fs::read(&path).unwrap();
        let changes = torn.chunks_mut(512).zip(whole_before.chunks(512)).enumerate();
        changes.filter(|(sector, _)| sectors >> (sector % 16) & 1 == 0).for_each(|(_, (new, old))| new.copy_from_slice(old));
        std::fs::write(&path, torn).unwrap();
        let found = RecordFile::open(&path).unwrap().record();
        let before = before.last().cloned().unwrap_or_default();
        prop_assert!(found == *last || found == before, "{} bytes", found.len());
    }

    #[test]
    fn no_bytes_are_too_much_for_it(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..2 * SLOT_BYTES - 200) {
        let (_directory, path) = place();
        drop(RecordFile::open(&path).unwrap());
        let mut file = std::fs::read(&path).unwrap();
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&path, file).unwrap();
        if let Ok(file) = RecordFile::open(&path) {
            prop_assert_eq!(file.record(), b"");
        }
    }
}
