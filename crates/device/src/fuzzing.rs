//! Bodies of the fuzz targets.

use crate::blk::{Config, DiscardLimits, Header, Limits, Request, Settings, WriteZeroesLimits, decode_request};

/// Decodes a request and a configuration access made of any bytes, and checks that what is accepted lies inside the disk.
///
/// Layout of `data`: flags (1), capacity in sectors (2), readable and writable data bytes (2 each), configuration offset (2),
/// header (16), payload (rest).
pub fn blk_request(data: &[u8]) {
    let Some((fixed, payload)) = data.split_first_chunk::<25>() else {
        return;
    };
    let word = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
    let Some(header) = fixed.last_chunk::<16>() else {
        return;
    };
    let Ok(mut config) = Config::new(settings(fixed[0], word(1))) else {
        return;
    };
    // Bit 7: the payload is what the chain carries, so that deep checks are reached; otherwise any length.
    let readable = if fixed[0] & 0x80 != 0 { payload.len() as u64 } else { u64::from(word(3)) };
    let copied = Header::decode(header).payload_bytes(readable).min(payload.len());
    let limits = config.limits();
    if let Ok(request) = decode_request(header, readable, u64::from(word(5)), &payload[..copied], &limits) {
        assert_inside(&request, &limits);
    }
    let mut out = [0; 64];
    let _ = config.read(u32::from(word(7)), &mut out);
    let _ = config.write(u32::from(word(7)), payload, u64::from(word(3)));
}

fn settings(flags: u8, capacity_sectors: u16) -> Settings {
    Settings {
        capacity_bytes: u64::from(capacity_sectors) * 512,
        read_only: flags & 1 != 0,
        discard: (flags & 2 != 0).then_some(DiscardLimits {
            max_sectors: 1 << (flags >> 3 & 0xf),
            max_segments: 4,
            alignment_bytes: 512,
        }),
        write_zeroes: (flags & 4 != 0).then_some(WriteZeroesLimits {
            max_sectors: 1 << (flags >> 3 & 0xf),
            max_segments: 256,
            may_unmap: true,
        }),
        ..Settings::default()
    }
}

fn assert_inside(request: &Request<'_>, limits: &Limits) {
    let inside = |offset: u64, len: u64| {
        assert!(offset.is_multiple_of(512) && len.is_multiple_of(512));
        let end = offset.checked_add(len).expect("no overflow");
        assert!(end <= limits.capacity_bytes);
    };
    match request {
        Request::Read { offset, len } => inside(*offset, *len),
        Request::Write { offset, len } => {
            assert!(!limits.read_only);
            inside(*offset, *len);
        }
        Request::Flush | Request::GetId => {}
        Request::Discard(ranges) | Request::WriteZeroes(ranges) => {
            assert!(!limits.read_only && !ranges.is_empty());
            assert_eq!(ranges.iter().count(), ranges.len());
            for range in ranges.iter() {
                assert!(range.len > 0);
                inside(range.offset, range.len);
            }
        }
    }
}
