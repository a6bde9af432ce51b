//! qcow2 images that QEMU and we read and write in turn: of every feature, against a vector, with `qemu-img check` after each turn.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use engine::Solo;
use image::tools::{Backing, CreateOptions, From, SnapshotChange};
use image::{Qcow2Options, tools};
use storage::{Operation, Task};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};
use tests::daemon::Daemon;
use tests::lab::Lab;
use tests::long;
use tests::qemu_img;

const SIZE: usize = 6 << 20;
/// Operations of one turn; more of them by this variable.
const ROUNDS: usize = 40;
const ROUNDS_VARIABLE: &str = "QCOW2_ROUNDS";

/// Contents in pieces: noise, text that compresses, zeroes.
fn contents(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out = vec![0u8; len];
    let mut at = 0;
    while at < len {
        let n = (rng.below(200) as usize * 512).clamp(512, len - at);
        match rng.below(4) {
            0 => out[at..at + n].iter_mut().for_each(|b| *b = rng.word() as u8),
            1 => out[at..at + n].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 64) as u8 | 1),
            _ => {}
        }
        at += n;
    }
    out
}

struct Case {
    name: String,
    opts: String,
    compress: bool,
    backing: Option<&'static str>,
    snapshot: bool,
    prealloc: bool,
}

fn play(lab: &Lab, dir: &Path, case: &Case, rounds: usize, direct: bool) {
    let seed = 0x1234_5678;
    let img = |args: &[&str]| qemu_img::img(lab, args).and_then(qemu_img::Outcome::expect_success).unwrap();
    let mut rng = Rng(seed | 1);
    let size = SIZE;
    let mut oracle = contents(&mut rng, size);
    let p = |n: &str| dir.join(n).display().to_string();
    std::fs::write(p("raw"), &oracle).unwrap();
    let image = p("image.qcow2");
    let mut opts = case.opts.clone();
    if opts.contains("data_file") {
        opts = opts.replace("DATA", &p("data.raw"));
    }
    match case.backing {
        Some(format) => {
            let base = p("base");
            // A backing file that is shorter than the image.
            let base_size = size - (1 << 20) - 512 * 3;
            std::fs::write(p("short"), &oracle[..base_size]).unwrap();
            img(&["convert", "-f", "raw", "-O", format, &p("short"), &base]);
            oracle[base_size..].fill(0);
            img(&["create", "-q", "-f", "qcow2", "-F", format, "-b", &base, "-o", &opts, &image, &size.to_string()]);
        }
        None if case.prealloc => {
            img(&[
                "create",
                "-q",
                "-f",
                "qcow2",
                "-o",
                &format!("{opts},preallocation=metadata"),
                &image,
                &size.to_string(),
            ]);
            oracle.fill(0);
        }
        None => {
            let mut args = vec!["convert", "-f", "raw", "-O", "qcow2", "-o", &opts];
            if case.compress {
                args.push("-c");
            }
            let raw = p("raw");
            args.extend([&raw[..], &image]);
            img(&args);
        }
    }
    if case.snapshot {
        img(&["snapshot", "-c", "one", &image]);
    }
    let at_first = oracle.clone();
    let options = Qcow2Options { direct, table_memory: values::ByteSize(64 << 10), ..Qcow2Options::new(&image) };
    for session in 0..2 {
        let storage = storage::open(&options).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut solo = Solo::new().unwrap();
        assert_eq!(storage.capacity_bytes() as usize, size);
        kit::assert_same(&kit::read(&mut solo, &*storage, 0, size), &oracle, 0);
        let mut task = Task::new();
        for round in 0..rounds {
            let sectors = size as u64 / 512;
            let at = rng.below(sectors);
            let most = [1, 8, 40, 300, 3000][rng.below(5) as usize];
            let n = (1 + rng.below(most)).min(sectors - at);
            let (o, l) = ((at * 512) as usize, (n * 512) as usize);
            match rng.below(12) {
                0..=2 => kit::assert_same(&kit::read(&mut solo, &*storage, o as u64, l), &oracle[o..o + l], o as u64),
                3..=5 => {
                    let fill = (round as u8).wrapping_mul(7) | 1;
                    oracle[o..o + l]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, b)| *b = fill.wrapping_add((i / 512) as u8) | 1);
                    kit::write(&mut solo, &*storage, o as u64, &oracle[o..o + l]).unwrap();
                }
                6 | 7 => {
                    // Together, side by side: many in one cluster.
                    let count = (2 + rng.below(14)).min(n).max(1);
                    let each = n / count;
                    let mut tasks = Vec::new();
                    for k in 0..count {
                        let from = o + (k * each * 512) as usize;
                        let to = from + (each * 512) as usize;
                        if rng.below(5) == 0 {
                            let mut t = Task::new();
                            oracle[from..to].fill(0);
                            t.begin(Operation::WriteZeroes {
                                offset: from as u64,
                                len: each * 512,
                                unmap: k % 2 == 0,
                                durable: false,
                            });
                            tasks.push(t);
                            continue;
                        }
                        let byte = (round as u8).wrapping_add(k as u8) | 1;
                        oracle[from..to].fill(byte);
                        let mut t = Task::new();
                        t.buffers =
                            vec![libc::iovec { iov_base: oracle[from..].as_mut_ptr().cast(), iov_len: to - from }];
                        t.begin(Operation::Write { offset: from as u64, durable: k % 3 == 0 });
                        tasks.push(t);
                    }
                    kit::run_together(&mut solo, &*storage, &mut tasks);
                }
                8 | 9 => {
                    task.begin(Operation::WriteZeroes {
                        offset: o as u64,
                        len: l as u64,
                        unmap: rng.below(2) == 0,
                        durable: rng.below(4) == 0,
                    });
                    kit::run(&mut solo, &*storage, &mut task).unwrap();
                    oracle[o..o + l].fill(0);
                }
                10 => {
                    task.begin(Operation::Discard { offset: o as u64, len: l as u64 });
                    kit::run(&mut solo, &*storage, &mut task).unwrap();
                    let now = kit::read(&mut solo, &*storage, o as u64, l);
                    for (old, new) in oracle[o..].iter_mut().zip(now) {
                        assert!(new == 0 || new == *old, "{}: discard", case.name);
                        *old = new;
                    }
                }
                _ => {
                    task.begin(Operation::Flush);
                    kit::run(&mut solo, &*storage, &mut task).unwrap();
                }
            }
        }
        kit::assert_same(&kit::read(&mut solo, &*storage, 0, size), &oracle, 0);
        drop(storage);
        agree(lab, Path::new(&image)).unwrap_or_else(|error| panic!("{}: session {session}: {error:?}", case.name));
        img(&["convert", "-f", "qcow2", "-O", "raw", &image, &p("back")]);
        kit::assert_same(&std::fs::read(p("back")).unwrap(), &oracle, 0);
        if session == 1 {
            converted(lab, dir, &options, &oracle).unwrap_or_else(|error| panic!("{}: {error:?}", case.name));
        }
        if opts.contains("data_file_raw=on") {
            kit::assert_same(&std::fs::read(p("data.raw")).unwrap(), &oracle, 0);
        }
    }
    if case.snapshot {
        img(&["snapshot", "-a", "one", &image]);
        img(&["convert", "-f", "qcow2", "-O", "raw", &image, &p("back")]);
        kit::assert_same(&std::fs::read(p("back")).unwrap(), &at_first, 0);
        img(&["check", &image]);
    }
}

