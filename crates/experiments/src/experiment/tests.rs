//! The shipped experiments say what their notes are about, and a file that cannot be run is refused in one line.

mod refusals;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn shipped(name: &str) -> Experiment {
    shipped::find(name).unwrap().unwrap_or_else(|| panic!("{name} is not shipped"))
}

fn labelled<'a>(experiment: &'a Experiment, axis: &str) -> BTreeSet<&'a str> {
    let labels = experiment.configurations.iter().map(|it| &it.labels);
    labels
        .chain(experiment.workloads.iter().map(|it| &it.labels))
        .filter_map(|labels| labels.get(axis))
        .map(String::as_str)
        .collect()
}

fn options(configuration: &Configuration) -> String {
    configuration.server.options.join(" ")
}

fn named<'a>(experiment: &'a Experiment, name: &str) -> &'a Configuration {
    let found = experiment.configurations.iter().find(|it| it.name == name);
    found.unwrap_or_else(|| panic!("{} has no {name}", experiment.name))
}

fn figure(experiment: &Experiment, configuration: &str, workload: &str) -> f64 {
    let figures = &experiment.published.as_ref().unwrap().figures;
    let found = figures.iter().find(|it| it.configuration == configuration && it.workload == workload);
    found.unwrap_or_else(|| panic!("no figure of {configuration} under {workload}")).value
}

#[test]
fn every_shipped_experiment_reads_under_its_name() {
    let names: Vec<String> = shipped::all().unwrap().into_iter().map(|experiment| experiment.name).collect();
    assert_eq!(names, shipped::names().collect::<Vec<_>>());
    let notes = ["thread-pool", "virtiofs-vs-9p", "worker-per-vq", "worker-per-vq-scsi", "vhost-blk", "zvol-threads"];
    for note in notes.into_iter().chain(["pool-or-inline"]) {
        assert!(shipped(note).published.is_some_and(|published| !published.figures.is_empty()), "{note}");
    }
}

#[test]
fn directories_are_compared_under_the_thirty_jobs() {
    let jobs: Vec<Workload> = shipped("thread-pool").workloads;
    assert_eq!(jobs.len(), 30);
    assert_eq!(jobs, shipped("virtiofs-vs-9p").workloads);
    for job in &jobs {
        let has = |option: &str| job.fio.get(option).map(String::as_str);
        let is_libaio = job.name.contains("libaio");
        assert_eq!(has("bs"), Some("4k"));
        assert_eq!((has("direct"), has("iodepth")), if is_libaio { (Some("1"), Some("16")) } else { (None, None) });
        assert_eq!(has("rwmixread").is_some(), job.name.starts_with("randrw"), "{}", job.name);
        assert_eq!(job.files, if job.name.ends_with("-multi") { 4 } else { 1 });
        assert_eq!(has("time_based"), Some("0"), "a second pass would be served by the guest's page cache");
    }
    let engines: BTreeSet<&str> = jobs.iter().filter_map(|job| job.fio.get("ioengine")).map(String::as_str).collect();
    assert_eq!(engines, ["libaio", "mmap", "psync"].into());
    let patterns: BTreeSet<&str> = jobs.iter().filter_map(|job| job.fio.get("rw")).map(String::as_str).collect();
    assert_eq!(patterns, ["randread", "randrw", "randwrite", "read", "write"].into());
}

#[test]
fn a_pool_of_64_stands_against_none() {
    let experiment = shipped("thread-pool");
    assert!(options(named(&experiment, "virtiofsd-pool-64")).contains("--thread-pool-size=64"));
    assert!(options(named(&experiment, "virtiofsd-no-pool")).contains("--thread-pool-size=0"));
    for (name, execution) in [("vringd-pool-64", "pool=64"), ("vringd-auto", "auto"), ("vringd-inline", "inline")] {
        assert!(options(named(&experiment, name)).ends_with(&format!("--execution {execution}")));
    }
    for configuration in &experiment.configurations {
        assert!(matches!(configuration.place, Place::Uml) && options(configuration).contains("auto"));
    }
    // A mixed job is the sum of its reads and writes.
    assert_eq!(figure(&experiment, "virtiofsd-pool-64", "randread-psync"), 54477.0);
    assert_eq!(figure(&experiment, "vringd-pool-64", "randrw-psync"), 27750.0 + 9270.0);
    assert_eq!(figure(&experiment, "virtiofsd-no-pool", "randrw-psync"), 52839.0);
}

