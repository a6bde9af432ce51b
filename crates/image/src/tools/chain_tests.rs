//! Images of a chain that are streamed and committed while somebody writes to them; QEMU's opinion is asked for in the room `tests`.

use super::access::tests as access;
use super::{Committing, ExternalSnapshot, FromTo, Streaming, ToolError};
use crate::new::New;
use crate::testing::{self, Findings, read};
use crate::{Qcow2Options, features};
use engine::Solo;
use job::{Fill, Mirror};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use storage::{Execution, Operation, Storage, Task, open};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};

const SIZE: usize = 6 << 20;
/// The middle of the chain is shorter where it is not written, and the raw file behind it shorter still.
const MIDDLE: usize = 5 << 20;
const RAW: usize = (4 << 20) + 512;

/// `disk` over `middle` over `raw`, of which each has something of its own.
struct Chain {
    directory: TempDir,
    options: Qcow2Options,
    oracle: Vec<u8>,
    rng: Rng,
}

impl Chain {
    fn new((version, cluster_bits, incompatible): (u32, u32, u64), middle: usize, seed: u64) -> Chain {
        let directory = TempDir::new_in(kit::shm()).unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut oracle = vec![5; RAW];
        oracle[1 << 20..2 << 20].fill(0);
        fs::write(at("raw"), &oracle).unwrap();
        let with = |cluster_bits, size_bytes: usize, incompatible, behind: (&str, &'static str)| {
            let backing = Some((behind.0.as_bytes().to_vec(), behind.1));
            New { cluster_bits, size_bytes: size_bytes as u64, incompatible, backing, ..New::default() }
        };
        fs::write(at("middle"), with(12, middle, 0, ("raw", "raw")).image().unwrap()).unwrap();
        let disk = New { version, ..with(cluster_bits, SIZE, incompatible, ("middle", "qcow2")) };
        fs::write(at("disk"), disk.image().unwrap()).unwrap();
        let mut rng = Rng(seed | 1);
        for (name, size) in [("middle", middle), ("disk", SIZE)] {
            oracle.resize(size, 0);
            let storage = open(&Qcow2Options::new(at(name))).unwrap();
            for _ in 0..12 {
                change(&*storage, &mut oracle, &mut rng);
            }
        }
        let options = Qcow2Options::new(at("disk"));
        Chain { directory, options, oracle, rng }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Lets a guest write until `until` has ended.
    fn under_load<T: Send>(&mut self, guest: &Arc<dyn Storage>, until: impl FnOnce() -> T + Send) -> T {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut changes = 0;
                while !is_over.load(Ordering::SeqCst) || changes < 50 {
                    change(&**guest, &mut self.oracle, &mut self.rng);
                    changes += 1;
                }
            });
            let outcome = until();
            is_over.store(true, Ordering::SeqCst);
            writer.join().unwrap();
            outcome
        })
    }

    /// The disk reads as it should, open and opened again, and nothing is wrong with its file.
    fn ends_well(&mut self, storage: Arc<dyn Storage>) {
        for _ in 0..20 {
            change(&*storage, &mut self.oracle, &mut self.rng);
        }
        kit::assert_same(&kit::read(&mut Solo::new().unwrap(), &*storage, 0, SIZE), &self.oracle, 0);
        assert_eq!(storage.describe().target, self.options.path.display().to_string());
        // The next program goes on with it.
        let handed = storage.hand_over().unwrap();
        let next = storage::Kind::adopt(&self.options, handed).unwrap();
        change(&*next, &mut self.oracle, &mut self.rng);
        drop((storage, next));
        kit::assert_same(&read(&self.options.path), &self.oracle, 0);
        assert_eq!(testing::examine(&fs::read(&self.options.path).unwrap()), Findings::default());
        let names = fs::read_dir(self.directory.path()).unwrap().map(|it| it.unwrap().file_name());
        assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with('.')), "something is left over");
    }
}