/// What `qemu-img check` finds.
fn qemus_opinion(lab: &Lab, image: &Path) -> Result<serde_json::Value> {
    let said = qemu_img::img(lab, &["check", "--output=json", &image.display().to_string()])?.output;
    // Findings are told of in words as well.
    let (begin, end) = (said.find("{\n").unwrap_or(0), said.rfind('}').map_or(said.len(), |at| at + 1));
    serde_json::from_str(&said[begin..end]).with_context(|| said.clone())
}

/// An image is sound, by QEMU's opinion and by ours, which agree in what they count.
fn agree(lab: &Lab, image: &Path) -> Result<()> {
    let theirs = qemus_opinion(lab, image)?;
    let ours = tools::check(image, false, true, &mut |_, _| {})?;
    ensure!(ours.sound && ours.leaked_clusters == 0, "{ours:?}");
    ensure!(theirs["check-errors"] == 0, "{theirs}");
    // What there is nothing of is left out.
    let said = |name: &str| theirs[name].as_u64().unwrap_or(0);
    for (name, count) in [
        ("corruptions", ours.problem_count),
        ("leaks", ours.leaked_clusters),
        ("total-clusters", ours.total_clusters),
        ("allocated-clusters", ours.allocated_clusters),
        ("compressed-clusters", ours.compressed_clusters),
        ("image-end-offset", ours.end_bytes),
    ] {
        ensure!(said(name) == count, "{name}: QEMU says {}, and we {count}", said(name));
    }
    Ok(())
}