#[test]
fn virtio_fs_stands_against_9p_in_every_cache_mode() {
    let experiment = shipped("virtiofs-vs-9p");
    for cache in ["none", "mmap", "loose"] {
        let configuration = named(&experiment, &format!("9p-{cache}"));
        assert_eq!(configuration.server.kind, ServerKind::Qemu9p);
        assert!(configuration.guest.mount.contains(&format!("cache={cache},")), "{}", configuration.guest.mount);
        let ours = named(&experiment, &format!("vringd-9p-{cache}"));
        assert_eq!((ours.server.kind, &ours.guest), (ServerKind::Vringd9p, &configuration.guest));
    }
    for cache in ["never", "auto", "always"] {
        for server in ["virtiofsd", "vringd"] {
            let configuration = named(&experiment, &format!("{server}-{cache}"));
            assert!(options(configuration).contains(cache) && configuration.unsupported.is_none());
        }
        let dax = named(&experiment, &format!("vringd-{cache}-dax"));
        assert!(dax.unsupported.as_deref().is_some_and(|reason| reason.contains("DAX")));
    }
    let bound = experiment.configurations.iter().filter(|it| it.guest.one_node).count();
    assert_eq!(bound, 6);
    // What the note could not run is a figure of 0.
    assert_eq!(figure(&experiment, "vringd-never", "randwrite-mmap"), 0.0);
    assert_eq!(figure(&experiment, "9p-mmap", "randread-psync"), 55091.0);
    assert_eq!(figure(&experiment, "virtiofsd-always-node", "randread-psync"), 84787.0);
}

#[test]
fn servers_of_9p_have_one_guest_and_one_mount() {
    let experiment = shipped("9p");
    let qemu = named(&experiment, "qemu");
    assert_eq!(qemu.server.kind, ServerKind::Qemu9p);
    assert!(qemu.guest.mount.contains("cache=none,msize=512000"), "{}", qemu.guest.mount);
    for execution in ["auto", "inline", "uring", "pool=4"] {
        let ours = named(&experiment, &format!("vringd-{execution}"));
        assert_eq!(options(ours), format!("--execution {execution}"));
        assert_eq!((ours.server.kind, &ours.guest, &ours.data), (ServerKind::Vringd9p, &qemu.guest, &qemu.data));
    }
    let engines = ["filecreate", "filestat", "filedelete"];
    for (what, engine) in ["create", "stat", "unlink"].into_iter().zip(engines) {
        let name = format!("{what}-10000-files");
        let load = experiment.workloads.iter().find(|it| it.name == name).unwrap();
        assert_eq!((load.own_files, load.fio["ioengine"].as_str()), (10_000, engine));
    }
    let quick = experiment.quick();
    assert!(quick.workloads.iter().all(|it| it.own_files <= 300) && quick.configurations.len() == 4);
    let counted: Vec<_> = experiment.configurations.iter().filter(|it| it.guest.instruction_clock).collect();
    let [qemu, ours] = counted[..] else { panic!("{counted:?}") };
    assert_eq!((experiment.baseline_of(ours), &ours.guest, &ours.data), (&*qemu.name, &qemu.guest, &qemu.data));
}

#[test]
fn workers_are_compared_by_number_of_jobs() {
    let experiment = shipped("worker-per-vq");
    assert_eq!(labelled(&experiment, "jobs"), ["1", "2", "4", "8", "12", "16"].into());
    assert_eq!(labelled(&experiment, "batch"), ["1", "16"].into());
    assert_eq!(experiment.configurations.len(), 2 * 2 * 6);
    for (jobs, depth) in [("1", "128"), ("8", "128"), ("12", "85"), ("16", "64")] {
        let configuration = named(&experiment, &format!("per-queue-{jobs}"));
        let load = experiment.workloads[0].for_configuration(configuration).frontend;
        assert_eq!((load["depth"].as_str(), load["queues"].as_str()), (depth, jobs));
        assert_eq!(configuration.guest.queues.to_string(), jobs);
    }
    assert_eq!(figure(&experiment, "one-2", "randrw-batch-1"), 492.0);
    assert_eq!(figure(&experiment, "per-queue-16", "randrw-batch-16"), 2590.0);
}

