//! How a volume writes back: a few writes at once while nobody waits, and as many as there can be when somebody does.

use engine::Solo;
use std::sync::Arc;
use std::time::Duration;
use storage::{Execution, FileOptions, FileStorage, Operation, Storage, Task, VolumeFigures};
use testkit::probe::{Probe, Seen};
use testkit::storage::{read, run, shm, write};
use volume::{LoggedOptions, LoggedStorage, tools};

const BLOCK: u64 = 4096;
/// Most writes at once of a pass that is not in a hurry.
const FEW: usize = 8;

struct Volume {
    storage: LoggedStorage,
    probe: Arc<Probe>,
    data_offset: u64,
    _directory: tempfile::TempDir,
}

impl Volume {
    /// With so many slots: a pass begins when more than half of them are in use.
    fn new(slots: u64) -> Volume {
        let directory = tempfile::tempdir_in(shm()).unwrap();
        let path = directory.path().join("volume");
        let options = tools::CreateOptions {
            size_bytes: 2 * slots * BLOCK,
            log_bytes: 8 << 20,
            force: false,
            created_by: "a test".to_owned(),
        };
        let info = tools::create(&volume::VolumeOptions::new(&path), &options, &mut |_| {}).unwrap();
        // What runs on the spot is never under way.
        let options = FileOptions { lock: false, execution: Execution::Uring, ..FileOptions::new(&path) };
        let probe = Probe::new(Arc::new(FileStorage::open(&options).unwrap()));
        let options = LoggedOptions { dirty_bytes: slots * BLOCK, ..LoggedOptions::default() };
        let storage = LoggedStorage::open(probe.clone(), None, &options).unwrap();
        probe.take();
        Volume { storage, probe, data_offset: info.data_offset, _directory: directory }
    }

    /// Writes so many blocks that are no neighbours: each is a write of its own.
    fn fill(&self, solo: &mut Solo, count: u64) {
        for number in 0..count {
            write(solo, &self.storage, number * 2 * BLOCK, &[number as u8 | 1; BLOCK as usize]).unwrap();
        }
    }

    /// Waits until something is so.
    fn until(&self, is_so: impl Fn(&VolumeFigures) -> bool) {
        while !is_so(&self.storage.figures()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Most writes of write-back that were under way together, and how many there were.
    fn written(&self) -> (usize, usize) {
        let (mut now, mut most, mut all) = (0, 0, 0);
        for seen in self.probe.take() {
            match seen {
                Seen::Begins(offset, _, false) if offset >= self.data_offset => {
                    now += 1;
                    all += 1;
                    most = most.max(now);
                }
                Seen::Ends(offset, true) if offset >= self.data_offset => now -= 1,
                _ => {}
            }
        }
        assert_eq!(now, 0);
        (most, all)
    }
}

#[test]
fn a_pass_that_nobody_waits_for_has_few_writes_under_way() {
    let volume = Volume::new(4096);
    let mut solo = Solo::new().unwrap();
    volume.fill(&mut solo, 2100);
    volume.until(|figures| figures.sweeps > 0);
    let (most, all) = volume.written();
    assert!((1..=FEW).contains(&most), "{most} at once, of {all}");
    assert!(all > 2048, "{all}");
    assert_eq!(read(&mut solo, &volume.storage, 6 * BLOCK, 512), [3; 512]);
}

#[test]
fn a_pass_that_somebody_waits_for_takes_all_that_there_is() {
    let volume = Volume::new(4096);
    let mut solo = Solo::new().unwrap();
    volume.fill(&mut solo, 1000);
    volume.storage.volume().unwrap().sync_now().unwrap();
    let (most, all) = volume.written();
    assert!(most > FEW && all == 1000, "{most} at once, of {all}");
}

#[test]
fn a_discard_does_not_wait_for_a_pass_that_rests() {
    let volume = Volume::new(16384);
    let mut solo = Solo::new().unwrap();
    volume.fill(&mut solo, 8300);
    // A pass counts what it has written when a group of blocks is complete; most of them are still to come.
    volume.until(|figures| figures.written_back_bytes > 0);
    let mut task = Task::new();
    task.begin(Operation::Discard { offset: 0, len: BLOCK });
    run(&mut solo, &volume.storage, &mut task).unwrap();
    volume.until(|figures| figures.sweeps > 0);
    let (most, all) = volume.written();
    assert!(most > FEW, "{most} at once, of {all}");
}
