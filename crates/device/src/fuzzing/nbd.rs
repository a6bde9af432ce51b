//! Any bytes as what an NBD client sends.

use crate::nbd::{self, HandshakeOption, Request, Terms, Work};

/// Longest data of a request, in bytes.
const PAYLOAD_MAX: u32 = 1 << 16;

/// Decodes what an NBD client sends, made of any bytes, and checks that what is accepted keeps its promises.
///
/// Layout of `data`: flags (1), blocks of the export (2, little-endian), messages (rest). Flags: bit 0 read-only, bit 1 trims, bit
/// 2 writes of zeroes, bit 3 block status, bit 4 blocks of 4096 bytes instead of 512; bit 6 requests instead of options; bit 7
/// gives every message its magic number, so that deep checks are reached.
pub fn nbd_request(data: &[u8]) {
    let Some(([options, low, high], messages)) = data.split_first_chunk() else {
        return;
    };
    if let Some(flags) = messages.first_chunk() {
        let _ = nbd::decode_client_flags(flags);
    }
    let bit = |bit: u8| options & 1 << bit != 0;
    let block_bytes = if bit(4) { 4096 } else { 512 };
    let terms = Terms {
        size_bytes: u64::from(u16::from_le_bytes([*low, *high])) * u64::from(block_bytes),
        block_bytes,
        read_only: bit(0),
        trim: bit(1),
        write_zeroes: bit(2),
        block_status: bit(3),
        payload_max: PAYLOAD_MAX,
    };
    let mut rest = messages.to_vec();
    if bit(6) {
        while let Some(behind) = take_request(&mut rest, &terms, bit(7)) {
            rest.drain(..behind);
        }
    } else {
        while let Some(behind) = take_option(&mut rest, bit(7)) {
            rest.drain(..behind);
        }
    }
}

/// Decodes the first option and says how long it is; `None` when none is whole.
fn take_option(rest: &mut [u8], with_magic: bool) -> Option<usize> {
    if with_magic && let Some(field) = rest.first_chunk_mut() {
        *field = nbd::spec::magic::OPTION.to_be_bytes();
    }
    let bytes = nbd::option_bytes(rest).ok()??;
    assert!((nbd::OPTION_HEADER_BYTES..=nbd::OPTION_HEADER_BYTES + nbd::OPTION_BYTES_MAX).contains(&bytes));
    let message = rest.get(..bytes)?;
    let (number, option) = nbd::decode_option(message);
    match option {
        Ok(option) => assert_option(&option, number, bytes),
        Err(error) => {
            let mut out = Vec::new();
            nbd::option_error(&mut out, number, &error);
            assert!(error.kind & nbd::spec::option_reply_type::ERROR != 0 && out.len() > 20);
        }
    }
    Some(bytes)
}

fn assert_option(option: &HandshakeOption<'_>, number: u32, bytes: usize) {
    use nbd::spec::option as o;
    let string = |string: &[u8]| assert!(string.len() <= nbd::NAME_BYTES_MAX && string.len() < bytes);
    let expected = match option {
        HandshakeOption::ExportName(name) => {
            string(name);
            o::EXPORT_NAME
        }
        HandshakeOption::Info(go) | HandshakeOption::Go(go) => {
            string(go.name);
            let asked = (0..16).filter(|&info| go.wants(info)).count();
            assert!(go.name.len() + 6 + 2 * asked <= bytes - nbd::OPTION_HEADER_BYTES);
            if matches!(option, HandshakeOption::Go(_)) { o::GO } else { o::INFO }
        }
        HandshakeOption::ListMetaContext(contexts) | HandshakeOption::SetMetaContext(contexts) => {
            string(contexts.name);
            contexts.queries().for_each(string);
            // Whatever a client may choose is listed if it asks for it.
            assert!(contexts.queries().all(|query| contexts.choose(query) && contexts.list(query)));
            for context in [nbd::spec::context::BASE_ALLOCATION, b"qemu:dirty-bitmap:a"] {
                assert!(contexts.list(context) || !contexts.choose(context));
            }
            assert_eq!(contexts.queries().count(), contexts.len());
            let queries: usize = contexts.queries().map(|query| query.len() + 4).sum();
            assert_eq!(contexts.name.len() + 8 + queries, bytes - nbd::OPTION_HEADER_BYTES);
            if matches!(option, HandshakeOption::SetMetaContext(_)) {
                o::SET_META_CONTEXT
            } else {
                o::LIST_META_CONTEXT
            }
        }
        HandshakeOption::Abort => o::ABORT,
        HandshakeOption::List => o::LIST,
        HandshakeOption::StructuredReply => o::STRUCTURED_REPLY,
        HandshakeOption::StartTls => o::STARTTLS,
        HandshakeOption::Unknown => number,
    };
    assert_eq!(expected, number);
}

/// Decodes the first request and says how long it is; `None` when none is whole.
fn take_request(rest: &mut [u8], terms: &Terms, with_magic: bool) -> Option<usize> {
    if with_magic && let Some(field) = rest.first_chunk_mut() {
        *field = nbd::spec::magic::REQUEST.to_be_bytes();
    }
    let bytes = nbd::request_bytes(rest, terms.payload_max).ok()??;
    let request = nbd::decode_request(rest.first_chunk()?).ok()?;
    assert!(bytes == nbd::REQUEST_BYTES || bytes == nbd::REQUEST_BYTES + request.len as usize);
    match request.check(terms) {
        Ok(work) => assert_work(&request, &work, terms),
        Err(refusal) => {
            let mut out = Vec::new();
            nbd::error_chunk(&mut out, refusal.errno, request.cookie, &refusal.to_string());
            assert!(refusal.errno != 0 && out.len() > nbd::CHUNK_HEADER_BYTES + 6);
        }
    }
    (bytes <= rest.len()).then_some(bytes)
}

fn assert_work(request: &Request, work: &Work, terms: &Terms) {
    let inside = |offset: u64, len: u32| {
        let block_bytes = u64::from(terms.block_bytes);
        assert!(offset.is_multiple_of(block_bytes) && u64::from(len).is_multiple_of(block_bytes));
        assert!(offset.checked_add(u64::from(len)).expect("no overflow") <= terms.size_bytes);
        assert_eq!((offset, len), (request.offset, request.len));
    };
    match *work {
        Work::Read { offset, len } => {
            assert!(len <= terms.payload_max);
            inside(offset, len);
        }
        Work::Write { offset, len, .. } => {
            assert!(!terms.read_only && len <= terms.payload_max);
            inside(offset, len);
        }
        Work::Trim { offset, len, .. } => {
            assert!(!terms.read_only && terms.trim);
            inside(offset, len);
        }
        Work::WriteZeroes { offset, len, .. } => {
            assert!(!terms.read_only && terms.write_zeroes);
            inside(offset, len);
        }
        Work::BlockStatus { offset, len, .. } => {
            assert!(terms.block_status && len > 0);
            inside(offset, len);
        }
        Work::Flush | Work::Disconnect => {}
    }
}