#[test]
fn workers_of_a_scsi_device_are_compared_in_every_place_and_with_a_reservation() {
    let experiment = shipped("worker-per-vq-scsi");
    assert_eq!(labelled(&experiment, "jobs"), ["1", "2", "4", "8", "12", "16"].into());
    assert_eq!(labelled(&experiment, "place"), ["frontend", "qemu", "uml"].into());
    assert_eq!(labelled(&experiment, "reservation"), ["held", "none"].into());
    assert_eq!(experiment.configurations.len(), (3 * 2 + 1) * 2 * 6);
    assert!(experiment.configurations.iter().all(|it| it.server.kind == ServerKind::VringdScsi));
    for (place, of) in [("frontend", Place::Frontend), ("uml", Place::Uml), ("qemu", Place::Qemu)] {
        for (jobs, depth) in [(1, "128"), (8, "128"), (12, "85"), (16, "64")] {
            let free = named(&experiment, &format!("{place}-per-queue-{jobs}"));
            let held = named(&experiment, &format!("{place}-reserved-per-queue-{jobs}"));
            assert_eq!((free.place, experiment.baseline_of(free)), (of, &*format!("{place}-one-1")));
            // A reservation is all that differs.
            assert_eq!((held.guest.reserve, experiment.baseline_of(held)), (true, &*free.name));
            assert_eq!(Guest { reserve: false, ..held.guest.clone() }, free.guest);
            assert_eq!((&held.server, &held.data, held.place), (&free.server, &free.data, free.place));
            let queues = if place == "uml" { jobs.min(8) } else { jobs };
            assert_eq!((free.guest.queues, free.guest.processors), (queues, u32::from(queues)));
            let [plain, batched] = [0, 1].map(|at| experiment.workloads[at].for_configuration(held));
            assert_eq!((plain.fio["ioengine"].as_str(), plain.fio["iodepth"].as_str()), ("libaio", depth));
            assert!(plain.fio.get("iodepth_batch_submit").is_none_or(String::is_empty));
            assert_eq!((&*batched.fio["ioengine"], &*batched.fio["iodepth_batch_submit"]), ("io_uring", "16"));
            assert_eq!((&batched.fio["numjobs"], &batched.frontend["queues"]), (&jobs.to_string(), &jobs.to_string()));
        }
        assert_eq!(figure(&experiment, &format!("{place}-one-2"), "randrw-batch-1"), 492.0);
        let (most, published) = if place == "uml" { (8, 2436.0) } else { (16, 2590.0) };
        assert_eq!(figure(&experiment, &format!("{place}-per-queue-{most}"), "randrw-batch-16"), published);
    }
    // Guests that are up at once share the image, which a disk in memory does not.
    for configuration in &experiment.configurations {
        assert_eq!(options(configuration).contains("--storage memory"), configuration.name.starts_with("frontend"));
    }
    // The same figures as the experiment with a virtio-blk device, and the same disk that takes its time.
    let blk = shipped("worker-per-vq");
    let of_sim = |it: &Experiment| named(it, "sim-per-queue-16").server.options.clone();
    assert_eq!(of_sim(&experiment), of_sim(&blk));
}

#[test]
fn one_image_is_served_by_everybody() {
    let experiment = shipped("vhost-blk");
    assert_eq!(labelled(&experiment, "queues"), ["1", "2", "4", "8"].into());
    assert_eq!(labelled(&experiment, "rw"), ["randread", "randwrite"].into());
    for medium in ["disk", "memory"] {
        for queues in [1, 2, 4, 8] {
            let places = [
                ("host", Place::Host, ServerKind::None),
                ("qemu", Place::Qemu, ServerKind::QemuVirtioBlk),
                ("storage-daemon", Place::Qemu, ServerKind::QemuStorageDaemon),
                ("vringd-1w", Place::Qemu, ServerKind::VringdDisk),
                ("frontend-storage-daemon", Place::Frontend, ServerKind::QemuStorageDaemon),
                ("frontend-vringd-1w", Place::Frontend, ServerKind::VringdDisk),
            ];
            for (server, place, kind) in places {
                let configuration = named(&experiment, &format!("{medium}-{server}-{queues}"));
                assert_eq!((configuration.place, configuration.server.kind), (place, kind));
                assert_eq!((configuration.guest.queues, configuration.guest.processors), (queues, u32::from(queues)));
                let is_direct = options(configuration).contains("direct");
                assert_eq!(is_direct, medium == "disk" && kind != ServerKind::None, "{}", configuration.name);
                let load = experiment.workloads[0].for_configuration(configuration);
                assert_eq!(load.fio["numjobs"], queues.to_string());
            }
        }
        assert!(options(named(&experiment, &format!("{medium}-vringd-2w-8"))).contains("--workers 2"));
    }
    assert_eq!(figure(&experiment, "disk-host-1", "randread"), 95.8);
    assert_eq!(figure(&experiment, "memory-vringd-2w-8", "randwrite"), 701.0);
}

