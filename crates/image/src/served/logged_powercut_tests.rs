//! Power cuts of an image with an intent log in front of it: both files are cut at the same moment.
//!
//! The fault model is that of [`super::powercut_tests`], for two files. What is left must open, as the two must belong together at
//! every moment; each sector of the disk must have what the last flush covered or something newer; and a close must leave an image that
//! is sound and says nothing of a log.

use super::powercut_tests::{Allowed, State, served_as};
use crate::features;
use crate::header::Header;
use crate::testing::{New, examine};
use engine::{Completion, Io, Solo, Token};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use storage::{Description, Execution, Handed, Operation, Step, Storage, StorageError, Task};
use testkit::{Rng, storage as kit};
use volume::format::{CreateOptions, Uuid};
use volume::{Barriers, LoggedOptions, LoggedStorage, Ram};

pub(super) const SIZE: usize = 512 << 10;
const SECTORS: usize = SIZE / 512;
/// The smallest there is, so that it goes round.
const LOG_BYTES: u64 = 64 << 10;
/// One of so many changes is cut behind.
const CUT_EVERY: u64 = 15;

pub(super) const IMAGE: usize = 0;
pub(super) const LOG: usize = 1;

/// What a cut leaves of both files, and what the disk may have then.
type Cut = ([Vec<u8>; 2], Vec<Allowed>);

/// Two files of one machine.
struct World {
    files: [State; 2],
    rng: Rng,
    allowed: Vec<Allowed>,
    cuts: Vec<Cut>,
}

/// One of them.
pub(super) struct File {
    world: Arc<Mutex<World>>,
    number: usize,
    obeys: bool,
    cut_every: AtomicU64,
    /// It does not grow.
    pub(super) is_full: AtomicBool,
    /// Writes behind this byte find no room, as in what is sparse.
    pub(super) full_from: AtomicU64,
    /// So many flushes more succeed.
    pub(super) flushes_left: AtomicU64,
    /// And so many before them find no descriptor.
    pub(super) lacks: AtomicU64,
    /// Whoever changes it waits until that is over.
    pub(super) hangs: (Mutex<bool>, Condvar),
}

impl File {
    pub(super) fn hang(&self, hangs: bool) {
        *self.hangs.0.lock().unwrap() = hangs;
        self.hangs.1.notify_all();
    }
}

impl Storage for File {
    fn describe(&self) -> Description {
        Description {
            kind: "file",
            target: ["model.qcow2", "model.log"][self.number].to_owned(),
            read_only: false,
            direct: true,
            block_size_bytes: 512,
            physical_block_bytes: 512,
            optimal_io_bytes: 0,
            discard: true,
            discard_granularity_bytes: 512,
            write_zeroes: true,
            execution: Execution::Inline,
            execution_chosen: Execution::Inline,
        }
    }

    fn capacity_bytes(&self) -> u64 {
        self.world.lock().unwrap().files[self.number].now.len() as u64
    }

    fn start(&self, task: &mut Task, _token: Token, _io: &mut Io<'_>) -> Step {
        if let Err(error) = task.check(self.capacity_bytes(), false) {
            return Step::Done(Err(error));
        }
        let changes = !matches!(task.operation, Operation::Read { .. });
        if changes {
            drop(self.hangs.1.wait_while(self.hangs.0.lock().unwrap(), |hangs| *hangs).unwrap());
        }
        let action = task.operation.action();
        match task.operation {
            Operation::Write { offset, .. } if offset + task.bytes() > self.full_from.load(Ordering::SeqCst) => {
                return Step::Done(Err(StorageError::errno(action, libc::ENOSPC)));
            }
            Operation::Flush
                if self.lacks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() =>
            {
                return Step::Done(Err(StorageError::errno(action, libc::EMFILE)));
            }
            Operation::Flush
                if self
                    .flushes_left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_err() =>
            {
                return Step::Done(Err(StorageError::errno(action, libc::EIO)));
            }
            _ => {}
        }
        let world = &mut *self.world.lock().unwrap();
        world.files[self.number].perform(task, self.obeys);
        let every = self.cut_every.load(Ordering::SeqCst);
        if changes && every > 0 && world.rng.below(every) == 0 {
            let left = world.files.each_mut().map(State::cut);
            world.cuts.push((left, world.allowed.clone()));
        }
        Step::Done(Ok(()))
    }

