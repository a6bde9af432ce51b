//! Every experiment that is shipped, run end to end in its quick form: real servers, real guests, a page at the end.
//!
//! What is asserted is that everything that this machine has can be measured, not how fast it is.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tests::long;
use tests::vringd;

/// The shortest measurement in which every load does something; what it does first may be slow.
const TIME: [&str; 4] = ["--time", "0.2", "--warm-up", "0"];

fn bench(words: &[&str]) -> Result<Output> {
    Command::new(vringd::program()?).arg("bench").args(words).output().context("vringd starts")
}

/// Runs `name`, quick, with what else is said. Returns its samples and the directory of its results.
fn run(name: &str, words: &[&str]) -> Result<(Vec<Value>, TempDir)> {
    let out = TempDir::new()?;
    let data = TempDir::new()?;
    let memory = TempDir::new_in("/dev/shm")?;
    let place = |directory: &TempDir| directory.path().to_str().map(str::to_owned).context("a path is text");
    let (out_path, data_path, memory_path) = (place(&out)?, place(&data)?, place(&memory)?);
    let mut all = vec!["run", name, "--quick", "--out", &out_path, "--data", &data_path, "--memory", &memory_path];
    if !words.contains(&"--time") {
        all.extend(TIME);
    }
    all.extend(words);
    let output = bench(&all)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{name}: {}\n{said}", output.status);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(shown.contains("QUICK"), "a quick run is not called one:\n{shown}");
    for directory in [data, memory] {
        ensure!(fs::read_dir(directory.path())?.next().is_none(), "data was left in {}", directory.path().display());
    }
    Ok((samples(&out.path().join(name))?, out))
}

