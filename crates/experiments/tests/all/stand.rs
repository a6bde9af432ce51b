//! Stands of every place and server, with real guests and real peers.

use std::fs;

use crate::stand_support::{Bench, configuration, experiment, fio, frontend, own_files};
use experiments::experiment::{Configuration, DropCaches, Experiment, Guest, Medium, Place, ServerKind, Workload};
use experiments::record::Figures;
use experiments::stand::{Data, Stand, Trouble};

const READ: &[(&str, &str)] = &[("rw", "randread"), ("bs", "4k"), ("ioengine", "psync")];

/// Makes it ready, measures, ends it, and finds nothing left.
fn measure(bench: &Bench, configuration: &Configuration, workloads: &[Workload]) -> Vec<Result<Figures, Trouble>> {
    let experiment = experiment(configuration);
    let mut stand = Stand::start(&bench.site, &experiment, configuration).unwrap();
    let results = workloads
        .iter()
        .map(|workload| {
            let result = stand.measure(workload);
            println!("{} {}: {result:?}", configuration.name, workload.name);
            assert!(stand.is_alive(), "{} does not survive {}", configuration.name, workload.name);
            result
        })
        .collect();
    stand.end().unwrap();
    bench.assert_nothing_left();
    results
}

fn check(figures: &Result<Figures, Trouble>, block_kib: f64) -> Figures {
    let figures = *figures.as_ref().unwrap();
    assert!(figures.requests > 0 && figures.iops > 0.0 && figures.seconds > 0.0, "{figures:?}");
    let kib_per_s = figures.iops * block_kib;
    // Requests that are in flight at either end count here and not there: on a busy machine there are few others.
    let slack = 0.05 + 16.0 / figures.requests as f64;
    assert!((figures.kib_per_s / kib_per_s - 1.0).abs() < slack, "{figures:?}");
    let latency = figures.latency;
    assert!(
        latency.mean_us > 0.0 && latency.p50_us <= latency.p99_us && latency.p99_us <= latency.p999_us,
        "{latency:?}"
    );
    figures
}

#[test]
fn host() {
    let bench = Bench::new();
    let configuration = configuration(Place::Host, ServerKind::None, &[], (Medium::Disk, 2, 8));
    let workloads = [
        fio("read", 1, READ),
        fio("write", 2, &[("rw", "randwrite"), ("bs", "8k"), ("ioengine", "libaio"), ("iodepth", "4")]),
        fio("nonsense", 1, &[("rw", "randread"), ("ioengine", "nosuch")]),
    ];
    let results = measure(&bench, &configuration, &workloads);
    let figures = check(&results[0], 4.0);
    assert!(figures.server_cpu_s.is_none() && figures.guest_cpu_s.unwrap() > 0.0, "{figures:?}");
    check(&results[1], 8.0);
    let Err(Trouble::Unsupported(reason)) = &results[2] else { panic!("{:?}", results[2]) };
    assert_eq!(reason, "fio: engine nosuch not loadable");
    // With the host's caches dropped, as in a run that is not quick.
    let cold = Experiment { drop_caches: DropCaches::All, ..experiment(&configuration) };
    let mut stand = Stand::start(&bench.site, &cold, &configuration).unwrap();
    check(&stand.measure(&workloads[0]), 4.0);
    stand.end().unwrap();
    Data::remove_all(&bench.site, &experiment(&configuration)).unwrap();
    assert_eq!(fs::read_dir(bench.site.data.join("vringd-bench-data")).unwrap().count(), 0);
}

#[test]
fn directories_in_uml() {
    let bench = Bench::new();
    for (kind, options) in
        [(ServerKind::VringdDir, vec!["--cache", "never"]), (ServerKind::Virtiofsd, vec!["--cache=never"])]
    {
        let configuration = configuration(Place::Uml, kind, &options, (Medium::Memory, 2, 8));
        let workloads = [
            fio("read", 1, READ),
            fio(
                "write",
                2,
                &[("rw", "write"), ("bs", "4k"), ("ioengine", "libaio"), ("iodepth", "4"), ("direct", "1")],
            ),
            fio("mmap", 1, &[("rw", "randread"), ("bs", "4k"), ("ioengine", "mmap")]),
            fio("five", 5, READ),
        ];
        let results = measure(&bench, &configuration, &workloads);
        let figures = check(&results[0], 4.0);
        assert!(figures.server_cpu_s.is_some() && figures.guest_cpu_s.unwrap() > 0.0, "{figures:?}");
        check(&results[1], 4.0);
        let Err(Trouble::Unsupported(reason)) = &results[2] else { panic!("{:?}", results[2]) };
        assert!(reason.starts_with("mmap is refused"), "{reason}");
        let Err(Trouble::Failed(reason)) = &results[3] else { panic!("{:?}", results[3]) };
        assert_eq!(reason, "the workload wants 5 files, and the configuration's data has 2");
    }
}

