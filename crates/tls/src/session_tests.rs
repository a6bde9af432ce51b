use super::*;
use crate::Certificates;
use proptest::prelude::*;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, SupportedProtocolVersion};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::LazyLock;
use testkit::certificates::{Authority, SERVER_NAME, client};
use values::Tls;

/// A directory with everything, and another authority's.
struct Place {
    own: tempfile::TempDir,
    foreign: tempfile::TempDir,
    authority: Authority,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let (own, foreign) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, other) = (Authority::new("own"), Authority::new("foreign"));
    authority.fill(own.path());
    other.fill(foreign.path());
    // It believes the server, and is not believed.
    authority.authorize(foreign.path());
    Place { own, foreign, authority }
});

fn certificates(directory: &Path, anonymous: bool) -> Certificates {
    let about = Tls { certificates: directory.to_owned(), clients_may_be_anonymous: anonymous };
    Certificates::read(&about).unwrap()
}

/// Both ends of a connection, by way of vectors.
struct Pair {
    server: Session,
    client: ClientConnection,
}

impl Pair {
    fn new(certificates: &Certificates, config: Arc<ClientConfig>) -> Pair {
        let client = ClientConnection::new(config, SERVER_NAME.try_into().unwrap()).unwrap();
        Pair { server: certificates.session().unwrap(), client }
    }

    fn usual() -> Pair {
        Pair::of_version(&TLS13)
    }

    fn of_version(version: &'static SupportedProtocolVersion) -> Pair {
        let mut pair = Pair::new(&certificates(PLACE.own.path(), false), client(PLACE.own.path(), true, &[version]));
        assert_eq!(pair.shake(), Ok(Shaken::Done));
        pair
    }

    /// What the client says, in pieces of `cut` bytes.
    fn said(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut said).unwrap();
        }
        said
    }

    /// Has the client hear what the server has to say: the data of that.
    fn hear(&mut self) -> Result<Vec<u8>, rustls::Error> {
        let unsent = self.server.unsent().to_vec();
        self.server.sent(unsent.len());
        let (mut left, mut data) = (&unsent[..], Vec::new());
        while !left.is_empty() {
            self.client.read_tls(&mut left).unwrap();
            self.client.process_new_packets()?;
            let mut some = vec![0; 64 << 10];
            while let Ok(bytes @ 1..) = self.client.reader().read(&mut some) {
                data.extend_from_slice(&some[..bytes]);
            }
        }
        Ok(data)
    }

    fn shake(&mut self) -> Result<Shaken, SessionError> {
        let mut last = Shaken::Wants;
        for _ in 0..10 {
            let said = self.said();
            for piece in said.chunks(777) {
                give(&mut self.server, piece);
                last = self.server.shake()?;
            }
            // What the client makes of it, it says next.
            let _ = self.hear();
            if last == Shaken::Done && !self.client.is_handshaking() {
                return Ok(last);
            }
        }
        Ok(last)
    }

    fn open(&mut self) -> Result<Vec<u8>, SessionError> {
        let mut data = Vec::new();
        while self.server.open(&mut |some| data.extend_from_slice(some))? == Opened::Data {}
        Ok(data)
    }
}

fn give(server: &mut Session, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let room = server.room().unwrap();
        let some = room.len().min(bytes.len());
        room[..some].copy_from_slice(&bytes[..some]);
        server.received(some);
        bytes = &bytes[some..];
    }
}

#[test]
fn both_versions_carry_data_both_ways() {
    for version in [&TLS12, &TLS13] {
        let mut pair = Pair::of_version(version);
        let data: Vec<u8> = (0..200_000_usize).map(|at| (at / 7) as u8).collect();
        let (mut left, mut got) = (&data[..], Vec::new());
        while got.len() < data.len() {
            let sealed = pair.server.seal(left).unwrap();
            left = &left[sealed..];
            assert!(!left.is_empty() || pair.server.seal(left) == Ok(0));
            got.extend(pair.hear().unwrap());
        }
        assert!(got == data);

        let (mut written, mut got) = (0, Vec::new());
        while got.len() < data.len() {
            written += pair.client.writer().write(&data[written..]).unwrap();
            let said = pair.said();
            for piece in said.chunks(20_000) {
                give(&mut pair.server, piece);
                got.extend(pair.open().unwrap());
            }
        }
        assert!(got == data);
    }
}

