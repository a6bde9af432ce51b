//! A place in a list of buffers, from which bytes are copied on and on without looking for it each time.

use libc::iovec;

/// A place in a list of buffers: the list itself is given with each call, and is the same each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    index: usize,
    /// Bytes of that buffer that are behind us.
    skip: usize,
}

impl Cursor {
    /// Calls `each(pointer, bytes)` for the next `len` bytes and gives the place behind them. What the list does not have is
    /// left out.
    fn walk(mut self, buffers: &[iovec], mut len: usize, mut each: impl FnMut(*mut u8, usize)) -> Cursor {
        while len > 0
            && let Some(buffer) = buffers.get(self.index)
        {
            let take = buffer.iov_len.saturating_sub(self.skip).min(len);
            if take > 0 {
                each(buffer.iov_base.cast::<u8>().wrapping_add(self.skip), take);
                len -= take;
                self.skip += take;
            }
            if self.skip >= buffer.iov_len {
                self = Cursor { index: self.index + 1, skip: 0 };
            }
        }
        self
    }

    /// The place `len` bytes further on.
    #[must_use]
    pub(super) fn skip(self, buffers: &[iovec], len: usize) -> Cursor {
        self.walk(buffers, len, |_, _| {})
    }

    /// Copies the next `len` bytes of the buffers to `target`.
    ///
    /// # Safety
    /// `target` is valid for writes of `len` bytes and the buffers for reads, and they do not overlap; the buffers may change
    /// meanwhile.
    pub(super) unsafe fn gather(self, buffers: &[iovec], target: *mut u8, len: usize) {
        let mut to = target;
        self.walk(buffers, len, |from, bytes| {
            // SAFETY: the parts add up to `len` at most, inside what the caller vouches for.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to, bytes);
                to = to.add(bytes);
            }
        });
    }

    /// Copies `len` bytes at `source` to the buffers and gives the place behind them; `None` stands for zeroes.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes and the buffers for writes, and they do not overlap; the buffers may change
    /// meanwhile.
    #[must_use]
    pub(super) unsafe fn scatter(self, buffers: &[iovec], source: Option<*const u8>, len: usize) -> Cursor {
        let mut from = source;
        self.walk(buffers, len, |to, bytes| {
            // SAFETY: as above.
            unsafe {
                match &mut from {
                    Some(from) => {
                        std::ptr::copy_nonoverlapping(*from, to, bytes);
                        *from = from.add(bytes);
                    }
                    None => std::ptr::write_bytes(to, 0, bytes),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_go_on_where_the_last_ones_ended(
            lengths in proptest::collection::vec(0usize..5, 0..8), steps in proptest::collection::vec(0usize..7, 0..8),
        ) {
            let mut memory: Vec<u8> = (1..65).collect();
            let mut at = memory.as_mut_ptr();
            let mut buffers = Vec::new();
            for len in &lengths {
                buffers.push(iovec { iov_base: at.cast(), iov_len: *len });
                at = at.wrapping_add(*len);
            }
            let size = lengths.iter().sum::<usize>();
            let (mut cursor, mut done) = (Cursor::default(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                let fits = step.min(size - done);
                let mut out = [0xff; 8];
                // SAFETY: the buffers lie inside `memory`, and `out` is longer than any step.
                unsafe { cursor.gather(&buffers, out.as_mut_ptr(), step) };
                for (i, byte) in out.iter().enumerate() {
                    prop_assert_eq!(*byte, if i < fits { (done + i + 1) as u8 } else { 0xff });
                }
                let source = [0xee; 8];
                cursor = match number % 3 {
                    // SAFETY: as above.
                    0 => unsafe { cursor.scatter(&buffers, Some(source.as_ptr()), step) },
                    // SAFETY: as above.
                    1 => unsafe { cursor.scatter(&buffers, None, step) },
                    _ => cursor.skip(&buffers, step),
                };
                for (i, byte) in memory.iter().enumerate().skip(done).take(fits) {
                    let expected = match number % 3 { 0 => 0xee, 1 => 0, _ => i as u8 + 1 };
                    prop_assert_eq!(*byte, expected);
                }
                done += fits;
            }
            prop_assert!(memory.iter().enumerate().skip(done).all(|(i, byte)| *byte == i as u8 + 1));
        }
    }
}
