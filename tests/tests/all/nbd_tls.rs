//! Disks over NBD and TLS, by QEMU's client with QEMU's certificates.

use crate::live::{post, wait_job};
use anyhow::{Context, Result, ensure};
use control::model::{Job, JobState};
use serde_json::json;
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use testkit::certificates::{Authority, SERVER_NAME};
use testkit::storage as kit;
use tests::daemon::Daemon;
use tests::lab::Lab;
use tests::qemu_img::{Outcome, img, io_with};

/// Bytes of the disk: not a whole number of records.
const BYTES: usize = (9 << 20) + 512;

/// A directory with content, an image, and the certificates of one authority, or of another that the server does not know.
struct Place {
    directory: TempDir,
    content: Vec<u8>,
}

impl Place {
    fn new() -> Result<Place> {
        let directory = TempDir::new_in(kit::disk())?;
        let (own, foreign) = (directory.path().join("own"), directory.path().join("foreign"));
        let nobody = directory.path().join("nobody");
        for directory in [&own, &foreign, &nobody] {
            fs::create_dir(directory)?;
        }
        let authority = Authority::new("own");
        authority.fill(&own);
        // Of the same name: a client shows no certificate of an authority that the server does not name.
        Authority::new("own").fill(&foreign);
        // Both believe the server. QEMU looks whether it believes its own certificate, too.
        authority.authorize(&nobody);
        let believed = [own.join("ca-cert.pem"), foreign.join("ca-cert.pem")].map(fs::read).into_iter();
        fs::write(foreign.join("ca-cert.pem"), believed.collect::<Result<Vec<_>, _>>()?.concat())?;
        let content: Vec<u8> =
            (0..BYTES).map(|at| if (at >> 18) & 3 == 0 { 0 } else { ((at * 7 / 3) >> 3) as u8 }).collect();
        fs::write(directory.path().join("content"), &content)?;
        fs::write(directory.path().join("disk.raw"), vec![0x5a; BYTES])?;
        Ok(Place { directory, content })
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn serve(&self, listen: &str, more: &str) -> Result<Daemon> {
        let (own, disk) = (self.at("own"), self.at("disk.raw"));
        Daemon::serve(&format!(
            "workers = 2\n[[export]]\nname = 'disk'\nlisten = '{listen}'\ntls = {{ certificates = '{own}'{more} }}\n\
             storage = {{ kind = 'file', path = '{disk}' }}\n"
        ))
    }

    /// The options by which QEMU's tools show the certificate in a directory.
    fn object(&self, certificates: &str) -> String {
        format!("tls-creds-x509,id=tls,endpoint=client,dir={}", self.at(certificates))
    }
}

/// What QEMU calls the disk at the end of a unix socket. Its name is checked, since a path has none.
fn of_socket(socket: &str) -> String {
    format!("driver=nbd,export=disk,server.type=unix,server.path={socket},tls-creds=tls,tls-hostname={SERVER_NAME}")
}

/// Runs `command` of qemu-img with an object, on an image that options describe.
fn img_of(lab: &Lab, command: &str, object: &str, options: &str, more: &[&str]) -> Result<Outcome> {
    img(lab, &[&[command, "--object", object, "--image-opts", options], more].concat())
}

#[test]
fn what_qemu_copies_over_tls_is_the_same() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let (socket, object) = (place.at("disk.nbd"), place.object("own"));
    for listen in [format!("unix:{socket}"), "tcp:0".to_owned()] {
        fs::write(place.at("disk.raw"), vec![0x5a; BYTES])?;
        let daemon = place.serve(&listen, "")?;
        let disk = match daemon.export("disk")?.socket.strip_prefix("tcp:127.0.0.1:") {
            None => of_socket(&socket),
            // Its certificate has this address.
            Some(port) => {
                format!(
                    "driver=nbd,export=disk,server.type=inet,server.host=127.0.0.1,server.port={port},tls-creds=tls"
                )
            }
        };
        let copy =
            ["convert", "-n", "-f", "raw", "--object", &object, "--target-image-opts", &place.at("content"), &disk];
        img(&lab, &copy)?.expect_success()?;
        img_of(&lab, "convert", &object, &disk, &["-O", "raw", &place.at("back")])?.expect_success()?;
        ensure!(fs::read(place.at("back"))? == place.content, "{listen}: it comes back otherwise");
        let commands = ["write -P 7 4k 100k", "write -z 1M 64k", "discard 2M 64k", "flush", "read -P 7 4k 100k"];
        let options = ["--object", &object, "--image-opts", "-d", "unmap"];
        let said = io_with(&lab, &options, &disk, &commands)?.expect_success()?;
        ensure!(!said.contains("failed"), "{said}");
        daemon.stop()?;
        let now = fs::read(place.at("disk.raw"))?;
        ensure!(now[4096..4096 + 102_400].iter().all(|byte| *byte == 7), "{listen}: what was written is not there");
        ensure!(now[3 << 20..] == place.content[3 << 20..], "{listen}: the image holds something else");
    }
    Ok(())
}