    fn resume(&self, _task: &mut Task, _completion: Completion, _io: &mut Io<'_>) -> Step {
        Step::Done(Ok(()))
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(StorageError::errno(storage::Action::Write, libc::ENOSPC));
        }
        self.world.lock().unwrap().files[self.number].now.resize(capacity_bytes as usize, 0);
        Ok(())
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn set_execution(&self, _execution: Execution) -> Result<(), StorageError> {
        Ok(())
    }
}

/// What is left out on purpose.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Without {
    barriers: Barriers,
    /// The file of the image obeys no flush.
    image_flushes: bool,
}

pub(super) struct Machine {
    world: Arc<Mutex<World>>,
    pub(super) files: [Arc<File>; 2],
}

impl Machine {
    pub(super) fn new(contents: [Vec<u8>; 2], seed: u64, cut_every: u64, without: Without) -> Machine {
        let seeds = [seed, seed.rotate_left(9)];
        let [image, log] = contents;
        let files = [State::new(image, seeds[0]), State::new(log, seeds[1])];
        let fresh = Allowed { cut: vec![0], flushed: vec![0] };
        let world = World { files, rng: Rng(seed | 1), allowed: vec![fresh; SECTORS], cuts: Vec::new() };
        let world = Arc::new(Mutex::new(world));
        let file = |number| {
            let obeys = number == LOG || !without.image_flushes;
            Arc::new(File {
                world: world.clone(),
                number,
                obeys,
                cut_every: AtomicU64::new(cut_every),
                is_full: AtomicBool::new(false),
                full_from: AtomicU64::new(u64::MAX),
                flushes_left: AtomicU64::new(u64::MAX),
                lacks: AtomicU64::new(0),
                hangs: (Mutex::new(false), Condvar::new()),
            })
        };
        Machine { files: [file(IMAGE), file(LOG)], world }
    }

    /// What the file has now.
    pub(super) fn contents(&self, number: usize) -> Vec<u8> {
        self.world.lock().unwrap().files[number].now.clone()
    }

    /// The image with nothing in front of it.
    pub(super) fn image(&self) -> Arc<dyn Storage> {
        let image = self.contents(IMAGE);
        let header = Header::parse(&image).unwrap();
        Arc::new(served_as(header, &image, self.files[IMAGE].clone(), None, false))
    }

    pub(super) fn open(&self, without: Without) -> Result<LoggedStorage, String> {
        let image = self.world.lock().unwrap().files[IMAGE].now.clone();
        let header = Header::parse(&image).map_err(|error| error.to_string())?;
        let disk = served_as(header, &image, self.files[IMAGE].clone(), None, false);
        let options = LoggedOptions { dirty_bytes: 1 << 20, barriers: without.barriers, ..LoggedOptions::default() };
        LoggedStorage::open_apart(self.files[LOG].clone(), Arc::new(disk), &options).map_err(|error| error.to_string())
    }
}

/// An image and a log that nobody has used yet.
pub(super) fn fresh(new: &New) -> [Vec<u8>; 2] {
    let options = CreateOptions {
        capacity_bytes: 512,
        log_bytes: LOG_BYTES,
        volume: Uuid::from_u128(1),
        log: Uuid::from_u128(2),
        log_path: None,
        apart: true,
        created_by: String::new(),
    };
    let mut log = Ram::new(options.storage_bytes().unwrap() as usize);
    volume::format::create(&mut log, None, &options, &mut |_| {}).unwrap();
    [new.image().unwrap(), log.0]
}

