//! Copies between storages.

use engine::Solo;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use storage::copy::{Route, Zeroes, copy};
use storage::{
    Action, FileOptions, FileStorage, MemoryOptions, MemoryStorage, SimOptions, SimStorage, Storage, StorageError,
};
use testkit::storage as kit;

fn memory(bytes: u64, fill: u8) -> Arc<dyn Storage> {
    let options = MemoryOptions { size: Some(values::ByteSize(bytes)), ..MemoryOptions::default() };
    let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::open(&options).unwrap());
    kit::write(&mut Solo::new().unwrap(), &*memory, 0, &vec![fill; bytes as usize]).unwrap();
    memory
}

#[test]
fn a_copy_is_the_same_whatever_was_there() {
    const BYTES: u64 = 5 << 20 | 512;
    let mut solo = Solo::new().unwrap();
    let sim: Arc<dyn Storage> = Arc::new(
        SimStorage::open(&SimOptions { size: values::ByteSize(BYTES + 4096), ..SimOptions::default() }).unwrap(),
    );
    let mut content = vec![0; BYTES as usize];
    for (at, len) in [(0, 600), (70_000, 1), (1 << 20, 3 << 19), ((5 << 20) - 7, 519)] {
        content[at..at + len].fill(0xa5);
    }
    kit::write(&mut solo, &*sim, 4096, &content).unwrap();
    for (zeroes, fill) in [(Zeroes::Leave, 0), (Zeroes::Write, 0x77)] {
        let target = memory(BYTES + 512, fill);
        let route = Route { from: &*sim, from_offset: 4096, to: &*target, to_offset: 512, len: BYTES, zeroes };
        let mut last = (0, 0);
        let copied = copy(&route, &mut |done, all| last = (done, all)).unwrap();
        assert_eq!(copied.data_bytes + copied.zero_bytes, BYTES);
        assert!(copied.zero_bytes > 2 << 20, "{copied:?}");
        assert_eq!(last, (BYTES, BYTES));
        let back = kit::read(&mut solo, &*target, 512, BYTES as usize);
        assert!(back == content, "{zeroes:?}");
    }
}

/// Holes that are shorter than what a copy reads along with data, and zeroes that are data.
#[test]
fn a_target_keeps_what_it_has_where_the_source_has_nothing() {
    const BYTES: u64 = 3 << 20;
    let file = tempfile::NamedTempFile::new_in(kit::shm()).unwrap();
    file.as_file().set_len(BYTES).unwrap();
    let mut expected = vec![0x77; BYTES as usize];
    for (at, byte) in [(0, 1), (8 << 10, 0), (300 << 10, 2), ((2 << 20) - 4096, 3), (BYTES - 4096, 0)] {
        file.as_file().write_all_at(&[byte; 4096], at).unwrap();
        expected[at as usize..][..4096].fill(byte);
    }
    let from = FileStorage::open(&FileOptions::new(file.path())).unwrap();
    let target = memory(BYTES, 0x77);
    let route = Route { from: &from, from_offset: 0, to: &*target, to_offset: 0, len: BYTES, zeroes: Zeroes::Data };
    let copied = copy(&route, &mut |_, _| {}).unwrap();
    assert_eq!((copied.data_bytes, copied.zero_bytes), (3 * 4096, 2 * 4096));
    let mut solo = Solo::new().unwrap();
    kit::assert_same(&kit::read(&mut solo, &*target, 0, BYTES as usize), &expected, 0);
}

#[test]
fn the_first_error_ends_a_copy() {
    let options = SimOptions { size: values::ByteSize(8 << 20), write_error_rate: Some(1.0), ..SimOptions::default() };
    let sim = SimStorage::open(&options).unwrap();
    let from = memory(8 << 20, 1);
    let route = Route { from: &*from, from_offset: 0, to: &sim, to_offset: 0, len: 8 << 20, zeroes: Zeroes::Leave };
    let error = copy(&route, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, StorageError::Injected(Action::Write)));
}
