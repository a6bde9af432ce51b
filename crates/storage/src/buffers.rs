//! Arithmetic on buffer lists, and copies between them and our own memory.
//!
//! Buffers are a guest's memory: it may change at any moment, so it is only ever touched through raw pointers.

use libc::iovec;

/// Most buffers of one system call. Source: UIO_MAXIOV in Linux' `include/uapi/linux/uio.h`.
pub(crate) const IOVECS_MAX: usize = 1024;

/// Most bytes that a worker copies, or zeroes, on the spot for one request: its other rings wait meanwhile.
pub const ON_THE_SPOT_MAX: u64 = 2 << 20;

/// Buffers whose list a task keeps for its next operation: 8 KiB of list.
const KEPT: usize = 512;

/// Empties a list, and gives back what it has beyond the usual length.
pub(crate) fn shorten(list: &mut Vec<iovec>) {
    list.clear();
    list.shrink_to(KEPT);
}

/// A list on its way to another thread.
pub struct Lent(*const iovec, usize);

// SAFETY: whoever uses the list vouches for it being there, see `list`.
unsafe impl Send for Lent {}

impl Lent {
    /// Of a list that stays where it is.
    pub fn new(buffers: &[iovec]) -> Lent {
        Lent(buffers.as_ptr(), buffers.len())
    }