/// What we copy out of an image, and into another, is what is in it.
fn converted(lab: &Lab, dir: &Path, image: &Qcow2Options, oracle: &[u8]) -> Result<()> {
    let from = From::Qcow2(Qcow2Options { read_only: true, ..image.clone() });
    let (raw, flat) = (dir.join("converted.raw"), dir.join("converted.qcow2"));
    tools::to_raw(&from, &raw, true, &mut |_, _| {})?;
    kit::assert_same(&std::fs::read(&raw)?, oracle, 0);
    let options = CreateOptions { cluster_bytes: 4096, force: true, ..CreateOptions::default() };
    tools::to_qcow2(&from, &flat, &options, None, &mut |_, _| {})?;
    agree(lab, &flat)?;
    let (raw, flat) = (raw.display().to_string(), flat.display().to_string());
    qemu_img::img(lab, &["compare", "-f", "raw", "-F", "qcow2", &raw, &flat])?.expect_success()?;
    Ok(())
}

fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for cluster in ["512", "4k", "64k", "2M"] {
        for bits in [1, 16, 64] {
            for backing in [None, Some("raw"), Some("qcow2")] {
                out.push((format!("cluster_size={cluster},refcount_bits={bits}"), false, backing, false, false));
            }
        }
        out.push((format!("cluster_size={cluster},compat=0.10"), false, None, false, false));
        out.push((format!("cluster_size={cluster},compat=0.10"), true, Some("raw"), false, false));
        out.push((format!("cluster_size={cluster}"), true, None, false, false));
        out.push((format!("cluster_size={cluster},compression_type=zstd"), true, None, false, false));
        out.push((format!("cluster_size={cluster},lazy_refcounts=on"), false, None, false, false));
        out.push((format!("cluster_size={cluster}"), true, None, true, false));
        out.push((format!("cluster_size={cluster},refcount_bits=2"), false, Some("qcow2"), true, false));
        out.push((format!("cluster_size={cluster}"), false, None, false, true));
        out.push((format!("cluster_size={cluster},data_file=DATA"), false, None, false, false));
        out.push((format!("cluster_size={cluster},data_file=DATA,data_file_raw=on"), false, None, false, false));
        out.push((format!("cluster_size={cluster},data_file=DATA"), false, Some("raw"), false, false));
    }
    for cluster in ["16k", "128k", "2M"] {
        for backing in [None, Some("raw")] {
            out.push((format!("cluster_size={cluster},extended_l2=on"), false, backing, false, false));
        }
        out.push((format!("cluster_size={cluster},extended_l2=on"), true, None, false, false));
        out.push((format!("cluster_size={cluster},extended_l2=on"), false, None, true, false));
        out.push((format!("cluster_size={cluster},extended_l2=on"), false, None, false, true));
        out.push((format!("cluster_size={cluster},extended_l2=on,data_file=DATA"), false, None, false, false));
    }
    out.into_iter()
        .map(|(opts, compress, backing, snapshot, prealloc)| Case {
            name: format!("{opts} compress {compress} backing {backing:?} snapshot {snapshot} prealloc {prealloc}"),
            opts,
            compress,
            backing,
            snapshot,
            prealloc,
        })
        .collect()
}

/// By day each of the cases has its turn in one of so many tests, where neither backing files nor clusters are always the same.
const TURNS: usize = 3;

fn all(directory: &Path, direct: bool, turn: usize) {
    let lab = Lab::take_turn();
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for (number, case) in cases().into_iter().enumerate() {
        if !long::is_night() && (number + number / TURNS) % TURNS != turn {
            continue;
        }
        println!("{}", case.name);
        let dir = TempDir::new_in(directory).unwrap();
        play(&lab, dir.path(), &case, rounds, direct);
    }
}

#[test]
fn images_in_memory_agree_with_qemu() {
    all(&kit::shm(), false, 0);
}

#[test]
fn images_on_a_disk_agree_with_qemu() {
    all(&kit::disk(), false, 1);
}

#[test]
fn images_past_the_page_cache_agree_with_qemu() {
    all(&kit::disk(), true, 2);
}

/// An image in a directory, and a daemon that serves it.
fn served(lab: &Lab, directory: &Path, options: &str) -> Result<(PathBuf, Daemon)> {
    let image = directory.join("image.qcow2");
    let path = image.display();
    qemu_img::img(lab, &["create", "-q", "-f", "qcow2", "-o", options, &path.to_string(), "64M"])?.expect_success()?;
    let daemon = Daemon::serve(&format!(
        "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 2\nstorage = {{ kind = 'qcow2', path = '{path}' }}\n",
        directory.join("disk.sock").display()
    ))?;
    Ok((image, daemon))
}

