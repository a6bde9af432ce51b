//! Power cuts, on a model of a file whose writes are volatile until a flush.
//!
//! The fault model: at a cut, each sector of what was written since the last flush is there or is not, independently of all
//! others; of two writes of one sector the later may be there without the earlier. A change of the file's size likewise, and without it
//! what was written behind the old end is gone. What is left must be free of corruption, and each sector of the disk must have what the
//! last flush covered or something newer.

use super::Qcow2Storage;
use super::chain::{Chain, Image};
use crate::header::Header;
use crate::testing::{New, examine};
use crate::{features, field};
use engine::{Completion, Io, Solo, Token};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use storage::{Description, Execution, Handed, Operation, Step, Storage, StorageError, Task};
use testkit::{Rng, storage as kit};

const SIZE: usize = 512 << 10;

/// What a sector of the disk may hold after a cut, and after a flush; as the byte that fills it.
#[derive(Clone)]
pub(super) struct Allowed {
    pub(super) cut: Vec<u8>,
    pub(super) flushed: Vec<u8>,
}

pub(super) type Oracle = Arc<Mutex<Vec<Allowed>>>;

/// What is written to a file, and what of it is on stable storage.
pub(super) struct State {
    stable: Vec<u8>,
    pub(super) now: Vec<u8>,
    /// Sectors that were written since the last flush, in order.
    pending: Vec<(usize, [u8; 512])>,
    rng: Rng,
    cuts: Vec<(Vec<u8>, Vec<Allowed>)>,
}

impl State {
    pub(super) fn new(contents: Vec<u8>, seed: u64) -> State {
        State { now: contents.clone(), stable: contents, pending: Vec::new(), rng: Rng(seed | 1), cuts: Vec::new() }
    }

    /// Does what a task says; makes it stable, where it asks for that, if the file obeys.
    pub(super) fn perform(&mut self, task: &Task, obeys: bool) {
        let bytes = task.bytes() as usize;
        match task.operation {
            Operation::Read { offset } => {
                let from = self.now[offset as usize..][..bytes].as_ptr();
                // SAFETY: the buffers of a started task are mapped, and nothing else has these bytes.
                unsafe { storage::kit::copy_in(&task.buffers, 0, from, bytes as u64) };
            }
            Operation::Write { offset, durable } => {
                let mut data = vec![0; bytes];
                // SAFETY: as above.
                unsafe { storage::kit::copy_out(&task.buffers, 0, data.as_mut_ptr(), bytes as u64) };
                self.put(offset as usize, &data);
                if durable && obeys {
                    let start = offset as usize;
                    if self.stable.len() < start + bytes {
                        self.stable.resize(start + bytes, 0);
                    }
                    self.stable[start..start + bytes].copy_from_slice(&data);
                }
            }
            Operation::Discard { offset, len } | Operation::WriteZeroes { offset, len, .. } => {
                self.put(offset as usize, &vec![0; len as usize]);
            }
            Operation::Flush => {
                if obeys {
                    self.stable = self.now.clone();
                    self.pending.clear();
                }
            }
        }
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (at, sector) in bytes.chunks(512).enumerate() {
            self.pending.push((offset + at * 512, sector.try_into().unwrap()));
        }
    }

    /// What a cut leaves now.
    pub(super) fn cut(&mut self) -> Vec<u8> {
        let mut left = self.stable.clone();
        let share = [0, 30, 70, 100][self.rng.below(4) as usize];
        if self.rng.below(100) < share.max(20) {
            left.resize(self.now.len(), 0);
        }
        for (at, sector) in &self.pending {
            if self.rng.below(100) < share && at + 512 <= left.len() {
                left[*at..at + 512].copy_from_slice(sector);
            }
        }
        left
    }
}