fn samples(directory: &Path) -> Result<Vec<Value>> {
    let journal = fs::read_to_string(directory.join("journal.jsonl"))?;
    journal.lines().skip(1).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// All of it was measured, and each did something; but for what says that it cannot be had here.
fn assert_measured(name: &str, samples: &[Value]) -> Result<()> {
    let mut measured = 0;
    for sample in samples {
        match sample["outcome"].as_str() {
            Some("measured") => {
                ensure!(sample["iops"].as_f64() > Some(0.0), "{name}: {sample}");
                measured += 1;
            }
            Some("unsupported") => {
                let reason = sample["reason"].as_str().unwrap_or_default();
                ensure!(reason.contains("DAX") || reason.contains("NUMA"), "{name}: {sample}");
            }
            _ => anyhow::bail!("{name}: {sample}"),
        }
    }
    ensure!(measured > 0, "{name}: nothing was measured");
    Ok(())
}

fn smoke(name: &str, words: &[&str]) -> Result<()> {
    let (samples, out) = run(name, words)?;
    assert_measured(name, &samples)?;
    for file in ["report.html", "results.json", "results.csv", "summary.csv"] {
        let text = fs::read_to_string(out.path().join(file)).with_context(|| file.to_owned())?;
        ensure!(text.contains(name), "{file} does not know {name}");
    }
    Ok(())
}

/// Configurations for a day, of each kind one: a guest without KVM takes its time, and some have it three times over. At night
/// there is time for `night`.
fn by_day<'a>(day: &[&'a str], night: &[&'a str]) -> Vec<&'a str> {
    let only = if long::is_night() { night } else { day };
    only.iter().flat_map(|name| ["--only", *name]).collect()
}

#[test]
fn thread_pool() -> Result<()> {
    smoke("thread-pool", &["--workload", "randread-psync-multi", "--workload", "randwrite-libaio"])
}

#[test]
fn virtiofs_vs_9p() -> Result<()> {
    // QEMU's own server is another experiment's too, and directories of vringd in QEMU are every day's.
    let only = by_day(&["vringd-9p-loose", "virtiofsd-auto"], &["9p-loose", "virtiofsd-auto", "vringd-auto"]);
    smoke("virtiofs-vs-9p", &[&only[..], &["--workload", "randread-psync-multi"]].concat())
}

#[test]
fn nine_p() -> Result<()> {
    // Both servers, and both clocks.
    let only = by_day(&["vringd-auto", "qemu-counted"], &[]);
    smoke("9p", &[&only[..], &["--workload", "create-10000-files"]].concat())
}

#[test]
fn worker_per_vq() -> Result<()> {
    smoke("worker-per-vq", &[])
}

#[test]
fn worker_per_vq_scsi() -> Result<()> {
    // Every place, with a reservation and without; by day in the guests two queues of a worker each are enough.
    let day = ["frontend", "sim", "uml-per-queue-4", "qemu-reserved-per-queue-4"];
    smoke("worker-per-vq-scsi", &by_day(&day, &["frontend", "sim", "uml", "qemu"]))
}

#[test]
fn vhost_blk() -> Result<()> {
    // One queue of everything: how qemu-storage-daemon fares with more of them depends on its version.
    let day = [
        "disk-host-1",
        "memory-qemu-1",
        "disk-storage-daemon-1",
        "memory-vringd-1w-1",
        "disk-frontend",
        "memory-frontend",
    ];
    let only = by_day(&day, &["host-1", "qemu-1", "daemon-1", "vringd-1w-1"]);
    smoke("vhost-blk", &[&only[..], &["--workload", "randread"]].concat())
}

#[test]
fn zvol_threads() -> Result<()> {
    // A synchronous write to a disk that others use takes as long as that does.
    smoke("zvol-threads", &["--time", "1", "--warm-up", "0"])
}

#[test]
fn database() -> Result<()> {
    smoke("database", &["--only", "uml", "--workload", "clients-8"])
}

#[test]
fn pool_or_inline() -> Result<()> {
    smoke("pool-or-inline", &["--workload", "randread"])
}

#[test]
fn equals() -> Result<()> {
    smoke("equals", &[])
}

#[test]
fn a_peer_that_cannot_be_started_is_a_column_and_the_run_goes_on() -> Result<()> {
    let words = ["--virtiofsd", "/nonexistent/virtiofsd", "--only", "auto", "--workload", "randread-psync"];
    let (samples, _out) = run("thread-pool", &words)?;
    let outcome = |start: &str| -> Vec<&str> {
        let of =
            samples.iter().filter(|sample| sample["configuration"].as_str().is_some_and(|it| it.starts_with(start)));
        of.filter_map(|sample| sample["outcome"].as_str()).collect()
    };
    assert!(
        !outcome("virtiofsd").is_empty() && outcome("virtiofsd").iter().all(|it| *it == "unsupported"),
        "{samples:?}"
    );
    assert!(!outcome("vringd").is_empty() && outcome("vringd").iter().all(|it| *it == "measured"), "{samples:?}");
    let reason = samples.iter().find_map(|sample| sample["reason"].as_str()).unwrap_or_default();
    assert!(reason.contains("/nonexistent/virtiofsd") && !reason.contains('\n'), "{reason}");
    Ok(())
}

#[test]
fn a_run_that_is_there_is_resumed_or_refused_and_two_runs_are_compared() -> Result<()> {
    let words = ["--workload", "randread-4K-32"];
    let (before, out) = run("equals", &words)?;
    let path = out.path().to_str().context("a path is text")?;
    let again = |more: &[&str]| {
        let all = [&["run", "equals", "--quick", "--out", path], &TIME[..], &words, more].concat();
        bench(&all)
    };
    let refused = again(&[])?;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--resume"), "{refused:?}");
    assert!(again(&["--resume"])?.status.success());
    assert_eq!(samples(&out.path().join("equals"))?, before, "what was measured is not measured again");
    let compared = bench(&["report", path, path])?;
    assert!(compared.status.success(), "{compared:?}");
    assert!(String::from_utf8_lossy(&compared.stdout).contains("equals"), "{compared:?}");
    Ok(())
}

/// As with `vringd bench list | head -1`.
#[test]
fn a_list_that_nobody_reads_to_its_end_is_no_failure() -> Result<()> {
    for words in [&["list"][..], &["list", "zvol-threads"], &["list", "zvol-threads", "--toml"], &["list", "--json"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = Command::new(vringd::program()?);
        let output =
            command.arg("bench").args(words).stdout(writer).stderr(Stdio::piped()).spawn()?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{words:?}: {said}");
    }
    Ok(())
}

/// Of two that lay data out in one place, the second found the images of the first in use, and removed them.
#[test]
fn a_run_waits_for_another_one_that_lays_data_out_in_the_same_place() -> Result<()> {
    let memory = TempDir::new_in("/dev/shm")?;
    let data = TempDir::new()?;
    let out = TempDir::new()?;
    let root = memory.path().join("vringd-bench-data");
    fs::create_dir(&root)?;
    let another = File::open(&root)?;
    another.lock()?;
    let mut run = Command::new(vringd::program()?)
        .args(["bench", "run", "worker-per-vq", "--quick", "--only", "one-1"])
        .args(TIME)
        .arg("--out")
        .arg(out.path())
        .arg("--data")
        .arg(data.path())
        .arg("--memory")
        .arg(memory.path())
        .stderr(Stdio::piped())
        .spawn()
        .context("vringd starts")?;
    let mut said = BufReader::new(run.stderr.take().context("standard error")?).lines();
    let waits = said.by_ref().find(|line| line.as_ref().is_ok_and(|line| line.contains("waiting for another run")));
    let line = waits.context("it does not wait")??;
    assert!(line.contains(&*root.to_string_lossy()) && line.contains("--memory"), "{line}");
    assert_eq!(fs::read_dir(&root)?.count(), 0, "data is laid out before the other run has ended");
    fs::remove_dir(&root)?;
    drop(another);
    for line in said {
        println!("{}", line?);
    }
    assert!(run.wait()?.success());
    assert!(!root.exists());
    Ok(())
}

#[test]
fn what_is_wrong_is_said_in_a_line() -> Result<()> {
    let wrong: [(&[&str], &str); 6] = [
        (&["run", "nonsense"], "nonsense"),
        (&["run", "equals", "--only", "nobody"], "--only nobody"),
        (&["run", "equals", "--workload", "nothing"], "--workload nothing"),
        (&["run", "equals", "--data", "/nonexistent"], "--data /nonexistent"),
        (&["run", "equals", "--warm-up", "601"], "--warm-up 601"),
        (&["report", "/nonexistent"], "/nonexistent"),
    ];
    for (words, expected) in wrong {
        let output = bench(words)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(expected) && said.trim().lines().count() == 1, "{words:?}: {said}");
    }
    Ok(())
}