/// Plays some lives of a disk; gives the cuts.
fn play(new: &New, seed: u64, without: Without) -> Vec<Cut> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let machine = Machine::new(fresh(new), rng.word(), CUT_EVERY, without);
    let mut solo = Solo::new().unwrap();
    for life in 0..4u64 {
        let storage = machine.open(without).unwrap();
        // What an end without a close has left counts from now on.
        let found = kit::read(&mut solo, &storage, 0, SIZE);
        for (sector, allowed) in found.chunks(512).zip(&mut machine.world.lock().unwrap().allowed) {
            assert!(allowed.cut.contains(&sector[0]), "{} is none of {:?}", sector[0], allowed.cut);
            if allowed.flushed.len() == 1 {
                allowed.flushed = vec![sector[0]];
            }
        }
        for round in 0..60u64 {
            step(&machine, &mut solo, &storage, &mut rng, (life * 60 + round) as u8 | 1);
        }
        match rng.below(2) {
            // Both end as if they were killed, and the machine with its memory goes on.
            0 => storage.abandon(),
            _ => {
                // What is closed is there to stay.
                storage.close().unwrap();
                let world = &mut *machine.world.lock().unwrap();
                world.allowed.iter_mut().for_each(|allowed| allowed.cut = allowed.flushed.clone());
            }
        }
    }
    std::mem::take(&mut machine.world.lock().unwrap().cuts)
}

/// A few operations together, and perhaps a flush behind them.
fn step(machine: &Machine, solo: &mut Solo, storage: &LoggedStorage, rng: &mut Rng, byte: u8) {
    let mut memory = vec![byte; SIZE];
    let count = 1 + rng.below(5);
    let most = [1, 4, 14][rng.below(3) as usize];
    let each = 1 + rng.below(most);
    let from = rng.below(SECTORS as u64 - 100);
    let kind = rng.below(10);
    let mut tasks = Vec::new();
    for part in 0..count {
        let (sector, len) = (from + part * each, each * 512);
        let offset = sector * 512;
        let mut task = Task::new();
        let world = &mut *machine.world.lock().unwrap();
        let range = &mut world.allowed[sector as usize..(sector + each) as usize];
        let value = if kind <= 2 { 0 } else { byte };
        match kind {
            0 => task.begin(Operation::Discard { offset, len }),
            1 | 2 => task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false }),
            _ => {
                let iov_base = memory[(part * each * 512) as usize..].as_mut_ptr().cast();
                task.buffers = vec![libc::iovec { iov_base, iov_len: len as usize }];
                task.begin(Operation::Write { offset, durable: false });
            }
        }
        for allowed in range {
            match kind {
                // Whoever discards a sector does not care: anything that was there may come back until something sure is behind it.
                0 => *allowed = Allowed { cut: (0..=255).collect(), flushed: (0..=255).collect() },
                _ => {
                    allowed.cut.push(value);
                    allowed.flushed = vec![value];
                }
            }
        }
        tasks.push(task);
    }
    kit::run_together(solo, storage, &mut tasks);
    if rng.below(3) == 0 {
        let mut task = Task::new();
        task.begin(Operation::Flush);
        kit::run(solo, storage, &mut task).unwrap();
        let world = &mut *machine.world.lock().unwrap();
        world.allowed.iter_mut().for_each(|allowed| allowed.cut = allowed.flushed.clone());
    }
    if rng.below(12) == 0 {
        storage.volume().unwrap().sync_now().unwrap();
    }
}