    /// The list again.
    ///
    /// # Safety
    /// The list, and what it points to, is still in its place: called before the completion of the task that owns it, which the
    /// job on the other thread itself brings about.
    pub unsafe fn list(&self) -> &[iovec] {
        // SAFETY: made from a slice that is still there, promised by our caller.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

/// Bytes in a list.
pub fn total(buffers: &[iovec]) -> u64 {
    buffers.iter().map(|buffer| buffer.iov_len as u64).sum()
}

/// Fills `rest` with what is left of `buffers` behind the first `done` bytes, at most 1024 of them (UIO_MAXIOV) and `most` bytes.
pub fn remaining(buffers: &[iovec], done: u64, most: u64, rest: &mut Vec<iovec>) {
    range(buffers, done, most, rest);
    rest.truncate(IOVECS_MAX);
}

/// Fills `range` with the `len` bytes of `buffers` from their byte `from` on, as far as they go.
pub fn range(buffers: &[iovec], from: u64, len: u64, range: &mut Vec<iovec>) {
    range.clear();
    parts(buffers, from, len, |pointer, iov_len, _| range.push(iovec { iov_base: pointer.cast(), iov_len }));
}

/// Whether every buffer starts at a multiple of `memory` and has a multiple of `length` bytes (powers of two).
pub fn aligned(buffers: &[iovec], memory: usize, length: usize) -> bool {
    let bits = buffers
        .iter()
        .fold(0, |bits, buffer| bits | (buffer.iov_base as usize & (memory - 1)) | (buffer.iov_len & (length - 1)));
    bits == 0
}

/// Calls `each(pointer, length, position in the list)` for the parts of `buffers` that make up `len` bytes from byte `from` on.
fn parts(buffers: &[iovec], from: u64, len: u64, mut each: impl FnMut(*mut u8, usize, usize)) {
    let (mut skip, mut done) = (from, 0);
    for buffer in buffers {
        if done == len {
            return;
        }
        let cut = skip.min(buffer.iov_len as u64);
        skip -= cut;
        let take = (buffer.iov_len as u64 - cut).min(len - done);
        if take > 0 {
            each(buffer.iov_base.cast::<u8>().wrapping_add(cut as usize), take as usize, done as usize);
            done += take;
        }
    }
}

/// Copies `len` bytes at `source` into `buffers` from their byte `from` on; what does not fit is left out.
///
/// # Safety
/// `source` is valid for reads of `len` bytes and the buffers for writes, and they do not overlap; they may change meanwhile.
pub unsafe fn copy_in(buffers: &[iovec], from: u64, source: *const u8, len: u64) {
    parts(buffers, from, len, |pointer, bytes, at| {
        // SAFETY: inside the ranges the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(source.add(at), pointer, bytes) };
    });
}

/// Copies `len` bytes of `buffers` from their byte `from` on to `target`.
///
/// # Safety
/// `target` is valid for writes of `len` bytes and the buffers for reads, and they do not overlap; they may change meanwhile.
pub unsafe fn copy_out(buffers: &[iovec], from: u64, target: *mut u8, len: u64) {
    parts(buffers, from, len, |pointer, bytes, at| {
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(pointer, target.add(at), bytes) };
    });
}

/// Fills `buffers` with zeroes from their byte `from` to their end.
///
/// # Safety
/// The buffers are valid for writes.
pub unsafe fn zero(buffers: &[iovec], from: u64) {
    parts(buffers, from, total(buffers).saturating_sub(from), |pointer, bytes, _| {
        // SAFETY: vouched for by the caller.
        unsafe { std::ptr::write_bytes(pointer, 0, bytes) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(memory: &mut [u8], lengths: &[usize]) -> Vec<iovec> {
        let mut at = memory.as_mut_ptr();
        let mut out = Vec::new();
        for len in lengths {
            out.push(iovec { iov_base: at.cast(), iov_len: *len });
            at = at.wrapping_add(*len);
        }
        out
    }

    fn bytes(buffers: &[iovec]) -> Vec<usize> {
        buffers.iter().flat_map(|b| (0..b.iov_len).map(|i| b.iov_base as usize + i)).collect()
    }

    proptest! {
        #[test]
        fn what_remains_is_the_tail(
            lengths in proptest::collection::vec(0usize..5, 0..8), done in 0usize..40, most in 0usize..40,
        ) {
            let mut memory = [0; 64];
            let buffers = list(&mut memory, &lengths);
            let mut rest = vec![buffers.first().copied().unwrap_or(iovec { iov_base: std::ptr::null_mut(), iov_len: 9 })];
            remaining(&buffers, done as u64, most as u64, &mut rest);
            let all = bytes(&buffers);
            let tail = &all[done.min(all.len())..];
            prop_assert_eq!(bytes(&rest), &tail[..most.min(tail.len())]);
            prop_assert!(rest.iter().all(|b| b.iov_len > 0));
        }

        #[test]
        fn copies_go_where_they_belong(lengths in proptest::collection::vec(0usize..5, 0..8), from in 0usize..20, len in 0usize..20) {
            let mut memory: Vec<u8> = (1..65).collect();
            let buffers = list(&mut memory, &lengths);
            let size = lengths.iter().sum::<usize>();
            let (from, end) = (from.min(size), (from + len).min(size));
            let mut out = [0xff; 32];
            // SAFETY: both ends lie inside `memory` and `out`.
            unsafe { copy_out(&buffers, from as u64, out.as_mut_ptr(), (end.max(from) - from) as u64) };
            let end = end.max(from);
            prop_assert!(out[..end - from].iter().enumerate().all(|(i, b)| usize::from(*b) == from + i + 1));
            prop_assert!(out[end - from..].iter().all(|b| *b == 0xff));
            // SAFETY: as above.
            unsafe { copy_in(&buffers, from as u64, [0xee; 32].as_ptr(), (end - from) as u64) };
            for (i, b) in memory.iter().enumerate() {
                let expected = if (from..end).contains(&i) { 0xee } else { i as u8 + 1 };
                prop_assert_eq!(*b, expected);
            }
            let buffers = list(&mut memory, &lengths);
            // SAFETY: as above.
            unsafe { zero(&buffers, from as u64) };
            prop_assert!(memory[from..size].iter().all(|b| *b == 0));
            prop_assert!(memory[size..].iter().all(|b| *b != 0));
        }
    }

    #[test]
    fn a_system_call_takes_a_bounded_number() {
        let one = iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        let mut rest = Vec::new();
        remaining(&vec![one; IOVECS_MAX + 5], 2, u64::MAX, &mut rest);
        assert_eq!(rest.len(), IOVECS_MAX);
    }

    #[test]
    fn alignment_is_of_every_start_and_length() {
        let at = |base: usize, len| iovec { iov_base: std::ptr::without_provenance_mut(base), iov_len: len };
        assert!(aligned(&[at(0x1000, 4096), at(0x2004, 512)], 4, 512));
        assert!(!aligned(&[at(0x1000, 4096), at(0x2002, 512)], 4, 512));
        assert!(!aligned(&[at(0x1000, 4096), at(0x2004, 511)], 4, 512));
        assert!(aligned(&[at(0x1001, 3)], 1, 1));
        assert!(aligned(&[], 4096, 4096));
    }
}
