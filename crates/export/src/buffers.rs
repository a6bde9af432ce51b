//! A part of a chain's segments, as the buffers of a storage's task.

use vring::Segment;

/// Adds `len` bytes of `segments`, from byte `skip` on, to a task's buffers.
pub(crate) fn add(buffers: &mut Vec<libc::iovec>, segments: &[Segment], mut skip: usize, mut len: u64) {
    for iovec in Segment::as_iovecs(segments) {
        if len == 0 {
            return;
        }
        let cut = skip.min(iovec.iov_len);
        skip -= cut;
        let take = (iovec.iov_len - cut).min(usize::try_from(len).unwrap_or(usize::MAX));
        if take > 0 {
            // SAFETY: `cut` is at most the segment's length.
            let iov_base = unsafe { iovec.iov_base.cast::<u8>().add(cut) }.cast();
            buffers.push(libc::iovec { iov_base, iov_len: take });
            len -= take as u64;
        }
    }
}