/// What is wrong with what a cut has left.
fn look(solo: &mut Solo, (left, allowed): Cut) -> Option<String> {
    let machine = Machine::new(left, 1, 0, Without::default());
    let storage = match machine.open(Without::default()) {
        Ok(storage) => storage,
        Err(error) => return Some(error),
    };
    let disk = kit::read(solo, &storage, 0, SIZE);
    for (at, (sector, allowed)) in disk.chunks(512).zip(&allowed).enumerate() {
        let byte = sector[0];
        if sector.iter().any(|other| *other != byte) || !allowed.cut.contains(&byte) {
            return Some(format!("sector {at} has {byte}, and may have {:?}", allowed.cut));
        }
    }
    if let Err(error) = storage.close() {
        return Some(error.to_string());
    }
    drop(storage);
    let image = machine.world.lock().unwrap().files[IMAGE].now.clone();
    let header = Header::parse(&image).unwrap();
    if header.has(features::LOGGED) || header.extensions.log.is_some() {
        return Some("the image still says that it has a log".to_owned());
    }
    examine(&image).corruptions.into_iter().next()
}

pub(super) fn cases() -> Vec<New> {
    // The header of the first has no room for the feature's name beside the rest in its first sector.
    [(10, 4, 0), (12, 4, 0), (16, 4, 0), (14, 4, features::EXTENDED_L2)]
        .map(|(cluster_bits, refcount_order, incompatible)| New {
            cluster_bits,
            refcount_order,
            incompatible,
            size_bytes: SIZE as u64,
            ..New::default()
        })
        .to_vec()
}

#[test]
fn a_power_cut_loses_nothing_that_was_flushed_to_the_log_of_an_image() {
    let (mut cuts, rounds) = (0, std::env::var("POWERCUTS").map_or(2, |rounds| rounds.parse().unwrap()));
    let mut solo = Solo::new().unwrap();
    for new in cases() {
        for seed in 1..=rounds {
            for cut in play(&new, seed, Without::default()) {
                cuts += 1;
                let wrong = look(&mut solo, cut);
                assert!(wrong.is_none(), "seed {seed}, {new:?}: {wrong:?}");
            }
        }
    }
    assert!(cuts > 300, "{cuts} cuts");
}

/// Cut behind each change, in two lives of which one is closed, the other one not.
#[test]
fn wherever_an_opening_or_a_close_is_cut_image_and_log_belong_together() {
    let mut solo = Solo::new().unwrap();
    for new in cases() {
        for seed in 1..6 {
            let machine = Machine::new(fresh(&new), seed, 1, Without::default());
            for life in 1..4u8 {
                let storage = machine.open(Without::default()).unwrap();
                for (sector, byte) in [(7, life), (SECTORS - 1, 100 + life)] {
                    machine.world.lock().unwrap().allowed[sector].cut.push(byte);
                    kit::write(&mut solo, &storage, sector as u64 * 512, &[byte; 512]).unwrap();
                    machine.world.lock().unwrap().allowed[sector].flushed = vec![byte];
                }
                let mut task = Task::new();
                task.begin(Operation::Flush);
                kit::run(&mut solo, &storage, &mut task).unwrap();
                machine.world.lock().unwrap().allowed.iter_mut().for_each(|it| it.cut = it.flushed.clone());
                match life {
                    2 => storage.abandon(),
                    _ => storage.close().unwrap(),
                }
            }
            let cuts = std::mem::take(&mut machine.world.lock().unwrap().cuts);
            assert!(cuts.len() > 30, "{} cuts", cuts.len());
            for cut in cuts {
                let wrong = look(&mut solo, cut);
                assert!(wrong.is_none(), "seed {seed}, {new:?}: {wrong:?}");
            }
        }
    }
}

#[test]
fn a_barrier_that_is_missing_between_log_and_image_is_noticed() {
    let all = Barriers::default();
    let mut solo = Solo::new().unwrap();
    for without in [
        Without { barriers: Barriers { commit: false, ..all }, ..Without::default() },
        Without { barriers: Barriers { write_back: false, ..all }, ..Without::default() },
        Without { image_flushes: true, ..Without::default() },
    ] {
        let new = &cases()[1];
        let found = (1..=20).any(|seed| play(new, seed, without).into_iter().any(|cut| look(&mut solo, cut).is_some()));
        assert!(found, "nothing was wrong: {without:?}");
    }
}
