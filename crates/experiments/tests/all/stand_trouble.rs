//! Stands in trouble: a server that dies, a guest that hangs, a disk that fills. Each is told in a line, and nothing is left.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::stand_support::{Bench, configuration, experiment, fio, processes};
use experiments::experiment::{Experiment, Medium, Place, ServerKind};
use experiments::stand::{Data, Stand, Trouble};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const READ: &[(&str, &str)] = &[("rw", "randread"), ("bs", "4k"), ("ioengine", "psync")];

fn signal(id: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
}

/// The process whose command line has these words, and which was told of the stand's directory.
fn find(bench: &Bench, words: &str) -> u32 {
    let all = processes(&bench.site.scratch);
    all.iter().find(|(_, line)| line.contains(words)).unwrap_or_else(|| panic!("no {words} in {all:?}")).0
}

fn minutes(experiment: &Experiment) -> Experiment {
    Experiment { time_s: 120.0, ..experiment.clone() }
}

#[test]
fn a_server_that_is_killed_ends_the_measurement() {
    let bench = Bench::new();
    for kind in [ServerKind::VringdDir, ServerKind::VringdDisk] {
        let configuration = configuration(Place::Uml, kind, &[], (Medium::Disk, 1, 8));
        let mut stand = Stand::start(&bench.site, &minutes(&experiment(&configuration)), &configuration).unwrap();
        let server = find(&bench, "--socket");
        let killer = thread::spawn(move || {
            thread::sleep(Duration::from_secs(1));
            signal(server, Signal::KILL);
        });
        let began = Instant::now();
        let trouble = stand.measure(&fio("read", 1, READ)).unwrap_err();
        killer.join().unwrap();
        // It is told at once, and not when the measurement should have ended.
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
        assert!(reason.starts_with("vringd ended"), "{reason}");
        assert!(!stand.is_alive());
        let Err(Trouble::Failed(again)) = stand.measure(&fio("read", 1, READ)) else { panic!("it is gone") };
        assert!(!again.contains('\n'), "{again}");
        stand.end().unwrap();
        bench.assert_nothing_left();
    }
}

#[test]
fn a_guest_that_hangs_is_ended() {
    let mut bench = Bench::new();
    bench.site.limits.slack = Duration::from_secs(3);
    bench.site.limits.sync = Duration::from_secs(3);
    for place in [Place::Uml, Place::Qemu] {
        let configuration = configuration(place, ServerKind::VringdDir, &[], (Medium::Disk, 1, 8));
        let mut stand = Stand::start(&bench.site, &experiment(&configuration), &configuration).unwrap();
        // A guest is told of its socket; every process of it stops.
        let guest = find(&bench, if place == Place::Uml { "virtio_uml.device" } else { "-chardev" });
        kill_process_group(Pid::from_raw(i32::try_from(guest).unwrap()).unwrap(), Signal::STOP).unwrap();
        let trouble = stand.measure(&fio("read", 1, READ)).unwrap_err();
        let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
        assert!(reason.contains("did not answer within"), "{reason}");
        assert!(!stand.is_alive());
        // Dropped instead of ended: by force.
        drop(stand);
        bench.assert_nothing_left();
    }
}

#[test]
fn a_server_that_hangs_ends_its_guest_and_then_itself() {
    let mut bench = Bench::new();
    bench.site.limits.slack = Duration::from_secs(3);
    bench.site.limits.sync = Duration::from_secs(3);
    bench.site.limits.end = Duration::from_secs(1);
    let configuration = configuration(Place::Uml, ServerKind::VringdDir, &[], (Medium::Disk, 1, 8));
    let mut stand = Stand::start(&bench.site, &experiment(&configuration), &configuration).unwrap();
    signal(find(&bench, "--socket"), Signal::STOP);
    let trouble = stand.measure(&fio("read", 1, READ)).unwrap_err();
    let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
    assert!(reason.contains("did not answer within"), "{reason}");
    stand.end().unwrap();
    bench.assert_nothing_left();
}

#[test]
fn a_server_that_cannot_start_is_told_by_its_own_words() {
    let bench = Bench::new();
    let configuration = configuration(Place::Uml, ServerKind::VringdDir, &["--no-such-option"], (Medium::Disk, 1, 1));
    let trouble = Stand::start(&bench.site, &experiment(&configuration), &configuration).map(|_| ()).unwrap_err();
    let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
    assert!(reason.starts_with("vringd ended: error: ") && reason.contains("--no-such-option"), "{reason}");
    bench.assert_nothing_left();
}

/// A file system of its own; unmounted when dropped.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: &std::path::Path, options: &str) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(at).status().unwrap();
        assert!(status.success(), "a test of full disks needs the right to mount");
        Self(at.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().unwrap();
    }
}

#[test]
fn a_disk_that_is_too_small_is_not_written() {
    let bench = Bench::new();
    let _small = Small::mount(&bench.site.data, "size=80m");
    let configuration = configuration(Place::Host, ServerKind::None, &[], (Medium::Disk, 1, 32));
    let trouble = Stand::start(&bench.site, &experiment(&configuration), &configuration).map(|_| ()).unwrap_err();
    let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
    assert!(reason.contains("32 MiB") && reason.contains("80 MiB are free"), "{reason}");
    bench.assert_nothing_left();
}

#[test]
fn a_disk_that_fills_up_while_data_is_laid_out_is_emptied_again() {
    let bench = Bench::new();
    // Room enough, and nodes for one file besides the directories.
    let _small = Small::mount(&bench.site.data, "size=200m,nr_inodes=5");
    let configuration = configuration(Place::Host, ServerKind::None, &[], (Medium::Disk, 2, 4));
    let trouble = Stand::start(&bench.site, &experiment(&configuration), &configuration).map(|_| ()).unwrap_err();
    let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
    assert!(reason.contains("the disk is full"), "{reason}");
    let left = std::fs::read_dir(bench.site.data.join("vringd-bench-data")).unwrap();
    assert_eq!(left.count(), 0, "what was written is removed");
    bench.assert_nothing_left();
}

#[test]
fn a_disk_that_fills_up_under_load_fails_one_measurement() {
    let bench = Bench::new();
    let _small = Small::mount(&bench.site.data, "size=80m");
    let configuration = configuration(Place::Uml, ServerKind::VringdDir, &[], (Medium::Disk, 1, 8));
    // Time enough to fill it on any machine: the disk ends the load, or it is found wanting.
    let mut stand = Stand::start(&bench.site, &minutes(&experiment(&configuration)), &configuration).unwrap();
    // A load that goes on far behind the end of its file.
    let grow = [
        ("rw", "write"),
        ("bs", "1m"),
        ("ioengine", "psync"),
        ("size", "200m"),
        ("time_based", "0"),
        ("file_append", "1"),
    ];
    let trouble = stand.measure(&fio("grow", 1, &grow)).unwrap_err();
    let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
    assert!(reason.contains("No space left on device"), "{reason}");
    // The stand lives, and so does the rest of the run.
    assert!(stand.is_alive());
    let once = [READ, &[("time_based", "0")]].concat();
    stand.measure(&fio("read", 1, &once)).unwrap();
    stand.end().unwrap();
    Data::remove_all(&bench.site, &experiment(&configuration)).unwrap();
    bench.assert_nothing_left();
}