#[test]
fn what_a_killed_daemon_has_answered_is_in_the_image() -> Result<()> {
    let lab = Lab::take_turn();
    for options in ["cluster_size=64k", "cluster_size=4k,refcount_bits=1", "cluster_size=16k,extended_l2=on"] {
        let directory = TempDir::new_in(kit::disk())?;
        let (image, mut daemon) = served(&lab, directory.path(), options)?;
        let socket = directory.path().join("disk.sock");
        let commands = ["write -P 0x11 0 1M", "write -P 0x22 5000k 3k", "write -P 0x33 40M 200k", "write -z 100k 64k"];
        qemu_img::io(&lab, &socket, &commands)?.expect_success()?;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(daemon.id() as i32).expect("a process has an id"),
            rustix::process::Signal::KILL,
        )?;
        daemon.terminate().ok();
        // QEMU finds the leaks that we find, and none when they have been given back.
        let theirs = qemus_opinion(&lab, &image)?;
        let ours = tools::check(&image, true, true, &mut |_, _| {})?;
        ensure!(ours.sound && ours.repaired_clusters > 0, "{options}: {ours:?}");
        ensure!(theirs["leaks"] == ours.repaired_clusters, "{options}: {ours:?} and {theirs}");
        agree(&lab, &image)?;
        let reads = [
            "read -P 0x11 0 100k",
            "read -P 0 100k 64k",
            "read -P 0x11 164k 860k",
            "read -P 0x22 5000k 3k",
            "read -P 0 5003k 5k",
            "read -P 0x33 40M 200k",
        ];
        let output = qemu_img::io_file(&lab, "qcow2", &image, &reads)?.expect_success()?;
        ensure!(!output.contains("failed"), "{options}: {output}");
    }
    Ok(())
}

#[test]
fn an_upgrade_takes_an_image_and_its_chain_along() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("base"), vec![0x77; 1 << 20])?;
    let options = format!("backing_file={},backing_fmt=raw", at("base"));
    let (image, daemon) = served(&lab, directory.path(), &options)?;
    let socket = directory.path().join("disk.sock");
    qemu_img::io(&lab, &socket, &["write -P 0x11 64k 512", "read -P 0x77 0 64k"])?.expect_success()?;
    daemon.upgrade()?;
    let commands = ["read -P 0x11 64k 512", "read -P 0x77 66048 64k", "write -P 0x22 512k 4k", "read -P 0x77 520k 4k"];
    let output = qemu_img::io(&lab, &socket, &commands)?.expect_success()?;
    ensure!(!output.contains("failed"), "{output}");
    daemon.stop()?;
    let check = qemu_img::img(&lab, &["check", &image.display().to_string()])?.expect_success()?;
    ensure!(check.contains("No errors"), "{check}");
    Ok(())
}

/// Images that we make are those that QEMU would make: it finds them sound, and writes to them.
#[test]
fn images_that_we_make_are_qemus_as_well() -> Result<()> {
    let lab = Lab::take_turn();
    for cluster_bytes in [512, 4096, 65_536, 2 << 20] {
        for refcount_bits in [1, 16, 64] {
            let directory = TempDir::new_in(kit::disk())?;
            let (base, image) = (directory.path().join("base"), directory.path().join("image"));
            std::fs::write(&base, vec![0x77; 1 << 20])?;
            let options = CreateOptions {
                size_bytes: Some(24 << 20),
                cluster_bytes,
                refcount_bits,
                subclusters: cluster_bytes > 65_536,
                backing: Some(Backing { name: "base".into(), is_qcow2: false }),
                force: false,
            };
            tools::create(&image, &options)?;
            agree(&lab, &image)?;
            let commands = ["read -P 0x77 0 1M", "read -P 0 1M 1M", "write -P 0x11 300k 5M", "read -P 0x77 0 300k"];
            let output = qemu_img::io_file(&lab, "qcow2", &image, &commands)?.expect_success()?;
            ensure!(!output.contains("failed"), "{options:?}: {output}");
            agree(&lab, &image)?;
            if refcount_bits == 1 {
                // Nothing can be shared.
                continue;
            }
            qemu_img::img(&lab, &["snapshot", "-c", "one", &image.display().to_string()])?.expect_success()?;
            qemu_img::io_file(&lab, "qcow2", &image, &["write -P 0x22 512k 64k"])?.expect_success()?;
            let snapshots = tools::info(&image)?.snapshots;
            ensure!(snapshots.len() == 1 && snapshots[0].name == "one", "{snapshots:?}");
            agree(&lab, &image)?;
        }
    }
    Ok(())
}