#[test]
fn disks_in_uml() {
    let bench = Bench::new();
    let direct: &[(&str, &str)] =
        &[("rw", "randrw"), ("bs", "4k"), ("ioengine", "libaio"), ("iodepth", "8"), ("direct", "1")];
    for (kind, options, medium) in [
        (ServerKind::VringdDisk, vec![], Medium::Disk),
        (ServerKind::VringdDisk, vec!["--storage", "sim", "--size", "64M"], Medium::None),
        (ServerKind::VringdScsi, vec!["--storage", "memory", "--workers", "per-queue"], Medium::Memory),
        (ServerKind::VringdScsi, vec!["--storage=sim", "--size=64M"], Medium::None),
        (ServerKind::QemuStorageDaemon, vec!["aio=threads"], Medium::Disk),
    ] {
        let configuration = configuration(Place::Uml, kind, &options, (medium, 1, 16));
        let results = measure(&bench, &configuration, &[fio("mixed", 1, direct), fio("two", 2, direct)]);
        let figures = check(&results[0], 4.0);
        assert!(figures.server_cpu_s.is_some(), "{figures:?}");
        assert!(matches!(results[1], Err(Trouble::Unsupported(_))), "{:?}", results[1]);
    }
}

/// Behind a device of each place, with a reservation of its own that lets it do everything.
#[test]
fn disks_of_scsi_devices_that_are_reserved() {
    let bench = Bench::new();
    let direct: &[(&str, &str)] =
        &[("rw", "randrw"), ("bs", "4k"), ("ioengine", "libaio"), ("iodepth", "8"), ("direct", "1")];
    for place in [Place::Frontend, Place::Uml, Place::Qemu] {
        let mut reserved = configuration(place, ServerKind::VringdScsi, &[], (Medium::Memory, 1, 16));
        reserved.guest = Guest { reserve: true, queues: 2, processors: 2, ..reserved.guest };
        let mixed = Workload { fio: fio("", 1, direct).fio, ..frontend("mixed", &[("rw", "randrw"), ("bs", "4K")]) };
        check(&measure(&bench, &reserved, &[mixed.clone(), mixed])[1], 4.0);
    }
}

#[test]
fn qemu_with_its_own_servers_and_ours() {
    let bench = Bench::new();
    let mut nine = configuration(Place::Qemu, ServerKind::Qemu9p, &[], (Medium::Disk, 1, 8));
    nine.guest.mount = "cache=none".into();
    let figures = check(&measure(&bench, &nine, &[fio("read", 1, READ)])[0], 4.0);
    assert!(figures.server_cpu_s.is_none() && figures.guest_cpu_s.unwrap() > 0.0, "{figures:?}");
    let disk = configuration(Place::Qemu, ServerKind::QemuVirtioBlk, &["cache.direct=on"], (Medium::Disk, 1, 16));
    check(&measure(&bench, &disk, &[fio("read", 1, READ)])[0], 4.0);
    let directory = configuration(Place::Qemu, ServerKind::VringdDir, &[], (Medium::Disk, 1, 8));
    let figures = check(&measure(&bench, &directory, &[fio("read", 1, READ)])[0], 4.0);
    assert!(figures.server_cpu_s.is_some(), "{figures:?}");
}

#[test]
fn directories_by_9p_and_files_of_a_loads_own() {
    const FILES: u32 = 200;
    let bench = Bench::new();
    for place in [Place::Uml, Place::Qemu] {
        let mut ours = configuration(place, ServerKind::Vringd9p, &[], (Medium::Memory, 1, 8));
        ours.guest.mount = "cache=none,msize=512000".into();
        let own = |name, engine| {
            let options = [("ioengine", engine), ("rw", "read"), ("bs", "4k"), ("fallocate", "none")];
            own_files(name, FILES, &options)
        };
        let loads =
            [fio("read", 1, READ), own("create", "filecreate"), own("stat", "filestat"), own("unlink", "filedelete")];
        let results = measure(&bench, &ours, &loads);
        let figures = check(&results[0], 4.0);
        assert!(figures.server_cpu_s.is_some(), "{figures:?}");
        for result in &results[1..] {
            let figures = result.as_ref().unwrap();
            assert_eq!(figures.requests, u64::from(FILES));
            assert!(figures.iops > 0.0 && figures.server_cpu_s.is_none(), "{figures:?}");
        }
        let data = Data::of(&bench.site, &ours).unwrap().unwrap();
        assert_eq!(fs::read_dir(data.directory()).unwrap().count(), 1, "files of a load's own are left");
    }
}