/// A write, or zeroes, or a discard, somewhere.
fn change(storage: &dyn Storage, oracle: &mut [u8], rng: &mut Rng) {
    let mut below = |bound: usize| rng.below(bound as u64) as usize;
    let sectors = oracle.len() / 512;
    let at = below(sectors);
    let most = [1, 8, 128, 600][below(4)];
    let count = (1 + below(most)).min(sectors - at);
    let (offset, len, byte) = (at * 512, count * 512, 1 + below(250) as u8);
    let mut task = Task::new();
    let mut solo = Solo::new().unwrap();
    match below(8) {
        0 => {
            oracle[offset..offset + len].fill(0);
            let (offset, len) = (offset as u64, len as u64);
            task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false });
            kit::run(&mut solo, storage, &mut task).unwrap();
        }
        1 => {
            task.begin(Operation::Flush);
            kit::run(&mut solo, storage, &mut task).unwrap();
        }
        _ => {
            oracle[offset..offset + len].fill(byte);
            kit::write(&mut solo, storage, offset as u64, &oracle[offset..offset + len]).unwrap();
        }
    }
}

/// Version, size of clusters and features of the disk's image.
const LAYOUTS: [(u32, u32, u64); 5] = [(3, 9, 0), (3, 16, 0), (3, 16, features::EXTENDED_L2), (3, 21, 0), (2, 16, 0)];

/// How tables are looked up: on the worker, and by threads of their own.
const EXECUTIONS: [Execution; 2] = [Execution::Inline, Execution::Uring];

#[test]
fn an_image_is_filled_under_its_guest_and_stands_alone() {
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for execution in EXECUTIONS {
            let mut chain = Chain::new(layout, MIDDLE, 77 + number as u64);
            let behind = [chain.at("raw"), chain.at("middle")].map(|path| fs::read(path).unwrap());
            let storage = open(&chain.options).unwrap();
            storage.set_execution(execution).unwrap();
            let streaming = Streaming::prepare(&chain.options, storage.clone()).unwrap();
            let FromTo { from, to } = streaming.route().unwrap();
            let fill = Fill::new(from, to).unwrap();
            let copied = chain.under_load(&storage, || fill.run(&mut |show| streaming.gaps(show)).unwrap());
            assert!(layout.1 > 16 || copied.data_bytes > 1 << 20, "{layout:?}: {copied:?}");
            let progress = fill.progress();
            assert_eq!(progress.done_bytes, progress.total_bytes);
            let alone = streaming.finish(&chain.options).unwrap();
            drop((fill, streaming, storage));
            chain.ends_well(alone);
            assert_eq!(behind, [chain.at("raw"), chain.at("middle")].map(|path| fs::read(path).unwrap()));
            // Whoever opens it needs nothing else.
            ["raw", "middle"].iter().for_each(|name| fs::remove_file(chain.at(name)).unwrap());
            kit::assert_same(&read(&chain.options.path), &chain.oracle, 0);
        }
    }
}

#[test]
fn a_stream_that_ends_early_has_changed_nothing_that_is_read() {
    let mut chain = Chain::new(LAYOUTS[1], MIDDLE, 3);
    let storage = open(&chain.options).unwrap();
    let streaming = Streaming::prepare(&chain.options, storage.clone()).unwrap();
    let FromTo { from, to } = streaming.route().unwrap();
    let fill = Fill::new(from, to).unwrap();
    let mut looks = 0;
    let mut some = |show: &mut dyn FnMut(std::ops::Range<u64>) -> bool| {
        streaming.gaps(&mut |gap| {
            looks += 1;
            looks < 4 && show(gap)
        })
    };
    chain.under_load(&storage, || fill.run(&mut some).unwrap());
    drop((fill, streaming));
    chain.ends_well(storage);
}

#[test]
fn an_image_goes_into_what_is_behind_it_under_its_guest() {
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for execution in EXECUTIONS {
            let mut chain = Chain::new(layout, SIZE, 177 + number as u64);
            let raw = fs::read(chain.at("raw")).unwrap();
            let storage = open(&chain.options).unwrap();
            storage.set_execution(execution).unwrap();
            let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
            let FromTo { from, to } = committing.begin().unwrap();
            drop(storage);
            let mirror = Mirror::of_parts(from, to).unwrap();
            let guest = mirror.filter();
            std::thread::scope(|scope| {
                let runs = scope.spawn(|| mirror.run_with(&mut |show| committing.parts(show), &mut || {}).unwrap());
                chain.under_load(&guest, || std::thread::sleep(std::time::Duration::from_millis(40)));
                mirror.complete();
                assert!(runs.join().unwrap().data_bytes > 0);
            });
            let alone = committing.finish().unwrap();
            drop((mirror, guest, committing));
            assert!(!chain.at("middle").exists());
            chain.ends_well(alone);
            assert_eq!(fs::read(chain.at("raw")).unwrap(), raw);
        }
    }
}

