//! A volume over a page cache that cannot write: what it has lost it says once, to whoever asks first, and it goes on as if
//! nothing had been.

use engine::{Completion, Io, Reply, Solo, Token};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use storage::{Action, Description, Execution, Handed, Operation, Step, Storage, StorageError, Task, VolumeControl};
use testkit::storage::{read, run, write};
use volume::Ram;
use volume::format::{self, Superblock, Uuid};
use volume::{LoggedOptions, LoggedStorage};

const SIZE: u64 = 4 << 20;

/// See the top. What is written and not flushed is in memory; a write that asks to be durable goes to the disk.
struct PageCache {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    disk: Vec<u8>,
    /// Offset and contents of what is not written yet.
    dirty: Vec<(u64, Vec<u8>)>,
    /// The next write of data is lost.
    loses: bool,
    /// What becomes of the next write to the log.
    log: LogWrite,
    /// It waits, and has been lost.
    held_log: Option<Reply>,
    /// Whoever has been told of something lost, flushes wait from then on.
    holds_when_told: bool,
    /// Something was lost and nobody knows.
    error: bool,
    /// So many flushes that are to bring a superblock to the disk lose it.
    superblocks_lost: u32,
    /// Flushes wait.
    holds: bool,
    held: Vec<Reply>,
    data_offset: u64,
}

/// What the page cache does with a write to the log.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LogWrite {
    #[default]
    Stored,
    /// It is lost. It ends when the test says so, and well unless it is the first to ask.
    LostAndHeld,
    /// It is lost, and ends well at once: somebody else has already asked, and does not know it yet.
    Lost,
}

