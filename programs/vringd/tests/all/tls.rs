//! TLS as a person asks for it, and what is said of certificates that cannot be used.

use crate::place::{Place, Server};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use testkit::certificates::{ALWAYS, Authority, End};

/// A place with an image, and directories of certificates: one that is as it should be, and others of which each lacks something.
fn place() -> Place {
    let place = Place::of("disk");
    fs::write(place.path("disk.img"), vec![0; 1 << 20]).unwrap();
    let authority = Authority::new("operator");
    for name in ["good", "open", "other", "lonely", "keyless", "damaged", "expired"] {
        let directory = place.path(name);
        fs::create_dir(&directory).unwrap();
        authority.fill(&directory);
    }
    let of = |directory: &str, name: &str| place.path(directory).join(name);
    fs::set_permissions(of("open", "server-key.pem"), Permissions::from_mode(0o644)).unwrap();
    fs::copy(of("good", "server-key.pem"), of("other", "server-key.pem")).unwrap();
    fs::remove_file(of("lonely", "ca-cert.pem")).unwrap();
    fs::remove_file(of("keyless", "server-key.pem")).unwrap();
    fs::write(of("damaged", "server-cert.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    authority.issue(&place.path("expired"), End::Server, 1, (2020, 2021));
    assert_ne!(ALWAYS.1, 2021);
    place
}

#[test]
fn what_is_wrong_is_said_in_one_line_and_changes_nothing() {
    let place = place();
    for (words, parts) in [
        ("--tls-certificates open", &["tls.certificates: open/server-key.pem", "`chmod o= FILE`"][..]),
        (
            "--tls-certificates other",
            &["tls.certificates: other/server-key.pem", "does not belong to", "server-cert.pem"],
        ),
        ("--tls-certificates lonely", &["lonely/ca-cert.pem: is missing", "`tls.clients_may_be_anonymous`"]),
        ("--tls-certificates keyless", &["tls.certificates: keyless/server-key.pem", "No such file"]),
        ("--tls-certificates damaged", &["tls.certificates: damaged/server-cert.pem: is damaged"]),
        ("--tls-certificates nowhere", &["tls.certificates: nowhere/server-cert.pem", "No such file"]),
        ("--tls-certificates disk.img", &["tls.certificates: disk.img/server-cert.pem", "Not a directory"]),
    ] {
        for listen in ["unix:s.nbd", "tcp:0"] {
            place.refused(&format!("--listen {listen} {words} disk.img"), parts);
        }
    }
    place.refused("--socket s.sock --tls-certificates good disk.img", &["tls: ", "goes with `listen`"]);
    let serve = place.and("serve");
    let table = |kind: &str, more: &str| {
        let text = format!("[[export]]\nname = 'vm1'\n{kind}\n{more}\n");
        fs::write(place.path("vringd.toml"), text).unwrap();
    };
    let disk = "listen = 'unix:s.nbd'\nstorage = { kind = 'file', path = 'disk.img' }";
    table(disk, "tls = { certificates = '' }");
    serve.refused("vringd.toml", &["vm1: tls.certificates: is empty"]);
    table(disk, "tls = { certificates = 'good', psk = 'x' }");
    serve.refused("vringd.toml", &["psk", "expected `certificates` or `clients_may_be_anonymous`"]);
    table(disk, "tls = { certificates = 'other' }");
    serve.refused("vringd.toml", &["vm1", "tls.certificates: other/server-key.pem: does not belong to"]);
    table("socket = 's.sock'\nstorage = { kind = 'null', size = '1M' }", "tls = { certificates = 'good' }");
    serve.refused("vringd.toml", &["vm1: tls: ", "goes with `listen`"]);
    let directory = "kind = 'dir'\nlisten = 'unix:s.9p'\ndirectory = { path = '/srv', protocol = '9p' }";
    table(directory, "tls = { certificates = 'good' }");
    serve.refused("vringd.toml", &["vm1: tls: is for disks over NBD"]);
}

/// What a daemon says from its start to its end.
fn said(place: &Place, words: &str) -> Vec<String> {
    let server = Server::start(place, &format!("--control c.sock {words}"));
    let before = server.said_before();
    let ctl = place.and("ctl").run("--control c.sock shutdown");
    assert!(ctl.status.success(), "{}", String::from_utf8_lossy(&ctl.stderr));
    [before, server.ends()].concat()
}

#[test]
fn a_daemon_warns_of_what_clients_will_refuse_and_of_whom_it_lets_in() {
    let place = place();
    let warnings = |words: &str| {
        let said = said(&place, &format!("--listen tcp:0 {words} disk.img"));
        let warnings: Vec<String> = said.into_iter().filter(|line| line.contains("WARN")).collect();
        warnings.join("\n")
    };
    let plain = warnings("");
    assert!(plain.contains("whoever reaches tcp:127.0.0.1:") && plain.contains("nothing is encrypted"), "{plain}");
    let safe = warnings("--tls-certificates good");
    assert!(!safe.contains("whoever") && !safe.contains("expired"), "{safe}");
    let expired = warnings("--tls-certificates expired");
    assert!(expired.contains("expired/server-cert.pem: has expired") && expired.contains("renew it"), "{expired}");
    let anybody = warnings("--tls-certificates lonely --tls-clients-may-be-anonymous");
    assert!(anybody.contains("whoever reaches") && anybody.contains("clients_may_be_anonymous"), "{anybody}");
}
