//! The load on disks without a guest, `vringd bench disk`, over NBD, and on SCSI devices. By libblkio many other tests are made of it.
//!
//! Asserted is that every request comes through and every block is right, not how fast.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::daemon::Daemon;
use tests::lab::Lab;
use tests::vringd;

/// Runs it on an image of its own, each contender once, to its end, which has to come by itself.
fn run_over(protocol: &str, words: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.arg("300").arg(vringd::program()?).args(["bench", "disk", "--protocol", protocol]);
    command.args(["--make-image", "16M@/dev/shm", "--rounds", "1", "--ramp", "0", "--json", "-"]).args(words);
    command.output().context("timeout(1) runs vringd")
}

/// Over NBD.
fn run(words: &[&str]) -> Result<Output> {
    run_over("nbd", words)
}

/// Runs it so that every request succeeds, and gives the runs.
fn bench_over(protocol: &str, words: &[&str]) -> Result<Vec<Value>> {
    let output = run_over(protocol, words)?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{words:?}: {}\n{said}", output.status);
    let document: Value = serde_json::from_slice(&output.stdout).context("JSON")?;
    assert_eq!(document["spec"]["protocol"], protocol);
    document["runs"].as_array().cloned().context("runs")
}

/// Over NBD.
fn bench(words: &[&str]) -> Result<Vec<Value>> {
    bench_over("nbd", words)
}

/// Every run completed so many requests.
fn assert_done(runs: &[Value], contenders: &[&str], ops: u64) -> Result<()> {
    let names: Vec<&str> = runs.iter().filter_map(|run| run["contender"].as_str()).collect();
    assert_eq!(names, contenders);
    for run in runs {
        ensure!(run["ops"] == ops && run["errors"] == 0 && run["mismatches"] == 0, "{run:#}");
        ensure!(run["server"].is_object(), "the server was not measured: {run:#}");
    }
    Ok(())
}

#[test]
fn our_server_gives_back_what_was_written_over_nbd() -> Result<()> {
    let mixed = ["--rw", "randrw", "--verify", "--queues", "2", "--depth", "8", "--ops", "2000", "--ours", ""];
    for more in [&[][..], &["--threads", "1"], &["--poll"], &["--bs", "64K"], &["--sync"], &["--idle", "50ms"]] {
        assert_done(&bench(&[&mixed[..], more].concat())?, &["vringd"], 2000).with_context(|| format!("{more:?}"))?;
    }
    Ok(())
}

#[test]
fn a_disk_that_cannot_be_written_is_refused_over_nbd() -> Result<()> {
    let output = run(&["--rw", "randwrite", "--ops", "10", "--ours", "--readonly"])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "a read-only disk was written");
    ensure!(said.contains("the disk is read-only: use --rw read or --rw randread"), "{said}");
    Ok(())
}

#[test]
fn qemus_servers_take_their_turns_over_nbd() -> Result<()> {
    let lab = Lab::take_turn();
    let program = |name: &str| lab.program(name).display().to_string();
    let nbd = format!("{} -k {{socket}} -f raw -t -e 2 {{image}}", program("qemu-nbd"));
    // It calls its export by a name.
    let daemon = format!(
        "{} --blockdev driver=file,node-name=f,filename={{image}} --blockdev driver=raw,node-name=d,file=f \
         --nbd-server addr.type=unix,addr.path={{socket}},max-connections=2 \
         --export type=nbd,id=e,node-name=d,name=disk,writable=on",
        program("qemu-storage-daemon")
    );
    let words = ["--rw", "randrw", "--verify", "--queues", "2", "--depth", "8", "--ops", "1000", "--flush-every", "50"];
    let runs = bench(&[&words[..], &["--against", &nbd, "--against", &daemon]].concat())?;
    assert_done(&runs, &["vringd", "qemu-nbd", "qemu-storage-daemon"], 1000)?;
    ensure!(runs.iter().all(|run| run["flushes"].as_u64() > Some(0)), "{runs:#?}");
    Ok(())
}

/// Every way to wait, with both encodings, to a disk that is not the first of its device.
#[test]
fn our_device_gives_back_what_was_written_over_scsi() -> Result<()> {
    let mixed = [
        &["--rw", "randrw", "--verify", "--queues", "2", "--depth", "8", "--ops", "2000", "--flush-every", "50"][..],
        &["--ours", "", "--against", "blk:vringd", "--lun", "1:300", "--reserve"],
    ]
    .concat();
    let contenders = ["vringd scsi", "vringd scsi, reserved", "vringd blk"];
    for more in [&[][..], &["--threads", "1"], &["--poll"], &["--bs", "64K"]] {
        let runs = bench_over("scsi", &[&mixed[..], more].concat())?;
        assert_done(&runs, &contenders, 2000).with_context(|| format!("{more:?}"))?;
        ensure!(runs.iter().all(|run| run["flushes"].as_u64() > Some(0)), "{runs:#?}");
    }
    let synchronous = ["--rw", "randwrite", "--sync", "--depth", "8", "--ops", "500"];
    assert_done(&bench_over("blk", &synchronous)?, &["vringd"], 500)
}

/// Two workers on two queues, one on both, and each again on one queue alone.
#[test]
fn servers_take_their_turns_on_two_queues_and_on_one() -> Result<()> {
    let words = ["--rw", "randrw", "--queues", "2", "--also-queues", "1", "--depth", "8", "--ops", "2000"];
    let runs = bench_over("scsi", &[&words[..], &["--ours", "--workers 2", "--ours", "--workers 1"]].concat())?;
    let contenders =
        ["vringd --workers 2", "vringd --workers 2, 1 queue", "vringd --workers 1", "vringd --workers 1, 1 queue"];
    assert_done(&runs, &contenders, 2000)
}

/// Its control queue answers what looks like requests of a block device, so that all of them seem to go well.
#[test]
fn a_scsi_device_is_not_taken_for_a_block_device() -> Result<()> {
    let daemon = Daemon::serve(
        "[[disk]]\nname = 'd'\nstorage = { kind = 'memory', size = '16M' }\n[[export]]\nname = 'scsi'\nkind = 'scsi'\n\
         socket = '@DIR@/scsi.sock'\nluns = [{ lun = 0, disk = 'd' }]\n",
    )?;
    let mut command = Command::new("timeout");
    command.arg("60").arg(vringd::program()?).args(["bench", "disk", "--ops", "10", "--socket"]);
    let output = command.arg(daemon.socket("scsi")).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("--protocol scsi"), "{output:?}");
    Ok(())
}

#[test]
fn a_scsi_disk_that_is_not_there_or_cannot_be_written_is_named() -> Result<()> {
    for (words, complaint) in [
        (&["--ours", "--lun 0={image} --readonly"][..], "the disk is read-only: use --rw read or --rw randread"),
        (&["--ours", "--lun 0={image}", "--lun", "5"], "LUN 5: is no disk"),
        (&["--ours", "--lun 0={image}", "--lun", "2:0"], "LUN 2:0: INQUIRY: there is no such target"),
    ] {
        let output = run_over("scsi", &[&["--rw", "randwrite", "--ops", "10"], words].concat())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{words:?}: passed");
        ensure!(said.contains(complaint), "{words:?}: {said}");
    }
    Ok(())
}
