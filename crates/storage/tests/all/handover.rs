//! A storage goes on in other hands, with the same contents and the same locks.

use engine::Solo;
use std::sync::Arc;
use storage::{
    Execution, FileOptions, Handed, Kind, MemoryOptions, NullOptions, OpenError, Operation, SimOptions, Storage, Task,
    open,
};
use testkit::storage::{disk, image, run, shm};
use values::ByteSize;

const BYTES: u64 = 1 << 20;

/// Writes or reads one block of 4 KiB.
fn block(storage: &dyn Storage, operation: Operation, data: &mut [u8; 4096]) {
    let mut solo = Solo::new().unwrap();
    let mut task = Task::new();
    task.buffers.push(libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() });
    task.begin(operation);
    run(&mut solo, storage, &mut task).unwrap();
}

/// What one storage has written is what the one that follows it reads, also when the first is gone.
fn contents_go_along(spec: &dyn Kind) {
    let first = open(spec).unwrap();
    first.resize(2 * BYTES).unwrap();
    block(&*first, Operation::Write { offset: 8192, durable: false }, &mut [7; 4096]);
    block(&*first, Operation::Write { offset: 2 * BYTES - 4096, durable: false }, &mut [8; 4096]);
    let handed = first.hand_over().unwrap();
    drop(first);
    let second = spec.adopt(handed).unwrap();
    assert_eq!(second.capacity_bytes(), 2 * BYTES, "{spec:?}");
    for (offset, expected) in [(0, 0), (8192, 7), (2 * BYTES - 4096, 8)] {
        let mut data = [1; 4096];
        block(&*second, Operation::Read { offset }, &mut data);
        assert_eq!(data, [expected; 4096], "{spec:?} at {offset}");
    }
    second.resize(3 * BYTES).unwrap();
    block(&*second, Operation::Write { offset: 3 * BYTES - 4096, durable: true }, &mut [9; 4096]);
}

#[test]
fn contents_go_along_whatever_holds_them() {
    let memory = MemoryOptions { size: Some(ByteSize(BYTES)), ..MemoryOptions::default() };
    contents_go_along(&memory);
    contents_go_along(&SimOptions { size: ByteSize(BYTES), ..SimOptions::default() });
    let file = image(shm(), BYTES);
    let path = Some(file.path().to_owned());
    contents_go_along(&MemoryOptions { size: Some(ByteSize(BYTES)), path, ..MemoryOptions::default() });
    for execution in [Execution::Auto, Execution::Inline, Execution::Pool(2)] {
        let file = image(disk(), BYTES);
        contents_go_along(&FileOptions { execution, ..FileOptions::new(file.path()) });
    }
}

#[test]
fn an_image_is_locked_without_a_gap() {
    for write in [true, false] {
        let file = image(disk(), BYTES);
        let spec = FileOptions { read_only: !write, ..FileOptions::new(file.path()) };
        let writer = FileOptions::new(file.path());
        let locked = || matches!(open(&writer), Err(OpenError::Locked { .. }));
        let first = open(&spec).unwrap();
        assert!(locked());
        let handed = first.hand_over().unwrap();
        drop(first);
        assert!(locked());
        let second = spec.adopt(handed).unwrap();
        assert!(locked());
        drop(second);
        assert!(!locked());
    }
}

/// The file that is open counts, not the one that has its name by now.
#[test]
fn a_path_is_not_looked_up_again() {
    let file = image(disk(), BYTES);
    let spec = FileOptions::new(file.path());
    let first = open(&spec).unwrap();
    block(&*first, Operation::Write { offset: 0, durable: false }, &mut [7; 4096]);
    let handed = first.hand_over().unwrap();
    drop((first, file));
    let mut data = [0; 4096];
    block(&*spec.adopt(handed).unwrap(), Operation::Read { offset: 0 }, &mut data);
    assert_eq!(data, [7; 4096]);
}

#[test]
fn nothing_has_a_size() {
    let spec = NullOptions { size: ByteSize(BYTES), ..NullOptions::default() };
    let first = open(&spec).unwrap();
    first.resize(2 * BYTES).unwrap();
    let handed = first.hand_over().unwrap();
    assert!(handed.data.is_none() && handed.lock.is_none());
    assert_eq!(spec.adopt(handed).unwrap().capacity_bytes(), 2 * BYTES);
}

#[test]
fn what_is_missing_or_something_else_is_refused() {
    let file = image(disk(), BYTES);
    let spec = FileOptions::new(file.path());
    let refused = |handed: Handed| spec.adopt(handed).err().unwrap().to_string();
    let nothing = || Handed::empty(BYTES);
    assert!(refused(nothing()).contains("missing"));
    let unlocked = Handed { data: Some(Arc::new(file.reopen().unwrap().into())), ..nothing() };
    assert!(refused(unlocked).contains("missing"));
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(refused(Handed { data: Some(Arc::new(reader.into())), ..nothing() }).contains("pipe"));
}
