use super::*;
use crate::server::Age;
use libc::{EACCES, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ESTALE};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use secret::SecretError;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;
use testkit::certificates::{ALWAYS, Authority, End};

/// How long a test waits for what takes a moment.
const PATIENCE: Duration = Duration::from_secs(20);

fn about(directory: &Path) -> Tls {
    Tls { certificates: directory.to_owned(), clients_may_be_anonymous: false }
}

/// What the next client is shown.
fn begin(certificates: &Certificates) {
    let (sender, session) = channel();
    certificates.begin(move |session| sender.send(session.map(drop)).unwrap());
    session.recv_timeout(PATIENCE).unwrap().unwrap();
}

fn filled() -> (tempfile::TempDir, Authority) {
    let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new("one"));
    authority.fill(directory.path());
    (directory, authority)
}

fn chain_of(certificates: &Certificates) -> Vec<u8> {
    certificates.lock().files.chain.to_vec()
}

#[test]
fn every_file_at_fault_is_named_with_the_fix() {
    let (directory, authority) = filled();
    let path = directory.path();
    Certificates::read(&about(path)).unwrap();
    let fault = |name: &str, contents: Option<&[u8]>| {
        let file = path.join(name);
        let before = fs::read(&file).ok();
        match contents {
            Some(contents) => fs::write(&file, contents).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let line = Certificates::read(&about(path)).unwrap_err().to_string();
        match before {
            Some(before) => fs::write(&file, before).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        fs::set_permissions(path.join("server-key.pem"), Permissions::from_mode(0o600)).unwrap();
        assert!(line.starts_with(&file.display().to_string()) && !line.contains('\n'), "{line}");
        line
    };
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".as_slice();
    for name in ["server-cert.pem", "server-key.pem"] {
        assert!(fault(name, None).ends_with("cannot be read: No such file or directory (os error 2)"));
    }
    assert!(fault("ca-cert.pem", None).contains("is missing") && fault("ca-cert.pem", None).contains("anonymous"));
    for name in ["server-cert.pem", "ca-cert.pem"] {
        assert!(fault(name, Some(b"nothing")).contains("has no certificate"));
        assert!(fault(name, Some(broken)).contains("is damaged"), "{}", fault(name, Some(broken)));
    }
    assert!(fault("server-key.pem", Some(b"nothing")).contains("has no private key"));
    let encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert!(fault("server-key.pem", Some(encrypted)).contains("without a passphrase"));
    let other = fs::read(path.join("client-key.pem")).unwrap();
    assert!(fault("server-key.pem", Some(&other)).contains("does not belong to the first certificate of"));
    assert!(fault("ca-crl.pem", Some(b"nothing")).contains("is damaged: it has no list"));
    assert!(fault("server-cert.pem", Some(&vec![b'x'; (1 << 20) + 1])).contains("1048577 bytes"));

    fs::set_permissions(path.join("server-key.pem"), Permissions::from_mode(0o644)).unwrap();
    let line = Certificates::read(&about(path)).unwrap_err().to_string();
    assert!(line.contains("server-key.pem: may be read or written by anybody: `chmod o= FILE`"), "{line}");
    fs::set_permissions(path.join("server-key.pem"), Permissions::from_mode(0o640)).unwrap();
    Certificates::read(&about(path)).unwrap();

    // Whoever lets anybody connect needs no authority.
    fs::remove_file(path.join("ca-cert.pem")).unwrap();
    Certificates::read(&Tls { clients_may_be_anonymous: true, ..about(path) }).unwrap();
    drop(authority);
}

#[test]
fn renewed_files_hold_for_the_next_session_and_broken_ones_never() {
    let (directory, authority) = filled();
    let certificates = Certificates::read(&about(directory.path())).unwrap();
    let first = chain_of(&certificates);
    begin(&certificates);
    assert_eq!(chain_of(&certificates), first);

    // One half of them.
    let other = tempfile::tempdir().unwrap();
    authority.issue(other.path(), End::Server, 7, ALWAYS);
    let replace = |name: &str| fs::rename(other.path().join(name), directory.path().join(name)).unwrap();
    let (renewed, before) =
        (fs::read(other.path().join("server-cert.pem")).unwrap(), Arc::as_ptr(&certificates.lock().server));
    replace("server-cert.pem");
    begin(&certificates);
    assert_eq!((chain_of(&certificates), Arc::as_ptr(&certificates.lock().server)), (first, before));
    // And the other.
    replace("server-key.pem");
    begin(&certificates);
    assert_eq!(chain_of(&certificates), renewed);
    // All of them are gone.
    fs::remove_dir_all(directory.path()).unwrap();
    begin(&certificates);
    assert_eq!(chain_of(&certificates), renewed);
}

#[test]
fn what_was_handed_over_holds_where_the_files_are_gone() {
    let (directory, _) = filled();
    let certificates = Certificates::read(&about(directory.path())).unwrap();
    let handed = certificates.hand_over();
    fs::remove_file(directory.path().join("server-key.pem")).unwrap();
    let next = Certificates::adopt(&about(directory.path()), &handed).unwrap();
    begin(&next);
    assert_eq!(chain_of(&next), chain_of(&certificates));
    let line = Certificates::adopt(&about(directory.path()), b"{\"key\":[1,2").unwrap_err().to_string();
    assert_eq!(line, "certificates that were handed over: they are of no known form");
    assert!(!format!("{next:?}").contains("key"), "a secret is shown");
}

#[test]
fn a_certificate_tells_when_it_holds() {
    let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new("one"));
    authority.issue(directory.path(), End::Server, 1, (2020, 2021));
    let chain = CertificateDer::from_pem_slice(&fs::read(directory.path().join("server-cert.pem")).unwrap()).unwrap();
    // 1 January of 2020 and 2021, and in between.
    let (from, to) = (1_577_836_800, 1_609_459_200);
    let age = |now| {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        Age::of(std::slice::from_ref(&chain), now, &ring::default_provider())
    };
    assert_eq!(age(from + 1), Age::Fine);
    assert_eq!(age(to + 86_400), Age::Expired(86_400));
    assert_eq!(age(from - 10), Age::Early(10));
    assert_eq!(Age::of(&[], UnixTime::now(), &ring::default_provider()), Age::Fine);
    // What has expired is served: clients tell.
    authority.authorize(directory.path());
    Certificates::read(&about(directory.path())).unwrap();
}

#[test]
fn two_lists_of_one_authority_are_refused() {
    let (directory, authority) = filled();
    let file = directory.path().join("ca-crl.pem");
    let list = |authority: &Authority, serial| {
        authority.revoke(directory.path(), &[serial]);
        fs::read(&file).unwrap()
    };
    let (old, new, foreign) = (list(&authority, 77), list(&authority, 2), list(&Authority::new("another"), 3));
    for lists in [[&old, &new], [&new, &old], [&new, &new]] {
        fs::write(&file, lists.map(Vec::as_slice).concat()).unwrap();
        let line = Certificates::read(&about(directory.path())).unwrap_err().to_string();
        assert!(line.starts_with(&format!("{}: has two lists of one authority", file.display())), "{line}");
        assert!(line.ends_with("leave the older one out"), "{line}");
    }
    fs::write(&file, [new, foreign].concat()).unwrap();
    Certificates::read(&about(directory.path())).unwrap();
}

#[test]
fn a_list_that_vanishes_holds_on() {
    let (directory, authority) = filled();
    let path = directory.path();
    authority.revoke(path, &[2]);
    let certificates = Certificates::read(&about(path)).unwrap();
    let has_list = |certificates: &Certificates| {
        begin(certificates);
        certificates.lock().files.revoked.is_some()
    };
    let next = Certificates::adopt(&about(path), &certificates.hand_over()).unwrap();
    fs::remove_file(path.join("ca-crl.pem")).unwrap();
    assert!(has_list(&certificates) && has_list(&next));
    // What else is renewed then waits for a list.
    authority.issue(path, End::Server, 9, ALWAYS);
    let before = chain_of(&certificates);
    assert!(has_list(&certificates));
    assert_eq!(chain_of(&certificates), before);
    authority.revoke(path, &[]);
    assert!(has_list(&certificates));
    assert_ne!(chain_of(&certificates), before);
    // Who starts without one wants none.
    fs::remove_file(path.join("ca-crl.pem")).unwrap();
    assert!(!has_list(&Certificates::read(&about(path)).unwrap()));
}

#[test]
fn what_could_not_be_read_for_a_moment_is_read_by_the_next_look() {
    let (directory, authority) = filled();
    let path = directory.path();
    let certificates = Certificates::read(&about(path)).unwrap();
    let has_list = || certificates.lock().files.revoked.is_some();
    let failed = |errno| {
        let source = SecretError::Read(std::io::Error::from_raw_os_error(errno));
        TlsError::Read { path: path.join("ca-crl.pem"), source }
    };
    authority.revoke(path, &[2]);
    certificates.held.renew(|_| Err(failed(EMFILE)));
    assert!(!has_list());
    // Word of it is for this change alone.
    let told = certificates.lock().tried;
    assert!(told.is_some());
    certificates.held.renew(|_| Err(failed(EIO)));
    assert_eq!(certificates.lock().tried, told);
    begin(&certificates);
    assert!(has_list(), "the list never holds");
    // What is the file's own lasts until there is another one.
    assert!([EMFILE, ENFILE, EIO, ENOMEM, ESTALE].into_iter().all(|errno| failed(errno).passes()));
    assert!(![ENOENT, EACCES].into_iter().any(|errno| failed(errno).passes()));
    for source in [SecretError::Kind, SecretError::Public, SecretError::Long { bytes: 2, most: 1 }] {
        assert!(!TlsError::Read { path: path.to_owned(), source }.passes());
    }
}

#[test]
fn files_that_hang_keep_no_session_from_beginning() {
    let (directory, authority) = filled();
    let certificates = Certificates::read(&about(directory.path())).unwrap();
    let first = chain_of(&certificates);
    assert!(!certificates.look_lasts(Duration::ZERO));
    // As a look leaves it that does not come back.
    let mut looks = certificates.held.looks();
    (looks.begun, looks.since) = (1, Some(Instant::now() - Duration::from_secs(60)));
    drop(looks);
    authority.issue(directory.path(), End::Server, 7, ALWAYS);
    begin(&certificates);
    assert!(certificates.held.looks().is_told, "nobody was told");
    begin(&certificates);
    assert_eq!(chain_of(&certificates), first);
    assert!(certificates.look_lasts(Duration::from_secs(59)));
    // It comes back.
    certificates.held.look(Files::read);
    assert!(!certificates.look_lasts(Duration::ZERO));
    begin(&certificates);
    assert_ne!(chain_of(&certificates), first);
    assert!(certificates.held.looks().since.is_none());
    // One that ends by a panic has ended.
    authority.issue(directory.path(), End::Server, 8, ALWAYS);
    let mut looks = certificates.held.looks();
    (looks.begun, looks.since) = (looks.begun + 1, Some(Instant::now()));
    drop(looks);
    thread::scope(|scope| scope.spawn(|| certificates.held.look(|_| panic!("a test"))).join()).unwrap_err();
    assert!(!certificates.look_lasts(Duration::ZERO));
    begin(&certificates);
}

#[test]
fn all_who_wait_share_a_look_and_none_waits_longer_than_its_time() {
    const CLIENTS: usize = 12;
    let (directory, _) = filled();
    let certificates = Arc::new(Certificates::read(&about(directory.path())).unwrap());
    // A look that began before they came, and takes its time.
    let mut looks = certificates.held.looks();
    (looks.begun, looks.since) = (1, Some(Instant::now()));
    drop(looks);
    let (sender, told) = channel();
    let come = || {
        let sender = sender.clone();
        certificates.begin(move |session| sender.send(session.is_ok()).unwrap());
    };
    thread::scope(|scope| {
        scope.spawn(come);
        let by = Instant::now() + PATIENCE;
        while certificates.held.looks().waiting.is_empty() {
            assert!(Instant::now() < by, "nobody waits for a look");
            thread::yield_now();
        }
        // The others are not kept.
        (1..CLIENTS).for_each(|_| come());
        assert_eq!(certificates.held.looks().waiting.len(), CLIENTS);
        assert!(told.try_recv().is_err());
        // What comes then is seen by one more look, for all.
        certificates.held.look(Files::read);
        (0..CLIENTS).for_each(|_| assert!(told.recv_timeout(PATIENCE).unwrap()));
    });
    let looks = certificates.held.looks();
    assert_eq!((looks.begun, looks.ended, looks.is_kept), (2, 2, false));
    drop(looks);
    // One has waited for as long as it does, the look has not.
    let mut looks = certificates.held.looks();
    (looks.begun, looks.since) = (3, Some(Instant::now()));
    let (wanted, sender) = (4, sender.clone());
    let then: Then = Box::new(move |session| sender.send(session.is_ok()).unwrap());
    looks.waiting.push_back(Waiting { wanted, until: Instant::now(), then });
    drop(looks);
    certificates.held.keep();
    assert!(told.try_recv().unwrap());
    assert_eq!(certificates.held.looks().begun, 3);
}

#[test]
fn keys_that_are_used_up_are_not_offered() {
    let suites = crate::server::provider().cipher_suites;
    let names: Vec<_> = suites.iter().map(|suite| format!("{:?}", suite.suite())).collect();
    let expected = [
        "TLS13_AES_256_GCM_SHA384",
        "TLS13_AES_128_GCM_SHA256",
        "TLS13_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ];
    assert_eq!(names, expected);
}
