//! Memory for messages, used again: after the first few, none is asked of the system.

/// Capacity of a small buffer, in bytes: room for some replies to requests that move little, or for a batch of requests.
pub(super) const SMALL_BYTES: usize = 64 << 10;
/// Small buffers that are kept while nobody needs them.
const SMALL_KEPT: usize = 16;
/// Larger ones that are kept. Each has room for the largest message.
const LARGE_KEPT: usize = 4;

/// Empty buffers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    /// Capacity that new large buffers get, in bytes.
    large_bytes: usize,
}

impl Buffers {
    /// Messages are at most this long from now on, in bytes.
    pub(crate) fn set_largest(&mut self, bytes: usize) {
        self.large_bytes = bytes;
        self.large.retain(|buffer| buffer.capacity() >= bytes);
    }

    /// An empty buffer with room for `bytes` bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        if bytes <= SMALL_BYTES {
            return self.small.pop().unwrap_or_else(|| Vec::with_capacity(SMALL_BYTES));
        }
        match self.large.pop() {
            Some(buffer) if buffer.capacity() >= bytes => buffer,
            _ => Vec::with_capacity(bytes.max(self.large_bytes)),
        }
    }

    /// As [`take`](Self::take), for a length that somebody else has chosen: `None` where there is no memory for it.
    pub(crate) fn try_take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let is_kept = bytes <= SMALL_BYTES || self.large.last().is_some_and(|buffer| buffer.capacity() >= bytes);
        if is_kept {
            return Some(self.take(bytes));
        }
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(bytes.max(self.large_bytes)).ok()?;
        Some(buffer)
    }

    /// Takes a buffer back, whatever is in it.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        let (kept, most) = match buffer.capacity() {
            SMALL_BYTES => (&mut self.small, SMALL_KEPT),
            // What was made for one longer than usual goes with it.
            larger if (SMALL_BYTES..=self.large_bytes).contains(&larger) => (&mut self.large, LARGE_KEPT),
            _ => return,
        };
        if kept.len() < most {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_not_hoarded() {
        let mut buffers = Buffers::default();
        buffers.set_largest(1 << 20);
        let mut first = buffers.take(100);
        first.push(1);
        let place = first.as_ptr();
        buffers.give(first);
        let again = buffers.take(SMALL_BYTES);
        assert_eq!((again.as_ptr(), again.len(), again.capacity()), (place, 0, SMALL_BYTES));

        let large: Vec<_> = (0..LARGE_KEPT + 3).map(|_| buffers.take(SMALL_BYTES + 1)).collect();
        assert!(large.iter().all(|buffer| buffer.capacity() >= 1 << 20));
        large.into_iter().for_each(|buffer| buffers.give(buffer));
        (0..2 * SMALL_KEPT).map(|_| Vec::with_capacity(SMALL_BYTES)).for_each(|buffer| buffers.give(buffer));
        assert_eq!((buffers.large.len(), buffers.small.len()), (LARGE_KEPT, SMALL_KEPT));
        buffers.set_largest(2 << 20);
        assert!(buffers.take(SMALL_BYTES + 1).capacity() >= 2 << 20);
    }
}