#[test]
fn synchronous_writes_have_1_to_64_threads() {
    let experiment = shipped("zvol-threads");
    assert_eq!(labelled(&experiment, "threads"), ["1", "2", "4", "8", "16", "32", "64"].into());
    assert_eq!(labelled(&experiment, "device"), ["disk", "sim-0.1ms", "sim-1ms", "sim-5ms"].into());
    assert_eq!(experiment.configurations.len(), 4 * (7 + 1));
    for (device, cost) in [("sim-0.1ms", "100us"), ("sim-1ms", "1ms"), ("sim-5ms", "5ms")] {
        assert!(
            options(named(&experiment, &format!("{device}-32")))
                .contains(&format!("--flush-cost {cost} --execution pool=32"))
        );
    }
    for workload in &experiment.workloads {
        let depth: u32 = workload.frontend["depth"].parse().unwrap();
        assert!(depth >= 64 && workload.frontend["sync"] == "true");
    }
    for device in ["disk", "sim-0.1ms", "sim-1ms", "sim-5ms"] {
        let logged = named(&experiment, &format!("{device}-log"));
        let is_volume = device == "disk";
        assert_eq!((logged.server.has_log(), logged.server.serves_volume()), (true, is_volume), "{device}");
        assert!(options(logged).ends_with("--workers 1") && !logged.labels.contains_key("threads"));
        let threaded = named(&experiment, &format!("{device}-8"));
        assert!(!threaded.server.has_log());
        assert_eq!((experiment.baseline_of(logged), &logged.data), (threaded.name.as_str(), &threaded.data));
    }
    assert_eq!(figure(&experiment, "disk-32", "sync-seqwrite"), 1.5);
}

#[test]
fn clients_commit_in_both_kinds_of_guest() {
    let experiment = shipped("database");
    for (machine, place) in [("uml", Place::Uml), ("qemu", Place::Qemu)] {
        let baseline = format!("{machine}-storage-daemon");
        for (server, has_log) in [("storage-daemon", false), ("vringd", false), ("vringd-log", true)] {
            let configuration = named(&experiment, &format!("{machine}-{server}"));
            assert_eq!((configuration.place, configuration.server.has_log()), (place, has_log));
            assert_eq!(experiment.baseline_of(configuration), baseline);
            assert!(has_log || options(configuration).contains("direct"), "all go around the page cache");
        }
    }
    assert!(experiment.workloads.iter().all(|it| it.fio["sync"] == "dsync" && it.fio["direct"] == "1"));
    let clients: Vec<u64> = experiment.workloads.iter().map(|it| it.fio["numjobs"].parse().unwrap()).collect();
    assert_eq!(clients, [1, 8, 32]);
    // The last client's place must lie on the disk, in a quick run as well.
    let place_mib: u64 = experiment.workloads[0].fio["offset_increment"].trim_end_matches('m').parse().unwrap();
    assert!(place_mib * 32 <= experiment.quick.size_mib);
}

#[test]
fn every_way_to_execute_meets_every_device() {
    let experiment = shipped("pool-or-inline");
    assert_eq!(labelled(&experiment, "execution"), ["inline", "uring", "pool-4", "pool-16", "pool-64"].into());
    assert_eq!(labelled(&experiment, "profile"), ["memory-speed", "nvme", "sata", "spinning", "lun"].into());
    assert_eq!((experiment.configurations.len(), experiment.workloads.len()), (25, 9));
    assert_eq!(experiment.baseline_of(named(&experiment, "lun-pool-4")), "lun-inline");
    assert_eq!(figure(&experiment, "lun-pool-16", "randread-16"), 110694.0);
    assert_eq!(figure(&experiment, "nvme-inline", "randread-1"), 91955.0);
}

#[test]
fn equals_are_equal() {
    let experiment = shipped("equals");
    let [first, second] = &experiment.configurations[..] else { panic!("two") };
    let mut twin = second.clone();
    twin.name.clone_from(&first.name);
    twin.labels.clone_from(&first.labels);
    assert_eq!(*first, twin);
    assert_eq!(experiment.workloads.len(), 20);
}

