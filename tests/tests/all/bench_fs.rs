//! The load on directories without a guest, `vringd bench fs`, in every protocol and over every transport.
//!
//! Asserted is that every job comes through with every reply checked, not how fast. What is checked by the load is
//! told apart from it where the load itself is tested, in `crates/bench`.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::lab::Lab;
use tests::vringd;

/// Jobs that FUSE has and 9P has not.
const FUSE_ONLY: [&str; 2] = ["readdirplus", "readdirplus-cold"];

/// Runs it on a small directory in its shortest form, to its end, which has to come by itself.
fn run(words: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.arg("300").arg(vringd::program()?);
    command.args(["bench", "fs", "--rounds", "1", "--seconds", "20ms", "--ramp", "0", "--syscalls", "none"]);
    command.args(["--file-size", "2M", "--entries", "700", "--json", "-"]).args(words);
    command.output().context("timeout(1) runs vringd")
}

/// Runs it so that every request succeeds, and gives what it wrote.
fn bench(words: &[&str]) -> Result<Value> {
    let output = run(words)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words:?}: {}\n{said}\n{}", output.status, tail(&output.stdout));
    serde_json::from_slice(&output.stdout).context("JSON")
}

/// Who ran a job, in order.
fn contenders(job: &Value) -> Vec<&str> {
    job["runs"].as_array().into_iter().flatten().filter_map(|run| run["contender"].as_str()).collect()
}

fn tail(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let failed: Vec<&str> = text.lines().filter(|line| line.contains("error")).collect();
    failed.join("\n")
}

fn jobs(document: &Value) -> Vec<&str> {
    document["jobs"].as_array().into_iter().flatten().filter_map(|job| job["job"].as_str()).collect()
}

/// Every job of a protocol, with reads and writes that take four messages and a bit, and several queues or connections.
#[test]
fn every_job_comes_through_in_every_protocol() -> Result<()> {
    let common = ["--all", "--bs", "64K", "--msize", "16K", "--queues", "2", "--depth", "4", "--protocol"];
    let all = bench(&[&common[..], &["virtiofs"]].concat())?;
    ensure!(all["servers"]["vringd"]["fuse"]["minor"].is_u64(), "{:#}", all["servers"]);
    let mut wanted = jobs(&all);
    ensure!(FUSE_ONLY.iter().all(|job| wanted.contains(job)), "{wanted:?}");
    wanted.retain(|job| !FUSE_ONLY.contains(job));
    for protocol in ["9p", "9p+unix", "9p+tcp"] {
        let document = bench(&[&common[..], &[protocol]].concat())?;
        assert_eq!(jobs(&document), wanted, "{protocol}");
        let mounted = &document["servers"]["vringd"];
        assert_eq!(mounted["9p"]["msize"], 16384, "{protocol}: {mounted:#}");
        assert_eq!(mounted["9p"]["has_at"], true, "{protocol}: {mounted:#}");
        assert_eq!(mounted["queues"], 2, "{protocol}: {mounted:#}");
    }
    Ok(())
}

/// Our two protocols in turn, in each execution, with the largest message.
#[test]
fn servers_of_different_protocols_take_turns() -> Result<()> {
    for execution in ["inline", "uring", "pool=2", "auto"] {
        let document = bench(&[
            "--protocol",
            "9p",
            "--against",
            "virtiofs:vringd",
            "--against",
            "9p+unix:vringd",
            "--execution",
            execution,
            "--job",
            "read-rand",
            "--job",
            "write-seq",
            "--bs",
            "1M",
            "--depth",
            "2",
        ])?;
        for job in document["jobs"].as_array().context("jobs")? {
            assert_eq!(contenders(job), ["vringd 9p", "vringd virtiofs", "vringd 9p+unix"], "{execution}: {job:#}");
        }
        assert_eq!(document["servers"]["vringd 9p"]["9p"]["msize"], 1 << 20, "{execution}");
    }
    Ok(())
}

/// QEMU's own 9p server on the same jobs, with no guest around it, beside ours in both protocols; and diod, where this
/// machine has it, which the lab has not.
#[test]
fn qemu_and_diod_take_their_turns() -> Result<()> {
    let lab = Lab::locate()?;
    let qemu = format!("qemu={}", lab.kit().qemu()?.display());
    let mut words = vec!["--protocol", "9p", "--all", "--bs", "64K", "--msize", "16K", "--depth", "4"];
    words.extend(["--against", qemu.as_str(), "--against", "virtiofs:vringd"]);
    let mut names = vec!["vringd 9p", "qemu 9p", "vringd virtiofs"];
    if Path::new("/usr/sbin/diod").exists() {
        words.extend(["--against", "diod"]);
        names.push("diod 9p+unix");
    } else {
        println!("diod is not here");
    }
    let document = bench(&words)?;
    let done = document["jobs"].as_array().context("jobs")?;
    ensure!(done.len() > 10, "{:?}", jobs(&document));
    for job in done {
        assert_eq!(contenders(job), names, "{job:#}");
    }
    let mounted = &document["servers"]["qemu 9p"];
    assert_eq!(mounted["9p"]["msize"], 16384, "{mounted:#}");
    assert_eq!(mounted["queues"], 1, "{mounted:#}");
    ensure!(mounted["qtest"]["round_trip_ns"].as_u64() > Some(0), "{mounted:#}");
    assert_eq!(document["spec"]["poll"], true, "nobody sleeps where one cannot");
    Ok(())
}

/// As many requests as QEMU's queue holds, the longest messages, and no EVENT_IDX.
#[test]
fn qemu_is_driven_with_a_full_queue_and_long_messages() -> Result<()> {
    let qemu = format!("qemu={}", Lab::locate()?.kit().qemu()?.display());
    let common =
        ["--protocol", "9p", "--alone", "--against", qemu.as_str(), "--depth", "32", "--bs", "1M", "--msize", "500K"];
    for more in [&[][..], &["--no-event-idx"]] {
        let document = bench(&[&common[..], &["--job", "read-seq", "--job", "write-rand"], more].concat())?;
        assert_eq!(jobs(&document), ["read-seq", "write-rand"]);
        assert_eq!(document["servers"]["qemu"]["9p"]["msize"], 512_000);
    }
    Ok(())
}

#[test]
fn a_qemu_that_is_missing_or_fails_is_named_with_the_reason() -> Result<()> {
    for (peer, reason) in [("qemu=/nonexistent/qemu", "is it installed?"), ("qemu=/bin/false", "ended")] {
        let output = run(&["--protocol", "9p", "--alone", "--against", peer])?;
        assert_eq!(output.status.code(), Some(1), "{peer}");
        let document: Value = serde_json::from_slice(&output.stdout).context("JSON")?;
        let failure = &document["jobs"][0]["failures"][0];
        assert_eq!(failure["contender"], "qemu", "{failure:#}");
        let error = failure["error"].as_str().context("a reason")?;
        ensure!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
    Ok(())
}

#[test]
fn a_job_that_a_protocol_has_not_is_refused_by_name() -> Result<()> {
    let mut command = Command::new(vringd::program()?);
    command.args(["bench", "fs", "--protocol", "9p", "--job", "readdirplus"]);
    let output = command.output().context("vringd starts")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("--job readdirplus"), "{said}");
    Ok(())
}
