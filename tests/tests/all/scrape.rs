//! What answers Prometheus: the script that `share/` has for systemd's socket, in front of a daemon and in front of none.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::vringd;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

/// What a client is sent that sends this.
fn scrape(control: &Path, request: &[u8]) -> Result<String> {
    let program = vringd::program()?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../share/prometheus/vringd-metrics.sh");
    let path = format!("{}:/usr/bin:/bin", program.parent().context("a program has a directory")?.display());
    let mut command = Command::new("/bin/sh");
    command.arg(script).env("PATH", path).env("VRINGD_CONTROL", control);
    let mut answer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    answer.stdin.take().context("it is piped")?.write_all(request)?;
    let answer = answer.wait_with_output()?;
    ensure!(answer.status.success(), "{}", answer.status);
    Ok(String::from_utf8(answer.stdout)?)
}

#[test]
fn a_scrape_has_the_figures_and_nothing_else() -> Result<()> {
    let daemon = Daemon::serve(&format!(
        "[[export]]\nname = 'db'\nsocket = '{DIRECTORY}/db.sock'\nstorage = {{ kind = 'memory', size = '16M' }}\n"
    ))?;
    let control = daemon.path().join("control.sock");
    // Whatever is asked for, also where the end of the request is missing.
    for request in [REQUEST, b"DELETE /v1/exports/db HTTP/1.1\r\n\r\n", b"\0\xff"] {
        let answer = scrape(&control, request)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head ends")?;
        ensure!(head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: application/openmetrics-text;"), "{head}");
        ensure!(body.contains("vringd_export_connected{export=\"db\"} 0\n") && body.ends_with("# EOF\n"), "{body}");
    }
    daemon.export("db")?;
    daemon.stop()
}

#[test]
fn without_a_daemon_a_scrape_fails() -> Result<()> {
    let answer = scrape(&directory()?.path().join("control.sock"), REQUEST)?;
    ensure!(answer == "HTTP/1.0 503 Service Unavailable\r\n\r\n", "{answer}");
    Ok(())
}