#[test]
fn a_quick_run_is_one_of_minutes_under_the_same_names() {
    for experiment in shipped::all().unwrap() {
        let quick = experiment.quick();
        assert!(quick.estimate_s() <= 600.0, "{}: {} s", quick.name, quick.estimate_s());
        assert_eq!(quick.rounds, 1);
        let names: BTreeMap<&str, &Configuration> =
            experiment.configurations.iter().map(|it| (it.name.as_str(), it)).collect();
        for configuration in &quick.configurations {
            let mut same = names[configuration.name.as_str()].clone();
            same.data.size_mib = configuration.data.size_mib;
            assert_eq!(*configuration, same);
        }
        // Smaller where a load makes its own files, and the same otherwise.
        let is_there = |workload: &Workload| {
            let as_large = |it: &Workload| Workload { own_files: workload.own_files, ..it.clone() };
            experiment.workloads.iter().any(|it| as_large(it) == *workload && it.own_files >= workload.own_files)
        };
        assert!(quick.workloads.iter().all(is_there));
        assert!(quick.configurations.iter().any(|it| it.name == quick.baseline));
        assert_eq!(quick.quick(), quick, "there is nothing quicker");
    }
}

#[test]
fn an_experiment_survives_its_journal() {
    for experiment in shipped::all().unwrap() {
        let json = serde_json::to_string(&experiment).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&json).unwrap(), experiment);
    }
}

#[test]
fn no_placeholder_reaches_a_load() {
    for experiment in shipped::all().unwrap() {
        for configuration in &experiment.configurations {
            for workload in &experiment.workloads {
                let load = workload.for_configuration(configuration);
                let options = if configuration.place == Place::Frontend { &load.frontend } else { &load.fio };
                assert!(!options.is_empty());
                assert!(options.values().all(|value| !value.is_empty() && !value.contains(['{', '}'])), "{options:?}");
            }
        }
    }
}

#[test]
fn an_option_that_comes_out_empty_is_left_out() {
    let experiment = shipped("worker-per-vq");
    let mut configuration = experiment.configurations[0].clone();
    configuration.values.insert("jobs.depth".into(), String::new());
    let load = experiment.workloads[0].for_configuration(&configuration).frontend;
    assert!(!load.contains_key("depth") && load.contains_key("queues"), "{load:?}");
}

#[test]
fn a_file_finds_its_figures_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    let toml = shipped::toml("zvol-threads").unwrap().replace("zvol-threads.csv", "mine.csv");
    std::fs::write(&path, toml).unwrap();
    let missing = read::open(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(missing.contains("mine.toml: [published] file: mine.csv: ") && missing.lines().count() == 1, "{missing}");
    std::fs::write(
        directory.path().join("mine.csv"),
        "config,workload,value\n8 threads,sequential synchronous writes,2\n",
    )
    .unwrap();
    let experiment = read::open(path.to_str().unwrap()).unwrap();
    assert_eq!(figure(&experiment, "disk-8", "sync-seqwrite"), 2.0);
}

#[test]
fn the_manual_s_example_reads() {
    let manual = include_str!("../../../../docs/experiments.md");
    let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let experiment = read::text("example", example, |name| Err(format!("there is no {name}")))
        .unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<&str> = experiment.configurations.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["virtiofsd", "vringd-never", "vringd-auto"]);
    let load = experiment.workloads[0].for_configuration(&experiment.configurations[1]);
    assert_eq!(load.fio["iodepth"], "1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is lost or doubled in a file, it reads or is refused in one line.
    #[test]
    fn a_damaged_file_is_read_or_refused(which in 0..9_usize, at in 0.0..1.0_f64, length in 0..40_usize, again in any::<bool>()) {
        let toml = shipped::toml(shipped::names().nth(which).unwrap()).unwrap();
        let chars: Vec<char> = toml.chars().collect();
        let start = (at * chars.len() as f64) as usize;
        let end = (start + length).min(chars.len());
        let rest = if again { start } else { end };
        let damaged: String = chars[..end - if again { 0 } else { end - start }].iter().chain(&chars[rest..]).collect();
        if let Err(error) = read::text("f.toml", &damaged, |_| Err("none".into())) {
            let line = error.to_string();
            prop_assert!(line.starts_with("f.toml") && line.lines().count() == 1, "{}", line);
        }
    }
}
