//! Bounded copies between guest segments and bytes of ours.
//!
//! Guest memory is only ever touched through raw pointers: a Rust reference would promise that nobody else writes to it.
//! Whoever decides on copied bytes decides on the copy; the guest may have changed the original since.

use std::ptr;

use crate::chain::Segment;

/// Copies guest bytes from `offset` on into `out`; returns how many there were, fewer than asked at the list's end.
pub fn read_at(segments: &[Segment], offset: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    for (from, len) in pieces(segments, offset, out.len()) {
        // SAFETY: `from` has `len` bytes inside a segment, `out` has them left because `pieces` yields at most its length
        // in total, and memory of ours is never guest memory.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(done), len) };
        done += len;
    }
    done
}

/// Copies `data` over guest bytes from `offset` on; returns how many fitted, fewer than given at the list's end.
pub fn write_at(segments: &[Segment], offset: u64, data: &[u8]) -> usize {
    let mut done = 0;
    for (to, len) in pieces(segments, offset, data.len()) {
        // SAFETY: as in `read_at`, with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr().add(done), to, len) };
        done += len;
    }
    done
}

/// Drops the first `bytes` of a list in place (all of it when it is shorter).
pub fn trim_front(segments: &mut Vec<Segment>, mut bytes: u64) {
    let whole = segments
        .iter()
        .take_while(|segment| {
            let drop = segment.len() as u64 <= bytes;
            if drop {
                bytes -= segment.len() as u64;
            }
            drop
        })
        .count();
    segments.drain(..whole);
    if let Some(first) = segments.first_mut() {
        // What is left to drop is shorter than this segment, so it fits.
        first.advance(bytes as usize);
    }
}

/// Keeps only the first `bytes` of a list (all of it when it is shorter); no empty segment stays behind.
pub fn truncate(segments: &mut Vec<Segment>, mut bytes: u64) {
    let mut keep = 0;
    for segment in segments.iter_mut() {
        if bytes == 0 {
            break;
        }
        segment.shorten(usize::try_from(bytes).unwrap_or(usize::MAX));
        bytes -= segment.len() as u64;
        keep += 1;
    }
    segments.truncate(keep);
}

/// The contiguous pieces of `segments` from byte `offset` on, `len` bytes in total or what is there.
#[inline]
fn pieces(segments: &[Segment], mut offset: u64, mut len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    segments.iter().map_while(move |segment| {
        if len == 0 {
            return None;
        }
        let skip = offset.min(segment.len() as u64) as usize;
        offset -= skip as u64;
        let take = len.min(segment.len() - skip);
        len -= take;
        // SAFETY: `skip` is at most the segment's length.
        Some((unsafe { segment.ptr().add(skip) }, take))
    })
}