#[test]
fn qemu_is_let_in_with_the_right_certificate_alone() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let socket = place.at("disk.nbd");
    let daemon = place.serve(&format!("unix:{socket}"), "")?;
    let refused = |outcome: Outcome| {
        ensure!(!outcome.success, "it was let in: {}", outcome.output);
        Ok(outcome.output)
    };
    let plain = refused(img(&lab, &["info", &format!("nbd+unix:///disk?socket={socket}")])?)?;
    ensure!(plain.contains("TLS negotiation required before option") && plain.contains("tls-creds"), "{plain}");
    ensure!(plain.contains("this server tells and serves nothing without TLS"), "our words are not there: {plain}");
    for (certificates, words) in [("nobody", "peer sent no certificates"), ("foreign", "invalid peer certificate")] {
        let said = refused(img_of(&lab, "info", &place.object(certificates), &of_socket(&socket), &[])?)?;
        ensure!(!said.contains("virtual size"), "{said}");
        let last = daemon.export("disk")?.last_error.unwrap_or_default();
        ensure!(last.contains(words), "{certificates}: {last}; QEMU said {said}");
    }
    let info = img_of(&lab, "info", &place.object("own"), &of_socket(&socket), &[])?.expect_success()?;
    ensure!(info.contains("virtual size: 9 MiB"), "{info}");
    daemon.stop()?;
    // Where a client may be anonymous it still is no plain one.
    let daemon = place.serve(&format!("unix:{socket}"), ", clients_may_be_anonymous = true")?;
    img_of(&lab, "info", &place.object("nobody"), &of_socket(&socket), &[])?.expect_success()?;
    refused(img(&lab, &["info", &format!("nbd+unix:///disk?socket={socket}")])?)?;
    daemon.stop()
}

#[test]
fn the_next_program_knows_the_certificates_and_renewed_ones() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let socket = place.at("disk.nbd");
    let daemon = place.serve(&format!("unix:{socket}"), "")?;
    let reads = |object: &str| {
        let outcome = img_of(&lab, "info", object, &of_socket(&socket), &[])?;
        Ok::<_, anyhow::Error>(outcome.success)
    };
    // The files are gone, and what they held goes along.
    let kept = TempDir::new_in(kit::disk())?;
    let own = |name: &str| Path::new(&place.at("own")).join(name);
    for name in ["server-cert.pem", "server-key.pem"] {
        fs::copy(own(name), kept.path().join(name))?;
        fs::remove_file(own(name))?;
    }
    daemon.upgrade()?;
    ensure!(reads(&place.object("own"))?, "the next program does not know the certificates");
    let output = daemon.output();
    ensure!(output.contains("the certificates from before hold on"), "{output}");
    // Another authority, under the sandbox that the first program has entered.
    Authority::new("renewed").fill(Path::new(&place.at("own")));
    ensure!(reads(&place.object("own"))?, "renewed certificates are not taken: {}", daemon.output());
    ensure!(!reads(&place.object("foreign"))?, "anybody is let in");
    ensure!(daemon.output().contains("renewed certificates hold from now on"), "{}", daemon.output());
    daemon.stop()
}

#[test]
fn a_pull_is_read_over_tls() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    fs::write(place.at("disk.raw"), &place.content)?;
    let daemon = Daemon::serve(&format!(
        "[sandbox]\nallow = ['{}']\n[[disk]]\nname = 'disk'\nstorage = {{ kind = 'file', path = '{}' }}\n",
        place.directory.path().display(),
        place.at("disk.raw")
    ))?;
    let socket = place.at("pull.nbd");
    let pull = |certificates: &str| {
        json!({
            "kind": "pull", "disks": [{ "disk": "disk", "listen": format!("unix:{socket}") }],
            "scratch": place.directory.path(), "tls": { "certificates": certificates },
        })
    };
    let begin = |certificates: &str| post::<Job>(daemon.client(), "/v1/jobs", &pull(certificates));
    let refused = begin(&place.at("nobody")).err().context("a key that is not there")?.to_string();
    ensure!(refused.contains("tls.certificates") && refused.contains("server-cert.pem"), "{refused}");
    let job = begin(&place.at("own"))?;
    wait_job(daemon.client(), job.id, JobState::Ready)?;
    let plain = img(&lab, &["info", &format!("nbd+unix:///disk?socket={socket}")])?;
    ensure!(!plain.success && plain.output.contains("TLS"), "{}", plain.output);
    let object = place.object("own");
    img_of(&lab, "convert", &object, &of_socket(&socket), &["-O", "raw", &place.at("back")])?.expect_success()?;
    ensure!(fs::read(place.at("back"))? == place.content, "it holds something else");
    daemon.stop()
}