#[test]
fn frontends() {
    let bench = Bench::new();
    for (kind, options, medium) in [
        (ServerKind::VringdDisk, vec!["--storage", "memory"], Medium::Memory),
        (ServerKind::VringdDisk, vec!["--storage", "sim", "--size", "64M"], Medium::None),
        (ServerKind::VringdScsi, vec![], Medium::Disk),
        (ServerKind::VringdScsi, vec!["--storage", "sim", "--size", "64M"], Medium::None),
        (ServerKind::QemuStorageDaemon, vec![], Medium::Disk),
    ] {
        let configuration = configuration(Place::Frontend, kind, &options, (medium, 1, 16));
        let load = frontend(
            "read",
            &[("rw", "randread"), ("bs", "4K"), ("depth", "4"), ("poll", "true"), ("verify", "false")],
        );
        let again = frontend("write", &[("rw", "randwrite"), ("bs", "8K")]);
        let results = measure(&bench, &configuration, &[load, again]);
        let figures = check(&results[0], 4.0);
        assert!(figures.server_cpu_s.is_some() && figures.guest_cpu_s.is_some(), "{figures:?}");
        check(&results[1], 8.0);
    }
    for (kind, options) in [(ServerKind::VringdDir, vec![]), (ServerKind::Virtiofsd, vec![])] {
        let configuration = configuration(Place::Frontend, kind, &options, (Medium::Disk, 1, 8));
        // virtiofsd serves one frontend in its life: the second one needs another.
        let loads = [frontend("read", &[("job", "read-rand")]), frontend("write", &[("job", "write-rand")])];
        let results = measure(&bench, &configuration, &loads);
        check(&results[0], 4.0);
        check(&results[1], 4.0);
        let data = Data::lay_out(&bench.site, &configuration.data).unwrap().unwrap();
        assert_eq!(fs::read_dir(data.directory()).unwrap().count(), 1, "the load's own files are gone");
    }
}

#[test]
fn what_cannot_be_run_says_why() {
    let bench = Bench::new();
    let data = (Medium::Disk, 1, 1);
    let why = |configuration: &Configuration, change: &dyn Fn(&mut experiments::stand::Site)| {
        let mut site = bench.site.clone();
        change(&mut site);
        match Stand::start(&site, &experiment(configuration), configuration).map(|_| ()) {
            Err(Trouble::Unsupported(reason)) => reason,
            other => panic!("{other:?}"),
        }
    };
    let peer = configuration(Place::Uml, ServerKind::Virtiofsd, &[], data);
    assert_eq!(
        why(&peer, &|site| site.programs.virtiofsd = None),
        "virtiofsd was not found: install it or give --virtiofsd PATH"
    );
    let reason = why(&peer, &|site| site.kit.uml = None);
    assert!(reason.contains("cargo xtask lab") && !reason.contains('\n'), "{reason}");
    let ours = configuration(Place::Uml, ServerKind::Qemu9p, &[], data);
    assert!(why(&ours, &|_| ()).contains("needs a QEMU guest"));
    let nothing = configuration(Place::Uml, ServerKind::QemuStorageDaemon, &[], (Medium::None, 1, 1));
    assert!(why(&nothing, &|_| ()).contains("needs data to serve"));
    assert!(why(&configuration(Place::Ssh, ServerKind::VringdDir, &[], data), &|_| ()).contains("--ssh"));
    let mut marked = configuration(Place::Host, ServerKind::None, &[], data);
    marked.unsupported = Some("because".into());
    assert_eq!(why(&marked, &|_| ()), "because");
    if guest::numa::nodes().len() < 2 {
        let mut bound = configuration(Place::Uml, ServerKind::VringdDir, &[], data);
        bound.guest.one_node = true;
        assert_eq!(why(&bound, &|_| ()), "this machine has one NUMA node");
    }
    bench.assert_nothing_left();
}

#[test]
fn several_stands_share_one_image() {
    let bench = Bench::new();
    let load = fio("write", 1, &[("rw", "randwrite"), ("bs", "4k"), ("ioengine", "psync")]);
    let kinds = [
        (Place::Uml, ServerKind::VringdDisk),
        (Place::Uml, ServerKind::QemuStorageDaemon),
        (Place::Uml, ServerKind::VringdScsi),
        (Place::Qemu, ServerKind::QemuVirtioBlk),
        (Place::Qemu, ServerKind::QemuVirtioBlk),
    ];
    let configurations = kinds.map(|(place, kind)| configuration(place, kind, &[], (Medium::Disk, 1, 16)));
    let start = |configuration| Stand::start(&bench.site, &experiment(configuration), configuration).unwrap();
    let mut stands: Vec<Stand> = configurations.iter().map(start).collect();
    for _ in 0..2 {
        for stand in &mut stands {
            check(&stand.measure(&load), 4.0);
        }
    }
    for stand in stands {
        stand.end().unwrap();
    }
    bench.assert_nothing_left();
}