/// A file that forgets.
pub(super) struct Model {
    state: Mutex<State>,
    oracle: Oracle,
    on_the_spot: bool,
    /// It is called a device, and does not grow.
    device: bool,
    /// One of so many changes is cut behind, at random.
    cut_every: AtomicU64,
    /// Whether it obeys flushes.
    obeys: AtomicBool,
    /// Writes below this offset fail; half of their sectors are written.
    fails_below: AtomicU64,
    /// The next flush fails, and those behind it do not: so the kernel tells of what it could not write.
    fails_next_flush: AtomicBool,
    /// Writes find no room.
    is_full: AtomicBool,
    /// What was written before finds none on its way to stable storage.
    is_overdrawn: AtomicBool,
}

impl Model {
    pub(super) fn new(contents: Vec<u8>, oracle: Oracle, seed: u64, on_the_spot: bool) -> Arc<Model> {
        Arc::new(Model {
            state: Mutex::new(State::new(contents, seed)),
            oracle,
            on_the_spot,
            cut_every: AtomicU64::new(12),
            obeys: AtomicBool::new(true),
            fails_below: AtomicU64::new(0),
            fails_next_flush: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            is_overdrawn: AtomicBool::new(false),
            device: false,
        })
    }

    pub(super) fn set_obeys(&self, obeys: bool) {
        self.obeys.store(obeys, Ordering::SeqCst);
    }

    /// From now on it does not grow.
    pub(super) fn fill(&self) {
        self.is_full.store(true, Ordering::SeqCst);
    }

    pub(super) fn cut_behind_each_change(&self) {
        self.cut_every.store(1, Ordering::SeqCst);
    }

    /// What its file has now.
    pub(super) fn now(&self) -> Vec<u8> {
        self.state.lock().unwrap().now.clone()
    }

    /// What cuts have left since the last time.
    pub(super) fn take_cuts(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.state.lock().unwrap().cuts).into_iter().map(|(left, _)| left).collect()
    }

    fn perform(&self, task: &Task) {
        let allowed = self.oracle.lock().unwrap();
        let mut state = self.state.lock().unwrap();
        state.perform(task, self.obeys.load(Ordering::SeqCst));
        if !matches!(task.operation, Operation::Read { .. })
            && state.rng.below(self.cut_every.load(Ordering::SeqCst)) == 0
        {
            let left = state.cut();
            state.cuts.push((left, allowed.clone()));
        }
    }
}