#[test]
fn a_commit_that_is_not_wanted_leaves_the_chain_as_it_was() {
    for execution in EXECUTIONS {
        let mut chain = Chain::new(LAYOUTS[1], SIZE, 12);
        let mut storage = open(&chain.options).unwrap();
        storage.set_execution(execution).unwrap();
        let middle = chain.at("middle");
        let reader = || open(&Qcow2Options { read_only: true, ..Qcow2Options::new(&middle) });
        reader().unwrap();
        for _ in 0..3 {
            let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
            let FromTo { from, to } = committing.begin().unwrap();
            // Nobody else has what is behind the image while it is written.
            let error = reader().map(drop).unwrap_err().to_string();
            assert!(error.contains("for writing"), "{error}");
            let mirror = Mirror::of_parts(from, to).unwrap();
            let guest = mirror.filter();
            let under_way = || {
                let ended = mirror.run_with(&mut |show| committing.parts(show), &mut || mirror.cancel());
                ended.map(drop).unwrap_err().to_string()
            };
            let why = chain.under_load(&guest, under_way);
            assert!(why.contains("cancelled"), "{why}");
            storage = committing.undo(&chain.options).unwrap();
            drop((mirror, guest, committing));
            reader().unwrap();
            kit::assert_same(&kit::read(&mut Solo::new().unwrap(), &*storage, 0, SIZE), &chain.oracle, 0);
        }
        assert!(chain.at("middle").exists());
        chain.ends_well(storage);
        assert_eq!(testing::examine(&fs::read(chain.at("middle")).unwrap()), Findings::default());
    }
}

/// The image goes on where it can have its name back; where it cannot, whoever opens that finds all that was written, before and since.
#[test]
fn a_commit_whose_names_do_not_get_to_stable_storage_loses_nothing() {
    for comes_back in [true, false] {
        let mut chain = Chain::new(LAYOUTS[1], SIZE, 21);
        let middle = chain.at("middle");
        let storage = open(&chain.options).unwrap();
        let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
        committing.try_names().unwrap();
        let FromTo { from, to } = committing.begin().unwrap();
        drop(storage);
        let mirror = Mirror::of_parts(from, to).unwrap();
        mirror.complete();
        mirror.run_with(&mut |show| committing.parts(show), &mut || {}).unwrap();
        let inode = || fs::metadata(&chain.options.path).unwrap().ino();
        let (before, mut syncs) = (inode(), 0);
        let finished = committing.finish_by(&mut || {
            syncs += 1;
            if !comes_back {
                fs::write(&middle, "in the way").unwrap();
            }
            if syncs == 1 { Err(ToolError::refused(&middle, "a test")) } else { Ok(()) }
        });
        assert_eq!((inode() == before, finished.is_err()), (comes_back, comes_back));
        let hidden = || {
            let names = fs::read_dir(chain.directory.path()).unwrap().map(|it| it.unwrap().path());
            let is_hidden = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
            names.filter(is_hidden).collect::<Vec<_>>()
        };
        let storage = match finished {
            Err(error) => {
                assert!(error.to_string().contains("a test") && hidden().is_empty(), "{error}");
                committing.undo(&chain.options).unwrap()
            }
            Ok(storage) => {
                // The image has no other name.
                let [beside] = &hidden()[..] else { panic!("{:?}", hidden()) };
                assert_eq!(fs::metadata(beside).unwrap().ino(), before);
                fs::remove_file(beside).unwrap();
                storage
            }
        };
        drop((mirror, committing));
        chain.ends_well(storage);
    }
}