#[test]
fn clients_that_nobody_knows_are_not_let_in_and_hear_why() {
    let certificates = certificates(PLACE.own.path(), false);
    for (directory, shows, words) in [
        (&PLACE.own, false, "peer sent no certificates"),
        (&PLACE.foreign, true, "invalid peer certificate: UnknownIssuer"),
    ] {
        for version in [&TLS12, &TLS13] {
            let mut pair = Pair::new(&certificates, client(directory.path(), shows, &[version]));
            let refusal = pair.shake().unwrap_err().to_string();
            assert_eq!(refusal, format!("TLS: {words}"));
            assert!(matches!(pair.hear(), Err(rustls::Error::AlertReceived(_))), "{version:?} {words}: no alert");
        }
    }
}

#[test]
fn anybody_is_let_in_where_that_is_asked_for() {
    let mut pair = Pair::new(&certificates(PLACE.own.path(), true), client(PLACE.own.path(), false, &[]));
    assert_eq!(pair.shake(), Ok(Shaken::Done));
}

#[test]
fn a_revoked_certificate_is_not_let_in() {
    let directory = tempfile::tempdir().unwrap();
    PLACE.authority.fill(directory.path());
    for (revoked, is_in) in [(&[77][..], true), (&[2], false)] {
        PLACE.authority.revoke(directory.path(), revoked);
        let mut pair = Pair::new(&certificates(directory.path(), false), client(directory.path(), true, &[]));
        let shaken = pair.shake();
        assert_eq!(shaken.is_ok(), is_in, "{shaken:?}");
        assert!(is_in || shaken.unwrap_err().to_string().contains("Revoked"));
    }
}

#[test]
fn a_list_of_revoked_certificates_that_has_expired_lets_nobody_in() {
    let directory = tempfile::tempdir().unwrap();
    PLACE.authority.fill(directory.path());
    PLACE.authority.revoke_until(directory.path(), &[77], 2022);
    let mut pair = Pair::new(&certificates(directory.path(), false), client(directory.path(), true, &[]));
    let refusal = pair.shake().unwrap_err().to_string();
    assert!(refusal.contains("revocation list expired"), "{refusal}");
}

#[test]
fn data_that_was_touched_ends_the_session_with_an_alert() {
    let mut pair = Pair::usual();
    pair.client.writer().write_all(b"whole").unwrap();
    let mut said = pair.said();
    *said.last_mut().unwrap() ^= 1;
    give(&mut pair.server, &said);
    assert_eq!(pair.open(), Err(SessionError::Protocol("cannot decrypt peer's message".into())));
    assert!(!pair.server.unsent().is_empty());
    assert!(matches!(pair.hear(), Err(rustls::Error::AlertReceived(_))));
    // It is over.
    let over = Err(SessionError::Protocol("cannot decrypt peer's message".into()));
    assert_eq!((pair.server.seal(b"more"), pair.server.shake().map(|_| 0)), (over.clone(), over));
    assert_eq!(pair.server.unsent(), b"");
}

#[test]
fn the_end_is_known_from_the_data_before() {
    let mut pair = Pair::usual();
    pair.client.writer().write_all(b"last").unwrap();
    pair.client.send_close_notify();
    let said = pair.said();
    give(&mut pair.server, &said);
    let mut data = Vec::new();
    let mut sink = |some: &[u8]| data.extend_from_slice(some);
    assert_eq!(pair.server.open(&mut sink), Ok(Opened::Data));
    assert_eq!(pair.server.open(&mut sink), Ok(Opened::End));
    assert_eq!(data, b"last");
}

#[test]
fn new_keys_are_taken_between_data_and_while_something_is_sealed() {
    let mut pair = Pair::usual();
    for round in 0..5_u8 {
        pair.client.writer().write_all(&[round; 100]).unwrap();
        pair.client.refresh_traffic_keys().unwrap();
        pair.client.writer().write_all(&[round; 100]).unwrap();
        let said = pair.said();
        // The record of new keys may be there in part.
        for piece in said.chunks(50) {
            give(&mut pair.server, piece);
            let before = pair.server.unsent().len();
            assert_eq!(pair.server.seal(&[round; 10]), Ok(10));
            assert!(pair.server.unsent().len() > before);
        }
        assert_eq!(pair.open().unwrap(), [round; 200]);
        assert_eq!(pair.hear().unwrap(), vec![round; said.len().div_ceil(50) * 10]);
    }
}