impl Storage for Model {
    fn describe(&self) -> Description {
        let execution = if self.on_the_spot { Execution::Inline } else { Execution::Uring };
        Description {
            kind: if self.device { "device" } else { "file" },
            target: "model".to_owned(),
            read_only: false,
            direct: false,
            block_size_bytes: 512,
            physical_block_bytes: 512,
            optimal_io_bytes: 0,
            discard: true,
            discard_granularity_bytes: 512,
            write_zeroes: true,
            execution,
            execution_chosen: execution,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.state.lock().unwrap().now.len() as u64
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if let Err(error) = task.check(self.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        if let Operation::Write { offset, .. } = task.operation
            && offset < self.fails_below.load(Ordering::SeqCst)
        {
            task.buffers[0].iov_len = (task.buffers[0].iov_len / 2).next_multiple_of(512);
            self.perform(task);
            return Step::Done(Err(StorageError::errno(task.operation.action(), libc::EIO)));
        }
        if let Operation::Write { durable, .. } = task.operation
            && (self.is_full.load(Ordering::SeqCst) || durable && self.is_overdrawn.load(Ordering::SeqCst))
        {
            return Step::Done(Err(StorageError::errno(task.operation.action(), libc::ENOSPC)));
        }
        if matches!(task.operation, Operation::Flush) && self.fails_next_flush.swap(false, Ordering::SeqCst) {
            return Step::Done(Err(StorageError::errno(task.operation.action(), libc::EIO)));
        }
        self.perform(task);
        if self.on_the_spot {
            return Step::Done(Ok(()));
        }
        io.reply(token).complete(0);
        Step::Pending
    }

    fn resume(&self, _task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        if self.device || self.is_full.load(Ordering::SeqCst) {
            return Err(StorageError::errno(storage::Action::Write, libc::ENOSPC));
        }
        self.state.lock().unwrap().now.resize(capacity_bytes as usize, 0);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The image in `contents`, served over `file`, with `base` behind it.
fn served(contents: &[u8], file: Arc<Model>, base: Option<Arc<Model>>, read_only: bool) -> Qcow2Storage {
    served_as(Header::parse(contents).unwrap(), contents, file, base, read_only)
}

/// As above, with another header than its own.
pub(super) fn served_as(
    header: Header,
    contents: &[u8],
    file: Arc<dyn Storage>,
    base: Option<Arc<Model>>,
    read_only: bool,
) -> Qcow2Storage {
    let at = |entry: usize| field::u64_at(contents, header.l1_offset as usize + entry * 8).unwrap();
    let l1: Vec<u64> = (0..header.l1_entries as usize).map(at).collect();
    let images = vec![Image::new("model".into(), header, &l1, (0, 0), 1 << 20)];
    let mut files: Vec<Arc<dyn Storage>> = vec![file];
    let number = base.map(|base| {
        files.push(base);
        1
    });
    Qcow2Storage::over(
        Chain {
            files,
            images,
            base: number,
            header: Default::default(),
            unflushed: Default::default(),
            covers: Default::default(),
        },
        read_only,
        None,
    )
    .unwrap()
}

struct Case {
    new: New,
    backing: bool,
    on_the_spot: bool,
    /// Only the guest's own flushes are obeyed.
    without_barriers: bool,
}

/// Plays a history; gives the number of cuts that were looked at, and what was wrong with them.
fn play(case: &Case, seed: u64) -> (usize, Vec<String>) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let base_bytes: Vec<u8> = (0..SIZE).map(|at| if case.backing { (at / 512 % 100) as u8 + 1 } else { 0 }).collect();
    let first = |at: usize| vec![base_bytes[at * 512]];
    let sectors = (0..SIZE / 512).map(|at| Allowed { cut: first(at), flushed: first(at) }).collect();
    let oracle: Oracle = Arc::new(Mutex::new(sectors));
    let nothing: Oracle = Oracle::default();
    let base = case.backing.then(|| Model::new(base_bytes, nothing.clone(), 1, true));
    let image = case.new.image().unwrap();
    let file = Model::new(image.clone(), oracle.clone(), rng.below(u64::MAX >> 12), case.on_the_spot);
    let storage = served(&image, file.clone(), base.clone(), false);
    file.obeys.store(!case.without_barriers, Ordering::SeqCst);
    let mut solo = Solo::new().unwrap();
    for round in 0..120u64 {
        let byte = 101 + (round % 150) as u8;
        let mut tasks: Vec<Task> = Vec::new();
        let mut memory = vec![byte; SIZE];
        let count = 1 + rng.below(6);
        let from = rng.below(SIZE as u64 / 512 - 100);
        let most = [1, 4, 14][rng.below(3) as usize];
        let each = 1 + rng.below(most);
        let kind = rng.below(10);
        let before = oracle.lock().unwrap().clone();
        for part in 0..count {
            let (sector, sectors) = (from + part * each, each);
            let (offset, len) = (sector * 512, sectors * 512);
            let mut task = Task::new();
            let mut allowed = oracle.lock().unwrap();
            let range = &mut allowed[sector as usize..(sector + sectors) as usize];
            match kind {
                0 => {
                    task.begin(Operation::Discard { offset, len });
                    range.iter_mut().for_each(|allowed| {
                        allowed.cut.push(0);
                        allowed.flushed.push(0);
                    });
                }
                1 | 2 => {
                    task.begin(Operation::WriteZeroes { offset, len, unmap: part % 2 == 0, durable: false });
                    range.iter_mut().for_each(|allowed| {
                        allowed.cut.push(0);
                        allowed.flushed = vec![0];
                    });
                }
                _ => {
                    let start = (part * each * 512) as usize;
                    let iov_base = memory[start..start + len as usize].as_mut_ptr().cast();
                    task.buffers = vec![libc::iovec { iov_base, iov_len: len as usize }];
                    task.begin(Operation::Write { offset, durable: false });
                    range.iter_mut().for_each(|allowed| {
                        allowed.cut.push(byte);
                        allowed.flushed = vec![byte];
                    });
                }
            }
            tasks.push(task);
        }
        // A flush among them covers what was done before it began, and what else it covers nobody can say.
        let flushes = !case.without_barriers && rng.below(4) == 0;
        if flushes {
            let mut task = Task::new();
            task.begin(Operation::Flush);
            tasks.insert(rng.below(tasks.len() as u64 + 1) as usize, task);
        }
        kit::run_together(&mut solo, &storage, &mut tasks);
        if flushes {
            for (allowed, before) in oracle.lock().unwrap().iter_mut().zip(&before) {
                let new = allowed.cut.split_off(before.cut.len());
                allowed.cut = [before.flushed.clone(), new].concat();
            }
        }
        if rng.below(4) == 0 {
            file.obeys.store(true, Ordering::SeqCst);
            let mut task = Task::new();
            task.begin(Operation::Flush);
            kit::run(&mut solo, &storage, &mut task).unwrap();
            oracle.lock().unwrap().iter_mut().for_each(|allowed| allowed.cut = allowed.flushed.clone());
            file.obeys.store(!case.without_barriers, Ordering::SeqCst);
        }
    }
    drop(storage);
    let cuts = std::mem::take(&mut file.state.lock().unwrap().cuts);
    let mut wrong = Vec::new();
    for (left, allowed) in &cuts {
        let findings = examine(left);
        if !findings.corruptions.is_empty() {
            wrong.extend(findings.corruptions);
            continue;
        }
        let file = Model::new(left.clone(), nothing.clone(), 1, true);
        let storage = served(left, file, base.clone(), true);
        let disk = kit::read(&mut solo, &storage, 0, SIZE);
        for (at, (sector, allowed)) in disk.chunks(512).zip(allowed).enumerate() {
            let byte = sector[0];
            if sector.iter().any(|other| *other != byte) || !allowed.cut.contains(&byte) {
                wrong.push(format!("sector {at} has {byte}, and may have {:?}", allowed.cut));
                break;
            }
        }
    }
    (cuts.len(), wrong)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (cluster_bits, refcount_order, incompatible) in
        [(9, 4, 0), (9, 6, 0), (12, 4, 0), (16, 1, 0), (14, 4, features::EXTENDED_L2)]
    {
        for backing in [false, true] {
            for on_the_spot in [false, true] {
                let new = New { cluster_bits, refcount_order, incompatible, size_bytes: SIZE as u64, ..New::default() };
                let new = New { backing: backing.then(|| (b"base".to_vec(), "raw")), ..new };
                cases.push(Case { new, backing, on_the_spot, without_barriers: false });
            }
        }
    }
    cases
}

#[test]
fn a_power_cut_leaves_a_sound_image_with_all_that_was_flushed() {
    let (mut cuts, rounds) = (0, std::env::var("POWERCUTS").map_or(2, |rounds| rounds.parse().unwrap()));
    for case in cases() {
        for seed in 1..=rounds {
            let (looked_at, wrong) = play(&case, seed);
            cuts += looked_at;
            assert!(
                wrong.is_empty(),
                "seed {seed}, {:?}, {} on the spot: {:?}",
                case.new,
                case.on_the_spot,
                &wrong[..wrong.len().min(5)]
            );
        }
    }
    assert!(cuts > 1000, "{cuts} cuts");
}

#[test]
fn a_missing_barrier_is_noticed() {
    for case in cases() {
        let case = Case { without_barriers: true, ..case };
        let wrong: usize = (1..=4).map(|seed| play(&case, seed).1.len()).sum();
        assert!(wrong > 0, "nothing was wrong with {:?}", case.new);
    }
}

/// Grows a disk with something in it, also in its last cluster behind its end; gives the number of cuts, and what was
/// wrong with them.
fn grow(case: &Case, seed: u64) -> (usize, Vec<String>) {
    let (before, after) = (SIZE - 512, 3 * SIZE + 512);
    let base = case.backing.then(|| Model::new(vec![77; 2 * SIZE], Oracle::default(), 1, true));
    let image = New { size_bytes: before as u64, ..case.new.clone() }.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), seed, case.on_the_spot);
    let storage = served(&image, file.clone(), base.clone(), false);
    let mut solo = Solo::new().unwrap();
    storage.preview(SIZE as u64).unwrap();
    kit::write(&mut solo, &storage, SIZE as u64 - 4096, &[1; 4096]).unwrap();
    kit::write(&mut solo, &storage, 100 << 10, &[2; 60 << 10]).unwrap();
    storage.settle_size(before as u64).unwrap();
    let mut contents = kit::read(&mut solo, &storage, 0, before);
    contents.resize(after, 0);
    file.obeys.store(!case.without_barriers, Ordering::SeqCst);
    file.state.lock().unwrap().cuts.clear();
    let storage = match storage.reach_bytes() < after as u64 {
        true => {
            storage.lengthen_l1(after as u64).unwrap();
            let now = file.state.lock().unwrap().now.clone();
            served(&now, file.clone(), base.clone(), false)
        }
        false => storage,
    };
    crate::tools::grow("model".as_ref(), &storage, after as u64, &mut |_, _| {}).unwrap();
    drop(storage);
    let cuts = std::mem::take(&mut file.state.lock().unwrap().cuts);
    let mut wrong = Vec::new();
    for (left, _) in &cuts {
        let findings = examine(left);
        if !findings.corruptions.is_empty() {
            wrong.extend(findings.corruptions);
            continue;
        }
        let storage = served(left, Model::new(left.clone(), Oracle::default(), 1, true), base.clone(), true);
        let size = storage.capacity_bytes() as usize;
        if ![before, after].contains(&size) || kit::read(&mut solo, &storage, 0, size) != contents[..size] {
            wrong.push(format!("a disk of {size} bytes has other contents"));
        }
    }
    (cuts.len(), wrong)
}

#[test]
fn a_power_cut_leaves_the_disk_that_was_to_grow_or_the_one_that_has_grown() {
    let mut cuts = 0;
    for case in cases() {
        for seed in 1..=20 {
            let (looked_at, wrong) = grow(&case, seed);
            cuts += looked_at;
            assert!(wrong.is_empty(), "seed {seed}, {:?}: {:?}", case.new, &wrong[..wrong.len().min(5)]);
        }
        let case = Case { without_barriers: true, ..case };
        let wrong: usize = (1..=200).map(|seed| grow(&case, seed).1.len()).take_while(|wrong| *wrong == 0).count();
        assert!(wrong < 200, "nothing was wrong without barriers with {:?}", case.new);
    }
    assert!(cuts > 500, "{cuts} cuts");
}

/// The answer to a durable request is a promise, also where the request itself changes nothing.
#[test]
fn durable_zeroes_over_volatile_ones_are_stable() {
    let image = New { size_bytes: SIZE as u64, ..New::default() }.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let storage = served(&image, file.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    let mut ask = |operation| {
        let mut task = Task::new();
        task.begin(operation);
        kit::run(&mut solo, &storage, &mut task).unwrap();
    };
    let zeroes = |len, durable| Operation::WriteZeroes { offset: 0, len, unmap: true, durable };
    kit::write(&mut Solo::new().unwrap(), &storage, 0, &[1; 65_536]).unwrap();
    ask(Operation::Flush);
    ask(zeroes(65_536, false));
    ask(zeroes(512, true));
    let stable = file.state.lock().unwrap().stable.clone();
    let after = served(&stable, Model::new(stable.clone(), Oracle::default(), 1, true), None, true);
    assert_eq!(kit::read(&mut solo, &after, 0, 512), [0; 512]);
}

#[test]
fn metadata_of_which_a_part_is_written_ends_the_writes() {
    let image = New { size_bytes: SIZE as u64, ..New::default() }.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let storage = served(&image, file.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    // The first cluster behind the image has that, the next one the L2 table, and then comes this write's.
    file.fails_below.store(image.len() as u64 + 2 * 65_536, Ordering::SeqCst);
    kit::write(&mut solo, &storage, 65_536, &[1; 512]).unwrap_err();
    file.fails_below.store(0, Ordering::SeqCst);
    let error = kit::write(&mut solo, &storage, 131_072, &[1; 512]).unwrap_err().to_string();
    assert!(error.contains("open it again"), "{error}");
    assert_eq!(kit::read(&mut solo, &storage, 65_536, 512), [0; 512]);
    drop(storage);
    let now = file.state.lock().unwrap().now.clone();
    assert!(examine(&now).corruptions.is_empty());
}

#[test]
fn a_flush_that_fails_for_one_fails_for_all_behind_it() {
    let image = New { size_bytes: SIZE as u64, ..New::default() }.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let storage = served(&image, file.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    // Somebody else's flush hears of it.
    file.fails_next_flush.store(true, Ordering::SeqCst);
    storage.hand_over().unwrap_err();
    // Nor is the image handed to another program, which would know nothing of it.
    let error = storage.hand_over().unwrap_err().to_string();
    assert!(error.contains("a flush of the image has failed"), "{error}");
    let mut task = Task::new();
    for operation in [Operation::Flush, Operation::Flush] {
        task.begin(operation);
        let error = kit::run(&mut solo, &storage, &mut task).unwrap_err().to_string();
        assert!(error.contains("open it again"), "{error}");
    }
    kit::write(&mut solo, &storage, 0, &[2; 512]).unwrap_err();
    assert_eq!(kit::read(&mut solo, &storage, 0, 512), [1; 512]);
}

#[test]
fn a_disk_that_is_full_for_a_while_is_written_again() {
    let image = New { size_bytes: SIZE as u64, ..New::default() }.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let storage = served(&image, file.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    kit::write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    let mut task = Task::new();
    task.begin(Operation::Flush);
    kit::run(&mut solo, &storage, &mut task).unwrap();
    let mut durable = || {
        let mut memory = [2u8; 512];
        let mut task = Task::new();
        task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
        task.begin(Operation::Write { offset: 512, durable: true });
        kit::run(&mut solo, &storage, &mut task)
    };
    file.is_full.store(true, Ordering::SeqCst);
    durable().unwrap_err();
    file.is_full.store(false, Ordering::SeqCst);
    durable().unwrap();
    // There is room for the write itself: what was answered before it is lost, and the kernel says so once.
    file.is_overdrawn.store(true, Ordering::SeqCst);
    durable().unwrap_err();
    file.is_overdrawn.store(false, Ordering::SeqCst);
    assert!(durable().unwrap_err().to_string().contains("open it again"));
}

/// Clusters of 512 bytes, of which a block counts 256: most of the device has no block when it is begun with.
#[test]
fn an_image_fills_its_device_to_the_last_cluster() {
    let mut image = New { size_bytes: SIZE as u64, cluster_bits: 9, ..New::default() }.image().unwrap();
    image.resize(SIZE / 2 + 1024, 0xee);
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let file = Arc::new(Model { device: true, ..Arc::into_inner(file).unwrap() });
    let storage = served(&image, file.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    let fits = (0..SIZE as u64 / 512).take_while(|at| kit::write(&mut solo, &storage, at * 512, &[1; 512]).is_ok());
    let fits = fits.count();
    assert!(fits > SIZE / 2 / 512 * 9 / 10, "{fits} clusters");
    // What a guest gives back is there at once, whether or not it flushes.
    let mut task = Task::new();
    task.begin(Operation::Discard { offset: 0, len: 200 * 512 });
    kit::run(&mut solo, &storage, &mut task).unwrap();
    for at in 0..190 {
        kit::write(&mut solo, &storage, at * 512, &[2; 512]).unwrap();
    }
    drop(storage);
    let now = file.state.lock().unwrap().now.clone();
    assert!(examine(&now).corruptions.is_empty());
}