#[test]
fn whoever_may_use_an_image_may_use_what_takes_its_place() {
    let chain = Chain::new(LAYOUTS[1], SIZE, 5);
    let (disk, middle) = (chain.at("disk"), chain.at("middle"));
    fs::set_permissions(&middle, Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&disk, Permissions::from_mode(0o600)).unwrap();
    access::share(&disk, 1234);
    let (of_disk, of_middle) = (access::of(&disk), access::of(&middle));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let storage = open(&chain.options).unwrap();
    // Nobody else may read it as long as it may be that it is not kept.
    let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
    committing.begin().unwrap();
    assert_eq!(mode(&middle), 0o600);
    committing.abandon();
    assert_eq!(access::of(&middle), of_middle);
    let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
    let FromTo { from, to } = committing.begin().unwrap();
    drop(storage);
    let mirror = Mirror::of_parts(from, to).unwrap();
    mirror.complete();
    mirror.run_with(&mut |show| committing.parts(show), &mut || {}).unwrap();
    let alone = committing.finish().unwrap();
    assert_eq!(access::of(&disk), of_disk);
    // So it is with a snapshot.
    let to = chain.at("before");
    let mut snapshot = ExternalSnapshot::prepare(&chain.options, alone, &to).unwrap();
    snapshot.put().unwrap();
    snapshot.keep();
    assert_eq!((access::of(&disk), access::of(&to)), (of_disk.clone(), of_disk));
}

#[test]
fn what_cannot_begin_leaves_the_backing_file_to_its_readers() {
    let chain = Chain::new(LAYOUTS[1], SIZE, 7);
    let (disk, base) = (chain.at("small"), chain.at("base"));
    // Its first table has no room for a larger disk.
    fs::write(&base, New { cluster_bits: 9, size_bytes: 1 << 20, ..New::default() }.image().unwrap()).unwrap();
    let backing = Some((b"base".to_vec(), "qcow2"));
    fs::write(&disk, New { size_bytes: SIZE as u64, backing, ..New::default() }.image().unwrap()).unwrap();
    let options = Qcow2Options::new(&disk);
    let mut committing = Committing::prepare(&options, open(&options).unwrap()).unwrap();
    for _ in 0..2 {
        let error = committing.begin().map(drop).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", base.display())) && error.contains("L1 table ends"), "{error}");
        assert!(!error.contains("small"), "{error}");
        let reads = Qcow2Options { read_only: true, ..Qcow2Options::new(&base) };
        open(&reads).unwrap();
    }
}

#[test]
fn whether_names_can_change_is_tried_in_both_directories() {
    let chain = Chain::new(LAYOUTS[1], SIZE, 6);
    let names = || fs::read_dir(chain.directory.path()).unwrap().count();
    let before = names();
    let committing = Committing::prepare(&chain.options, open(&chain.options).unwrap()).unwrap();
    committing.try_names().unwrap();
    assert_eq!(names(), before);
    for name in ["disk", "middle"] {
        fs::rename(chain.at(name), chain.at("elsewhere")).unwrap();
        let error = committing.try_names().unwrap_err().to_string();
        assert!(error.contains("cannot link an image as"), "{error}");
        fs::rename(chain.at("elsewhere"), chain.at(name)).unwrap();
    }
    assert_eq!(names(), before);
}

#[test]
fn what_cannot_be_streamed_or_committed_is_refused() {
    let chain = Chain::new(LAYOUTS[1], SIZE, 4);
    let refused = |options: &Qcow2Options| {
        let storage = open(options).unwrap();
        let streamed = Streaming::prepare(options, storage.clone()).map(drop).map_err(|error| error.to_string());
        let committed = Committing::prepare(options, storage).map(drop).map_err(|error| error.to_string());
        [streamed.err().unwrap_or_default(), committed.err().unwrap_or_default()]
    };
    let [streamed, committed] = refused(&Qcow2Options::new(chain.at("middle")));
    assert_eq!(streamed, "");
    assert!(committed.contains("is raw") && committed.contains("mirror"), "{committed}");
    let read_only = Qcow2Options { read_only: true, ..chain.options.clone() };
    assert!(refused(&read_only).iter().all(|error| error.contains("is served read-only")));
    let lonely = chain.at("lonely");
    fs::write(&lonely, New::default().image().unwrap()).unwrap();
    let [streamed, committed] = refused(&Qcow2Options::new(&lonely));
    assert!(streamed.contains("has no backing file") && committed.contains("has no backing file"), "{streamed}");
    // Somebody reads what is behind it.
    let storage = open(&chain.options).unwrap();
    let reader = open(&Qcow2Options { read_only: true, ..Qcow2Options::new(chain.at("middle")) }).unwrap();
    let mut committing = Committing::prepare(&chain.options, storage.clone()).unwrap();
    let error = committing.begin().map(drop).unwrap_err().to_string();
    assert!(error.contains("lets nobody write"), "{error}");
    drop(reader);
    committing.begin().unwrap();
}