#[test]
fn a_handshake_that_never_ends_is_given_up() {
    let mut server = certificates(PLACE.own.path(), false).session().unwrap();
    // A message of the handshake (22) with 60,000 bytes, of which each record has one.
    let mut record = |data: &[u8]| {
        let head = [22, 3, 1, 0, data.len() as u8];
        give(&mut server, &[&head[..], data].concat());
        server.shake()
    };
    assert_eq!(record(&[1, 0, 0xea, 0x60]), Ok(Shaken::Wants));
    let mut server = certificates(PLACE.own.path(), false).session().unwrap();
    let mut ended = None;
    for count in 0..100_000_usize {
        let data = if count == 0 { vec![1, 0, 0xea, 0x60] } else { vec![0] };
        let bytes = [&[22, 3, 1, 0, data.len() as u8][..], &data].concat();
        let room = match server.room() {
            Ok(room) => room,
            Err(error) => {
                ended = Some(error);
                break;
            }
        };
        let some = room.len().min(bytes.len());
        room[..some].copy_from_slice(&bytes[..some]);
        server.received(some);
        if let Err(error) = server.shake() {
            ended = Some(error);
            break;
        }
    }
    assert_eq!(ended, Some(SessionError::LongMessage));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever comes: no panic, and never data.
    #[test]
    fn bytes_of_nobody_are_refused(bytes in proptest::collection::vec(any::<u8>(), 1..2000), looks_right in any::<bool>()) {
        let mut bytes = bytes;
        if looks_right && bytes.len() > 5 {
            let long = (bytes.len() - 5) as u16;
            bytes[..5].copy_from_slice(&[22, 3, 1, (long >> 8) as u8, long as u8]);
        }
        let mut server = certificates(PLACE.own.path(), false).session().unwrap();
        give(&mut server, &bytes);
        prop_assert!(server.shake() != Ok(Shaken::Done));
        prop_assert!(server.open(&mut |_| panic!("data of nobody")).is_err() || server.seal(b"x").is_err());
    }

    /// What comes over a session is what was said, or an end, wherever one bit was turned.
    #[test]
    fn a_bit_that_was_turned_is_noticed(at in 0_usize..3000, bit in 0_u8..8, fragments in any::<bool>()) {
        let mut pair = Pair::usual();
        let parts = if fragments { vec![b"first".to_vec(), b"second".to_vec()] } else { vec![vec![7; 2000]] };
        let (mut said, mut said_first) = (Vec::new(), 0);
        for part in &parts {
            said_first = said.len();
            pair.client.writer().write_all(part).unwrap();
            said.extend(pair.said());
        }
        let at = at % said.len();
        // Type and version of a sealed record say nothing, and nothing protects them.
        prop_assume!(at > 2 && !(said_first..said_first + 3).contains(&at));
        said[at] ^= 1 << bit;
        give(&mut pair.server, &said);
        let mut data = Vec::new();
        let ended = loop {
            match pair.server.open(&mut |some| data.extend_from_slice(some)) {
                Ok(Opened::Data) => {}
                other => break other,
            }
        };
        prop_assert!(data.len() < parts.concat().len(), "{:?}", ended);
        prop_assert!(parts.concat().starts_with(&data));
    }
}

/// Rustls keeps parts of a message where they came, and looks for them there whenever it is asked for anything.
#[test]
fn half_a_message_of_the_session_leaves_room_for_data_that_is_sealed() {
    let mut config = (*client(PLACE.own.path(), true, &[&TLS13])).clone();
    config.enable_secret_extraction = true;
    let mut pair = Pair::new(&certificates(PLACE.own.path(), false), Arc::new(config));
    assert_eq!(pair.shake(), Ok(Shaken::Done));
    let (mut server, client) = (pair.server, pair.client);
    let (mut sequence, ConnectionTrafficSecrets::Aes256Gcm { key, iv }) =
        client.dangerous_extract_secrets().unwrap().tx
    else {
        panic!("another cipher than the first");
    };
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).unwrap());
    // A record as RFC 8446, 5.2 has it: its type lies behind what it holds.
    let mut record = |kind: u8, held: &[u8]| {
        let mut sealed = [held, &[kind]].concat();
        let head = [&[23, 3, 3][..], &(sealed.len() as u16 + 16).to_be_bytes()].concat();
        let mut nonce: [u8; 12] = iv.as_ref().try_into().unwrap();
        nonce[4..].iter_mut().zip(u64::to_be_bytes(sequence)).for_each(|(byte, number)| *byte ^= number);
        sequence += 1;
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(&head), &mut sealed).unwrap();
        [head, sealed].concat()
    };
    // Word of another key (24) without an answer, in two records of messages (22), the second of which comes in pieces.
    let (first, second) = (record(22, &[24, 0, 0]), record(22, &[1, 0]));
    let mut nothing = |_: &[u8]| panic!("data of nobody");
    give(&mut server, &first);
    assert_eq!(server.open(&mut nothing), Ok(Opened::Nothing));
    assert_eq!(server.seal(b"between"), Ok(7));
    for piece in second.chunks(10) {
        give(&mut server, piece);
        assert_eq!(server.seal(b"between"), Ok(7));
        assert_eq!(server.open(&mut nothing), Ok(Opened::Nothing));
        assert_eq!(server.seal(b"between"), Ok(7));
    }
}