impl PageCache {
    /// A new volume, with its log inside.
    fn new() -> Arc<PageCache> {
        let options = format::CreateOptions {
            capacity_bytes: SIZE,
            log_bytes: 1 << 20,
            volume: Uuid::new_v4(),
            log: Uuid::new_v4(),
            log_path: None,
            apart: false,
            created_by: "a test".to_owned(),
        };
        let mut disk = Ram::new(options.storage_bytes().unwrap() as usize);
        let data_offset = format::create(&mut disk, None, &options, &mut |_| {}).unwrap().data_offset;
        let state = State { disk: disk.0, data_offset, ..State::default() };
        Arc::new(PageCache { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What a power cut would leave.
    fn cut(&self) -> Arc<PageCache> {
        let state = self.state();
        let left = State { disk: state.disk.clone(), data_offset: state.data_offset, ..State::default() };
        Arc::new(PageCache { state: Mutex::new(left), changed: Condvar::new() })
    }

    /// Waits until a write to the log is held.
    fn wait_for_log_write(&self) {
        drop(self.changed.wait_while(self.state(), |state| state.held_log.is_none()).unwrap());
    }

    fn let_log_write_go(&self) {
        self.state().held_log.take().unwrap().complete(0);
    }

    /// The superblock that a power cut would leave.
    fn superblock(&self) -> Superblock {
        format::read_superblock(&mut Ram(self.state().disk.clone())).unwrap()
    }

    /// What a power cut would leave of the volume's block 0, if nothing of it were in the log.
    fn block(&self) -> Vec<u8> {
        let state = self.state();
        state.disk[state.data_offset as usize..][..4096].to_vec()
    }

    /// Waits until a flush is held.
    fn wait_for_flush(&self) {
        drop(self.changed.wait_while(self.state(), |state| state.held.is_empty()).unwrap());
    }

    fn let_flushes_go(&self) {
        let mut state = self.state();
        state.holds = false;
        for reply in state.held.drain(..) {
            reply.complete(0);
        }
    }
}

impl State {
    fn store(&mut self, offset: u64, contents: Vec<u8>, durable: bool) -> Result<(), StorageError> {
        if durable {
            self.disk[offset as usize..][..contents.len()].copy_from_slice(&contents);
            return self.told(Action::Write);
        }
        if self.loses && offset >= self.data_offset {
            (self.loses, self.error) = (false, true);
        } else {
            self.dirty.push((offset, contents));
        }
        Ok(())
    }

    fn told(&mut self, action: Action) -> Result<(), StorageError> {
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        if !std::mem::take(&mut self.error) {
            return Ok(());
        }
        self.holds |= self.holds_when_told;
        Err(StorageError::Io { action, source })
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let superblock = |(offset, _): &(u64, Vec<u8>)| *offset < 8192;
        if self.superblocks_lost > 0 && self.dirty.iter().any(superblock) {
            self.superblocks_lost -= 1;
            self.dirty.retain(|page| !superblock(page));
            self.error = true;
        }
        for (offset, contents) in std::mem::take(&mut self.dirty) {
            self.disk[offset as usize..][..contents.len()].copy_from_slice(&contents);
        }
        self.told(Action::Flush)
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.disk[offset as usize..][..into.len()]);
        for (start, contents) in &self.dirty {
            let (from, to) = (offset.max(*start), (offset + into.len() as u64).min(start + contents.len() as u64));
            if from < to {
                let bytes = &contents[(from - start) as usize..(to - start) as usize];
                into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(bytes);
            }
        }
    }
}

/// The buffers' bytes, in one piece.
fn gather(task: &Task) -> Vec<u8> {
    let mut bytes = Vec::new();
    for buffer in &task.buffers {
        // SAFETY: the buffers of a started task are mapped, and nobody changes them in this test.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(buffer.iov_base.cast(), buffer.iov_len) });
    }
    bytes
}

impl Storage for PageCache {
    fn describe(&self) -> Description {
        Description {
            kind: "file",
            target: "a page cache".to_owned(),
            read_only: false,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 4096,
            optimal_io_bytes: 0,
            discard: false,
            discard_granularity_bytes: 4096,
            write_zeroes: true,
            execution: Execution::Auto,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.state().disk.len() as u64
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let mut state = self.state();
        Step::Done(match task.operation {
            Operation::Read { offset } => {
                let mut at = offset;
                for buffer in &task.buffers {
                    // SAFETY: the buffers of a started task are mapped, and are nobody else's in this test.
                    let into = unsafe { std::slice::from_raw_parts_mut(buffer.iov_base.cast(), buffer.iov_len) };
                    state.load(at, into);
                    at += buffer.iov_len as u64;
                }
                Ok(())
            }
            Operation::Write { durable: true, .. } if state.log != LogWrite::Stored => {
                state.error = true;
                if std::mem::take(&mut state.log) == LogWrite::Lost {
                    return Step::Done(Ok(()));
                }
                state.held_log = Some(io.reply(token));
                self.changed.notify_all();
                return Step::Pending;
            }
            Operation::Write { offset, durable } => state.store(offset, gather(task), durable),
            Operation::WriteZeroes { offset, len, durable, .. } => state.store(offset, vec![0; len as usize], durable),
            Operation::Discard { .. } => Ok(()),
            Operation::Flush if state.holds => {
                state.held.push(io.reply(token));
                self.changed.notify_all();
                return Step::Pending;
            }
            Operation::Flush => state.flush(),
        })
    }

    fn resume(&self, task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        let mut state = self.state();
        Step::Done(if task.operation == Operation::Flush { state.flush() } else { state.told(Action::Write) })
    }

    fn resize(&self, _capacity_bytes: u64) -> Result<(), StorageError> {
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }
}

fn open(below: &Arc<PageCache>) -> LoggedStorage {
    LoggedStorage::open(below.clone(), None, &LoggedOptions::default()).unwrap()
}

fn flush(solo: &mut Solo, storage: &dyn Storage) -> Result<(), StorageError> {
    let mut task = Task::new();
    task.begin(Operation::Flush);
    run(solo, storage, &mut task)
}

/// Behind a checkpoint the log's room is used again: it must be on the disk.
#[test]
fn a_superblock_that_was_lost_is_written_again() {
    let below = PageCache::new();
    let volume = open(&below);
    let mut solo = Solo::new().unwrap();
    for lost in 1..4 {
        write(&mut solo, &volume, 0, &[lost as u8; 4096]).unwrap();
        flush(&mut solo, &volume).unwrap();
        let before = below.superblock().tail;
        below.state().superblocks_lost = lost;
        volume.sync_now().unwrap();
        assert_eq!(below.state().superblocks_lost, 0);
        assert!(below.superblock().tail.sequence > before.sequence, "after {lost} errors");
    }
    volume.abandon();
}

/// The commit's log write gets to know what write-back has lost; write-back's own flush is told that all is well.
#[test]
fn a_log_write_that_is_told_of_lost_data_does_not_keep_it_to_itself() {
    let below = PageCache::new();
    let volume = open(&below);
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &volume, 0, &[7; 4096]).unwrap();
    {
        let mut state = below.state();
        (state.loses, state.holds) = (true, true);
    }
    std::thread::scope(|scope| {
        let swept = scope.spawn(|| volume.sync_now());
        below.wait_for_flush();
        // The error is that of the page behind the flush.
        write(&mut solo, &volume, 8192, &[8; 4096]).unwrap();
        flush(&mut solo, &volume).unwrap_err();
        below.let_flushes_go();
        swept.join().unwrap().unwrap();
    });
    assert_eq!(read(&mut solo, &volume, 0, 4096), [7; 4096]);
    assert_eq!(below.block(), [7; 4096], "it was written again");
    flush(&mut solo, &volume).unwrap();
    volume.abandon();
}

/// What a power cut would leave of a volume's block, after recovery.
fn block_after_cut(below: &Arc<PageCache>, offset: u64) -> Vec<u8> {
    let volume = open(&below.cut());
    let contents = read(&mut Solo::new().unwrap(), &volume, offset, 4096);
    volume.abandon();
    contents
}

/// Write-back's flush gets to know what the log has lost; the commit's own write is told that all is well.
#[test]
fn a_write_back_that_is_told_of_a_lost_log_write_does_not_keep_it_to_itself() {
    let below = PageCache::new();
    let volume = open(&below);
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &volume, 0, &[6; 4096]).unwrap();
    below.state().holds = true;
    std::thread::scope(|scope| {
        let swept = scope.spawn(|| volume.sync_now());
        below.wait_for_flush();
        // What the pass under way does not know of.
        write(&mut solo, &volume, 8192, &[7; 4096]).unwrap();
        below.state().log = LogWrite::LostAndHeld;
        let committed = scope.spawn(|| flush(&mut Solo::new().unwrap(), &volume));
        below.wait_for_log_write();
        below.state().holds_when_told = true;
        below.let_flushes_go();
        // That of the next pass: the one before was told.
        below.wait_for_flush();
        below.let_log_write_go();
        let committed = committed.join().unwrap();
        let left = block_after_cut(&below, 8192);
        below.let_flushes_go();
        swept.join().unwrap().unwrap();
        assert!(committed.is_err() || left == [7; 4096], "acknowledged, and nowhere");
    });
    flush(&mut solo, &volume).unwrap();
    assert_eq!(block_after_cut(&below, 8192), [7; 4096]);
    volume.abandon();
}

/// As above, of a commit that has ended when write-back is told: nobody hears of another until all is on the disk again.
#[test]
fn no_commit_counts_on_a_log_that_may_have_lost_something() {
    let below = PageCache::new();
    let volume = open(&below);
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &volume, 0, &[6; 4096]).unwrap();
    below.state().holds = true;
    std::thread::scope(|scope| {
        let swept = scope.spawn(|| volume.sync_now());
        below.wait_for_flush();
        write(&mut solo, &volume, 8192, &[7; 4096]).unwrap();
        {
            let mut state = below.state();
            (state.log, state.holds_when_told) = (LogWrite::Lost, true);
        }
        flush(&mut solo, &volume).unwrap();
        below.let_flushes_go();
        // That of the next pass: the one before was told.
        below.wait_for_flush();
        let committed = scope.spawn(|| {
            // Nothing is left to be logged.
            flush(&mut Solo::new().unwrap(), &volume).unwrap();
            block_after_cut(&below, 8192)
        });
        // It fails for a flush that has ended by then, and never for one that waits.
        std::thread::sleep(Duration::from_millis(50));
        below.let_flushes_go();
        swept.join().unwrap().unwrap();
        assert_eq!(committed.join().unwrap(), [7; 4096], "what is acknowledged is there");
    });
    write(&mut solo, &volume, 16384, &[8; 4096]).unwrap();
    flush(&mut solo, &volume).unwrap();
    assert_eq!(block_after_cut(&below, 16384), [8; 4096]);
    volume.abandon();
}
