//! Bodies of the fuzz targets.

mod nbd;
mod p9;
mod scsi;

pub use nbd::nbd_request;
pub use p9::p9_request;
pub use scsi::{scsi_request, scsi_reservations};

use crate::blk::{Config, DiscardLimits, Header, Limits, Request, Settings, WriteZeroesLimits, decode_request};
use crate::fs::{self, Dialect, Extensions, InHeader};

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

/// Decodes a FUSE request made of any bytes, as a ring does, and checks that what is accepted keeps its promises.
///
/// Layout of `data`: flags (1), request (rest). Flags: bit 0 extended SETXATTR, bit 1 security labels, bit 2 supplementary groups;
/// bit 7 makes the header's length that of the request, so that deep checks are reached.
pub fn fs_request(data: &[u8]) {
    let Some((&options, request)) = data.split_first() else {
        return;
    };
    let mut request = request.to_vec();
    let actual = u32::try_from(request.len()).unwrap_or(u32::MAX);
    if options & 0x80 != 0
        && let Some(len) = request.first_chunk_mut()
    {
        *len = actual.to_le_bytes();
    }
    let granted = [fs::flags::SETXATTR_EXT, fs::flags::SECURITY_CTX, fs::flags::CREATE_SUPP_GROUP];
    let flags =
        granted.iter().enumerate().filter(|(bit, _)| options >> bit & 1 != 0).fold(0, |all, (_, flag)| all | flag);
    let readable_bytes = request.len() as u64;
    let Ok(wanted) = fs::bytes_wanted(&request) else {
        return;
    };
    let copied = &request[..wanted.min(request.len())];
    match fs::decode(copied, readable_bytes, Dialect { minor: 45, flags }) {
        Ok((header, request)) => assert_sound(&header, &request, readable_bytes),
        Err(malformed) => assert!(malformed.errno() > 0 && malformed.unique().is_some()),
    }
}

fn assert_sound(header: &InHeader, request: &fs::Request<'_>, readable_bytes: u64) {
    use fs::Request as R;
    let len = u64::from(header.len);
    assert!(len <= readable_bytes);
    let offset_max = i64::MAX as u64;
    let time = |time: fs::Time| assert!(time.nanoseconds < 1_000_000_000);
    match request {
        R::Lookup { name } | R::Unlink { name } | R::Rmdir { name } => assert!(name.count_bytes() <= 255),
        R::Rename(rename) => assert!(rename.name.count_bytes() <= 255 && rename.new_name.count_bytes() <= 255),
        R::Read(read) => assert!(read.offset <= offset_max),
        R::Write(write) => {
            assert!(write.offset <= offset_max && u64::from(write.size) + fs::WRITE_HEAD_BYTES as u64 <= len);
        }
        R::BatchForget(forgets) => {
            assert_eq!(forgets.iter().count(), forgets.len());
            assert!(forgets.len() as u64 * 16 < len);
        }
        R::SetAttr(change) => {
            assert!(change.size.is_none_or(|size| size <= offset_max));
            for set in [change.atime, change.mtime] {
                if let Some(fs::SetTime::At(at)) = set {
                    time(at);
                }
            }
            change.ctime.into_iter().for_each(time);
        }
        R::SetXattr(set) => assert!(set.name.count_bytes() <= 255 && set.value.len() <= 65536),
        R::GetLk(lock) | R::SetLk(lock) | R::SetLkw(lock) => {
            assert!(lock.kind <= 2 && lock.start <= lock.end && lock.end <= offset_max);
        }
        R::Symlink(link) => {
            assert!(link.target.count_bytes() <= 4095);
            assert_extensions(&link.extensions);
        }
        R::Mknod(node) => assert_extensions(&node.extensions),
        R::Mkdir(directory) => assert_extensions(&directory.extensions),
        R::Create(create) | R::TmpFile(create) => assert_extensions(&create.extensions),
        R::Init(init) => {
            let mut out = Vec::new();
            let offer = fs::Offer { wants: u64::MAX, ..fs::Offer::default() };
            let settled = fs::negotiate(init, &offer, &mut out);
            assert_eq!(out.len(), if settled.is_ok() { 64 } else { 0 });
        }
        _ => {}
    }
}

fn assert_extensions(extensions: &Extensions<'_>) {
    assert!(extensions.security.len() <= 31 && extensions.groups.len() <= 32);
    assert_eq!(extensions.security.iter().count(), extensions.security.len());
    assert_eq!(extensions.groups.iter().count(), extensions.groups.len());
}
