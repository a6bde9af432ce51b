//! Options of an NBD client in any order, with TLS and without.

use super::clients::Offer;
use super::handshake::{Agreed, Next, Protection, haggle};
use device::nbd::spec::{magic, option, option_reply_type as reply};
use device::nbd::{Terms, spec};

/// A name that nobody must hear before TLS.
const NAME: &str = "the export's name";
/// Bytes of a reply's header: magic number, option, type, length.
const HEADER_BYTES: usize = 20;

/// Answers options, made of any bytes, and returns how many replies there were. Layout of `data`: protection (1: bit 0 has TLS come
/// first, bit 1 leaves zeroes out), options: number (1), length (1), data.
///
/// # Panics
/// When something is told or agreed on before TLS that has to wait for it, or is kept behind it; that is what the fuzzer looks for.
pub fn nbd_handshake(data: &[u8]) -> usize {
    let Some((&begin, mut rest)) = data.split_first() else {
        return 0;
    };
    let offer = offer();
    let protection = if begin & 1 == 0 { Protection::Absent } else { Protection::Required };
    let mut agreed = Agreed { no_zeroes: begin & 2 != 0, protection, ..Agreed::default() };
    let mut count = 0;
    while let [number, bytes, more @ ..] = rest {
        let (data, behind) = more.split_at(usize::from(*bytes).min(more.len()));
        rest = behind;
        let number = u32::from(*number);
        let header = [&magic::OPTION.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes()];
        let message = [&header.concat()[..], data].concat();
        let (before, mut out) = (agreed, Vec::new());
        let next = haggle(&message, NAME, &offer, &mut agreed, &mut out);
        let kinds = kinds(&out, number, &next);
        count += kinds.len();
        assert_next(number, (&before, &agreed), (&next, &kinds), &out);
        if !matches!(next, Next::Option | Next::Tls) {
            break;
        }
    }
    count
}

fn assert_next(number: u32, (before, agreed): (&Agreed, &Agreed), (next, kinds): (&Next, &[u32]), out: &[u8]) {
    match before.protection {
        Protection::Required => {
            assert!(!out.windows(NAME.len()).any(|told| told == NAME.as_bytes()), "the name is told without TLS");
            assert_ne!(*next, Next::Requests, "served without TLS");
            let legal = match number {
                option::STARTTLS => [reply::ACK, reply::ERR_INVALID],
                option::ABORT => [reply::ACK, reply::ACK],
                _ => [reply::ERR_TLS_REQD, reply::ERR_TLS_REQD],
            };
            assert!(kinds.iter().all(|kind| legal.contains(kind)), "{number}: {kinds:?}");
            let begun = Agreed { no_zeroes: before.no_zeroes, protection: Protection::Begun, ..Agreed::default() };
            let wanted = if *next == Next::Tls { begun } else { *before };
            assert_eq!(*agreed, wanted, "something was agreed on without TLS, or is kept behind it");
        }
        other => {
            assert_ne!(*next, Next::Tls, "TLS begins where it is not offered, or twice");
            assert_eq!(agreed.protection, other);
            assert!(number != option::STARTTLS || kinds.iter().all(|kind| kind & reply::ERROR != 0), "{kinds:?}");
        }
    }
}

/// Types of replies, each of which is whole and to this option.
fn kinds(mut out: &[u8], number: u32, next: &Next) -> Vec<u32> {
    let mut kinds = Vec::new();
    if number == option::EXPORT_NAME && *next == Next::Requests {
        // It has a reply without a header.
        return kinds;
    }
    while let Some((header, rest)) = out.split_first_chunk::<HEADER_BYTES>() {
        let [option, kind, bytes] =
            [8, 12, 16].map(|at| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
        assert_eq!((&header[..8], option), (&magic::OPTION_REPLY.to_be_bytes()[..], number));
        kinds.push(kind);
        out = rest.get(bytes as usize..).expect("a reply is whole");
    }
    assert!(out.is_empty(), "a piece of a reply");
    kinds
}

fn offer() -> Offer {
    let terms = Terms {
        size_bytes: 1 << 20,
        block_bytes: 512,
        read_only: false,
        trim: true,
        write_zeroes: true,
        block_status: false,
        payload_max: spec::PAYLOAD_BYTES_PORTABLE,
    };
    Offer { terms, write_through: false, preferred_bytes: 4096, clears: false, name: None, bitmap: None }
}
