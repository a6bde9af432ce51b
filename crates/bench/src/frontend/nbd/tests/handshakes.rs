//! What is found behind a socket, and what is said of it.

use std::path::Path;

use super::server::{Manners, Server, greeting, option_reply, say};
use crate::frontend::nbd::spec::{info, option, option_reply as kind};
use crate::frontend::{Connection, Limits, Protocol, Rw, Spec};

fn spec() -> Spec {
    Spec { protocol: Protocol::Nbd, depth: 4, ..Spec::default() }
}

fn open(manners: &Manners, spec: &Spec) -> Result<Limits, String> {
    let server = Server::start(1 << 20, manners);
    let connection = Connection::open(&server.socket(), spec);
    connection.map(|connection| connection.limits()).map_err(|error| error.to_string())
}

fn heard(words: Vec<u8>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    say(&socket, words);
    let error = Connection::open(&socket, &spec()).unwrap_err().to_string();
    error.strip_prefix(&format!("{socket:?}: ")).unwrap_or(&error).to_owned()
}

#[test]
fn the_default_export_is_taken_or_the_only_one() {
    let named = |names: &[&'static str]| open(&Manners { names: names.to_vec(), ..Manners::default() }, &spec());
    assert_eq!(named(&["other", ""]).unwrap().capacity_bytes, 1 << 20);
    assert_eq!(named(&["disk"]).unwrap().capacity_bytes, 1 << 20);
    assert!(named(&[]).unwrap_err().ends_with("the server has no default export and 0 others; serve one"));
    assert!(named(&["a", "b"]).unwrap_err().ends_with("the server has no default export and 2 others; serve one"));
}

#[test]
fn block_sizes_are_the_servers_or_the_portable_ones() {
    let sizes = |sizes| open(&Manners { sizes, ..Manners::default() }, &spec());
    let portable = sizes(None).unwrap();
    assert_eq!((portable.block_bytes, portable.segment_bytes_max), (512, 32 << 20));
    let own = sizes(Some((4096, 8192))).unwrap();
    assert_eq!((own.block_bytes, own.segment_bytes_max), (4096, 8192));
    let coarse = sizes(Some((8192, 8192))).unwrap_err();
    assert!(coarse.starts_with("--bs 4096: not a multiple of the disk's block size, 8192 bytes"), "{coarse}");
    let narrow = sizes(Some((512, 2048))).unwrap_err();
    assert!(narrow.starts_with("--bs 4096: the server takes at most 2048 bytes a request"), "{narrow}");
}

#[test]
fn what_the_disk_does_not_do_is_said_before_it_is_tried() {
    let writes = Spec { rw: Rw::RandWrite, ..spec() };
    let read_only = Manners { flags: 0b111, ..Manners::default() };
    assert!(open(&read_only, &spec()).is_ok());
    assert_eq!(open(&read_only, &writes).unwrap_err(), "the disk is read-only: use --rw read or --rw randread");
    let without_flush = Manners { flags: 1, ..Manners::default() };
    assert!(open(&without_flush, &writes).is_ok());
    for spec in [Spec { sync: true, ..writes.clone() }, Spec { flush_every: 8, ..writes }] {
        let refused = open(&without_flush, &spec).unwrap_err();
        assert_eq!(refused, "the disk has no flush: use neither --sync nor --flush-every");
    }
}

#[test]
fn a_socket_that_is_not_there_is_named() {
    let error = Connection::open(Path::new("/nonexistent/s"), &spec()).unwrap_err();
    assert!(error.is_early());
    let told = error.to_string();
    assert!(told.starts_with("\"/nonexistent/s\": cannot connect: "), "{told}");
    assert!(told.ends_with("; is an NBD server listening there?"), "{told}");
}

#[test]
fn whoever_speaks_something_else_is_no_server() {
    let told = heard(b"HTTP/1.1 400 Bad".to_vec());
    assert_eq!(told, "what is said first is not NBD's (0x485454502f312e31); is an NBD server listening there?");
    let old = [&b"NBDMAGIC"[..], &0x0000_4202_8186_1253_u64.to_be_bytes(), &[0; 152]].concat();
    assert_eq!(heard(old), "the server knows only the old handshake, without options");
    let mut newstyle = greeting();
    newstyle.truncate(16);
    newstyle.extend([0, 2]);
    assert_eq!(heard(newstyle), "the server knows only the old handshake, without options");
    let closed =
        "the server closed the connection during the handshake; does it take as many at once as --queues says?";
    assert_eq!(heard(Vec::new()), closed);
    assert_eq!(heard(greeting()), closed);
}

#[test]
fn an_option_that_is_answered_wrong_ends_the_handshake() {
    let after_greeting = |reply: Vec<u8>| heard([greeting(), reply].concat());
    let go = |kind, data: &[u8]| after_greeting(option_reply(option::GO, kind, data));
    assert_eq!(go(kind::ACK, &[]), "the server does not say how large the disk is");
    let too_few = "option 7 was answered with 9 bytes, which are too few or too many";
    assert_eq!(go(kind::INFO, &[&info::EXPORT.to_be_bytes()[..], &[0; 7]].concat()), too_few);
    assert!(go(kind::INFO, &vec![0; 1 << 16]).contains("answered with 65536 bytes"));
    assert_eq!(
        go(kind::ERR_TLS_REQD, b"no TLS, no disk"),
        "the server refuses option 7: it wants TLS, which is not spoken here; it says \"no TLS, no disk\""
    );
    assert_eq!(go(kind::ERR_UNSUP, b""), "the server refuses option 7: it does not know it");
    assert_eq!(go(kind::ERROR + 99, b""), "the server refuses option 7: error 0x80000063");
    let no_reply = "option 7 was answered by what is no reply to it";
    assert!(go(77, b"").starts_with(no_reply));
    assert!(after_greeting(option_reply(option::LIST, kind::ACK, &[])).starts_with(no_reply));
    assert!(after_greeting(vec![0x5a; 20]).starts_with(no_reply));
    let name = [&99_u32.to_be_bytes()[..], b"short"].concat();
    let listed = [option_reply(option::GO, kind::ERR_UNKNOWN, b""), option_reply(option::LIST, kind::SERVER, &name)];
    assert!(after_greeting(listed.concat()).starts_with("option 3 was answered with 9 bytes"));
}