/// What reads well and is wrong all the same, by the opinion of both.
#[test]
fn what_qemu_calls_an_error_is_damage() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let path = directory.path().join("image");
    let image = path.display().to_string();
    qemu_img::img(&lab, &["create", "-q", "-f", "qcow2", &image, "1G"])?.expect_success()?;
    qemu_img::img(&lab, &["snapshot", "-c", "one", &image])?.expect_success()?;
    agree(&lab, &path)?;
    let bytes = std::fs::read(&path)?;
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    let mut own = bytes.clone();
    own[word(40) + 8] = 0x80;
    // Without the disk's size, and without what else QEMU says behind it.
    let (mut short, at) = (bytes.clone(), word(64));
    ensure!(bytes[at + 39] == 24);
    short[at + 39] = 8;
    short.copy_within(at + 64..at + 68, at + 48);
    for (what, lying) in [("bit 63 of no table", own), ("a snapshot without a size", short)] {
        std::fs::write(&path, &lying)?;
        ensure!(!qemu_img::img(&lab, &["check", "-f", "qcow2", &image])?.success, "{what}");
        let ours = tools::check(&path, true, true, &mut |_, _| {})?;
        ensure!(!ours.sound && ours.problem_count == 1, "{what}: {ours:?}");
        let take = SnapshotChange::Take { name: "two", at: Duration::ZERO };
        ensure!(tools::change_snapshots(&path, take, &mut |_, _| {}).is_err(), "{what}");
        ensure!(std::fs::read(&path)? == lying, "{what}");
    }
    Ok(())
}

/// Valid bitmaps are used; where the header contradicts their directory somebody may still save them, and nothing is given back.
#[test]
fn bitmaps_are_what_qemu_takes_them_for() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(kit::disk())?;
    let path = directory.path().join("image");
    let image = path.display().to_string();
    qemu_img::img(&lab, &["create", "-q", "-f", "qcow2", &image, "16M"])?.expect_success()?;
    for name in ["one", "two"] {
        qemu_img::img(&lab, &["bitmap", "--add", &image, name])?.expect_success()?;
    }
    qemu_img::io_file(&lab, "qcow2", &path, &["write -P 1 1M 1M"])?.expect_success()?;
    agree(&lab, &path)?;
    ensure!(tools::info(&path)?.bitmaps == 2);
    let mut bytes = std::fs::read(&path)?;
    let extension = 0x2385_2875_u32.to_be_bytes();
    let at = bytes.windows(4).position(|four| four == extension).context("an image with bitmaps has the extension")?;
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    let directory_at = word(at + 24);
    let table_at = word(directory_at);
    let second_at = directory_at + 32;
    ensure!(bytes[directory_at + 24..][..3] == *b"one" && bytes[second_at + 24..][..3] == *b"two");
    // Each a byte, what it becomes, and what is wrong then.
    let lies = [
        (at + 11, 0, "no bitmaps"),
        (at + 11, 1, "one bitmap too few"),
        (at + 11, 3, "one too many"),
        (at + 15, 1, "a reserved field"),
        (at + 30, bytes[at + 30] ^ 2, "a directory that begins at no cluster"),
        (directory_at + 6, bytes[directory_at + 6] ^ 2, "a table that begins at no cluster"),
        (directory_at + 11, 0, "a table without entries"),
        (directory_at + 15, 8, "an unknown flag"),
        (directory_at + 16, 2, "an unknown type"),
        (directory_at + 17, 8, "too fine a granularity"),
        (directory_at + 19, 0, "no name"),
        (table_at + 7, 2, "a reserved bit of an entry"),
        (table_at, 1, "another one"),
    ];
    for (place, byte, what) in lies {
        let mut lying = bytes.clone();
        lying[place] = byte;
        std::fs::write(&path, &lying)?;
        let ours = tools::check(&path, true, true, &mut |_, _| {})?;
        ensure!(!ours.sound && ours.repaired_clusters == 0, "{what}: {ours:?}");
        ensure!(std::fs::read(&path)? == lying, "{what}");
    }
    bytes[second_at + 24..][..3].copy_from_slice(b"one");
    std::fs::write(&path, &bytes)?;
    ensure!(!tools::check(&path, true, true, &mut |_, _| {})?.sound, "two of one name");
    Ok(())
}
