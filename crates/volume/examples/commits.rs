//! Writers that each write 4 KiB and make it stable, over and over: a volume beside what the device does by itself.
//!
//! `cargo run --release -p volume --example commits -- DIRECTORY [SECONDS]`. A look, on one thread of ours, and not a
//! measurement for the record: that is `vringd bench commits`.

use engine::{Solo, Token};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{FileOptions, FileStorage, Kind, Operation, SimOptions, Step, Storage, Task, VolumeFigures};
use values::{ByteSize, IntentLog, Span, SyncMode};
use volume::{LoggedOptions, LoggedStorage, VolumeOptions, tools};

const BLOCK: usize = 4096;
const SIZE: u64 = 256 << 20;

#[repr(align(4096))]
struct Page([u8; BLOCK]);

/// Requests a second of `count` writers on one thread.
fn writers(storage: &dyn Storage, count: usize, time: Duration) -> f64 {
    let mut solo = Solo::new().expect("an io_uring");
    let page = Page([7; BLOCK]);
    let mut tasks: Vec<Task> = (0..count).map(|_| Task::new()).collect();
    let mut stages = vec![false; count];
    let (mut random, mut done) = (1u64, 0u64);
    let mut ready: Vec<usize> = (0..count).collect();
    let mut pending = 0;
    let began = Instant::now();
    loop {
        while let Some(index) = ready.pop() {
            let task = &mut tasks[index];
            stages[index] = !stages[index];
            if stages[index] {
                if began.elapsed() >= time {
                    continue;
                }
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let offset = (random >> 33) % (SIZE / BLOCK as u64) * BLOCK as u64;
                task.buffers.clear();
                task.buffers.push(libc::iovec { iov_base: page.0.as_ptr().cast_mut().cast(), iov_len: BLOCK });
                task.begin(Operation::Write { offset, durable: false });
            } else {
                task.begin(Operation::Flush);
            }
            match storage.start(task, Token::request(index as u16), &mut solo.io()) {
                Step::Pending => pending += 1,
                Step::Done(result) => {
                    result.expect("no error");
                    done += u64::from(!stages[index]);
                    ready.push(index);
                }
            }
        }
        if pending == 0 {
            return done as f64 / began.elapsed().as_secs_f64();
        }
        let completion = solo.wait().expect("a completion");
        let index = completion.index();
        if let Step::Done(result) = storage.resume(&mut tasks[index], completion, &mut solo.io()) {
            result.expect("no error");
            done += u64::from(!stages[index]);
            pending -= 1;
            ready.push(index);
        }
    }
}

/// The same by as many threads with blocking calls.
fn threads(file: &File, count: usize, time: Duration) -> f64 {
    let began = Instant::now();
    let each = |seed: u64| {
        let (mut random, mut done) = (seed + 1, 0u64);
        while began.elapsed() < time {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (random >> 33) % (SIZE / BLOCK as u64) * BLOCK as u64;
            file.write_all_at(&[7; BLOCK], offset).expect("no error");
            file.sync_data().expect("no error");
            done += 1;
        }
        done
    };
    let done: u64 = std::thread::scope(|scope| {
        let all: Vec<_> = (0..count as u64).map(|seed| scope.spawn(move || each(seed))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    done as f64 / began.elapsed().as_secs_f64()
}

fn carried(before: &VolumeFigures, after: &VolumeFigures) -> f64 {
    let commits = (after.commits - before.commits).max(1);
    (after.committed_requests - before.committed_requests) as f64 / commits as f64
}

fn on_file(directory: &Path, time: Duration) {
    let path = directory.join("commits.volume");
    let raw = directory.join("commits.raw");
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&raw));
    let file = File::create(&raw).expect("a file");
    for block in 0..SIZE >> 20 {
        file.write_all_at(&vec![1; 1 << 20], block << 20).expect("room");
    }
    file.sync_all().expect("a disk");
    let options =
        tools::CreateOptions { size_bytes: SIZE, log_bytes: 64 << 20, force: true, created_by: "commits".to_owned() };
    tools::create(&VolumeOptions::new(&path), &options, &mut |_| {}).expect("a volume");
    let data = FileStorage::open(&FileOptions { direct: true, ..FileOptions::new(&path) }).expect("a volume");
    let volume = LoggedStorage::open(Arc::new(data), None, &LoggedOptions::default()).expect("a volume");
    for count in [1, 8, 32] {
        let before = volume.figures();
        let ours = writers(&volume, count, time);
        let after = volume.figures();
        let theirs = threads(&file, count, time);
        let shared = carried(&before, &after);
        println!(
            "file   {count:2}: {ours:8.0}/s, pwrite+fdatasync {theirs:8.0}/s, {:5.2}x, {shared:5.2} a commit",
            ours / theirs
        );
    }
    drop(volume);
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&raw));
}

fn on_model(channels: u16, time: Duration) {
    let model = SimOptions {
        size: ByteSize(SIZE),
        channels,
        flush_cost: Span(Duration::from_millis(5)),
        ..SimOptions::default()
    };
    let size = ByteSize(64 << 20);
    let log = IntentLog { size, dirty_memory: size, sync: SyncMode::Standard };
    let lower: Box<dyn Kind> = Box::new(model.clone());
    let volume = volume::open_made(&log, lower).expect("a volume");
    let plain = storage::open(&model).expect("a model");
    for count in [1, 8, 32] {
        let figures = || volume.volume().expect("a volume").status().figures;
        let before = figures();
        let ours = writers(volume.as_ref(), count, time);
        let after = figures();
        let theirs = writers(plain.as_ref(), count, time);
        let shared = carried(&before, &after);
        println!(
            "sim/{channels:<2} {count:2}: {ours:8.0}/s, without a log     {theirs:8.0}/s, {:5.2}x, {shared:5.2} a commit",
            ours / theirs
        );
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let seconds = arguments.next().and_then(|word| word.parse().ok()).unwrap_or(2.0);
    let time = Duration::from_secs_f64(seconds);
    if arguments.next().is_none() {
        on_model(1, time);
        on_model(64, time);
    }
    on_file(Path::new(&directory), time);
}
