//! One disk behind two SCSI devices of a daemon, under the load of `vringd bench disk`: who has reserved it keeps the other out, also
//! behind a live upgrade.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use tests::daemon::Daemon;
use tests::vringd;

const CONFIG: &str = "
[[disk]]
name = 'quorum'
storage = { kind = 'memory', size = '16M' }
shared = true

[[export]]
name = 'node1'
kind = 'scsi'
socket = '@DIR@/node1.sock'
luns = [{ lun = 0, disk = 'quorum' }]

[[export]]
name = 'node2'
kind = 'scsi'
socket = '@DIR@/node2.sock'
luns = [{ lun = '1:7', disk = 'quorum' }]
";

/// Runs a load of a thousand requests on one of them.
fn load(daemon: &Daemon, export: &str, words: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.arg("120").arg(vringd::program()?).args(["bench", "disk", "--protocol", "scsi", "--ops", "1000"]);
    command.arg("--socket").arg(daemon.socket(export)).args(words);
    command.output().context("timeout(1) runs vringd")
}

fn done(daemon: &Daemon, export: &str, words: &[&str]) -> Result<()> {
    let output = load(daemon, export, words)?;
    ensure!(output.status.success(), "{export} {words:?}: {output:?}; the daemon said:\n{}", daemon.output());
    Ok(())
}

fn refused(daemon: &Daemon, export: &str, words: &[&str]) -> Result<()> {
    let output = load(daemon, export, words)?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(!output.status.success(), "{export} {words:?}: {output:?}");
    // EBADE is what Linux makes of RESERVATION CONFLICT.
    ensure!(said.contains("Invalid exchange"), "{said}\n{output:?}");
    Ok(())
}

#[test]
fn who_has_reserved_it_keeps_the_other_out_behind_an_upgrade_too() -> Result<()> {
    let daemon = Daemon::serve(CONFIG)?;
    let there = ["--lun", "1:7"];
    let write = ["--rw", "randwrite"];
    done(&daemon, "node1", &write)?;
    done(&daemon, "node2", &[&there[..], &write].concat())?;
    // Write Exclusive, which is left behind.
    done(&daemon, "node1", &[&write[..], &["--reserve"]].concat())?;
    for is_upgraded in [false, true] {
        if is_upgraded {
            daemon.upgrade()?;
        }
        refused(&daemon, "node2", &[&there[..], &write].concat())?;
        done(&daemon, "node2", &[&there[..], &["--rw", "randread"]].concat())?;
        done(&daemon, "node1", &write)?;
    }
    Ok(())
}
