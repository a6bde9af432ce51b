//! From a chain's head to its segments: the one place where descriptors are judged.

use std::ptr::NonNull;

use crate::areas::{Areas, DESCRIPTOR_BYTES, Descriptor};
use crate::chain::{Chain, Segment};
use crate::error::RingError;
use crate::layout::{QUEUE_SIZE_MAX, segments_max};
use crate::memory::Memory;

/// Descriptor flags (virtio 1.3, section 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// 2.7.5.2 forbids a chain of more than 2^32 bytes.
const CHAIN_BYTES_MAX: u64 = 1 << 32;

/// The walk along one chain.
pub(crate) struct Walk<'a> {
    pub(crate) areas: &'a Areas,
    pub(crate) memory: &'a Memory,
    pub(crate) hint: &'a mut usize,
    pub(crate) chain: &'a mut Chain,
    pub(crate) head: u16,
    pub(crate) size: u16,
    pub(crate) indirect: bool,
    pub(crate) bytes: u64,
    pub(crate) writable: bool,
}

impl Walk<'_> {
    /// Follows the chain from its head, which the caller has checked.
    #[inline]
    pub(crate) fn direct(&mut self) -> Result<(), RingError> {
        let mut index = self.head;
        for _ in 0..self.size {
            let descriptor = self.areas.descriptor(index);
            if descriptor.flags & INDIRECT != 0 {
                self.indirect(descriptor)?;
                return self.finish();
            }
            self.add(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return self.finish();
            }
            index = descriptor.next;
            if index >= self.size {
                return Err(self.next_out_of_range(index, u32::from(self.size)));
            }
        }
        Err(RingError::ChainTooLong { head: self.head, limit: u32::from(self.size) })
    }

    /// Follows the table that `descriptor` refers to. 2.7.5.3.2: it may come behind normal descriptors, it ends the
    /// chain, and its write flag is ignored.
    fn indirect(&mut self, descriptor: Descriptor) -> Result<(), RingError> {
        let head = self.head;
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { head });
        }
        if descriptor.flags & NEXT != 0 {
            return Err(RingError::IndirectWithNext { head });
        }
        let table = Table::new(self.memory, self.hint, descriptor, head)?;
        // A table may be longer than any chain: what a guest can have us walk over is bounded all the same, empty buffers
        // included, for every ring of the worker waits meanwhile.
        let limit = table.entries.min(segments_max(self.size) as u32);
        let mut index = 0;
        for _ in 0..limit {
            let Some(entry) = table.entry(self.memory, self.hint, index) else {
                return Err(outside(head, descriptor));
            };
            if entry.flags & INDIRECT != 0 {
                return Err(RingError::NestedIndirect { head });
            }
            self.add(entry)?;
            if entry.flags & NEXT == 0 {
                return Ok(());
            }
            index = entry.next;
            if u32::from(index) >= table.entries {
                return Err(self.next_out_of_range(index, table.entries));
            }
        }
        Err(RingError::ChainTooLong { head, limit })
    }

    /// Adds the buffer of one descriptor: usually one segment, more where it crosses from a region to the next.
    #[inline]
    fn add(&mut self, descriptor: Descriptor) -> Result<(), RingError> {
        let head = self.head;
        if descriptor.flags & WRITE != 0 {
            if !self.writable {
                self.writable = true;
                self.chain.readable = self.chain.segments.len();
            }
        } else if self.writable {
            return Err(RingError::ReadableAfterWritable { head });
        }
        // Each length is below 2^32 and the number of descriptors below 2^17, so the sum cannot overflow.
        self.bytes += u64::from(descriptor.len);
        // An empty buffer holds nothing to read or write; it is legal to skip and not worth stopping a ring for.
        let (mut addr, mut left) = (descriptor.addr, u64::from(descriptor.len));
        while left > 0 {
            let Some((ptr, len)) = self.memory.translate(addr, left, self.hint) else {
                return Err(outside(head, descriptor));
            };
            self.push(ptr, len)?;
            left -= len;
            if left > 0 {
                addr = addr.checked_add(len).ok_or(outside(head, descriptor))?;
            }
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, ptr: NonNull<u8>, len: u64) -> Result<(), RingError> {
        let limit = segments_max(self.size);
        if self.chain.segments.len() >= limit {
            return Err(RingError::TooManySegments { head: self.head, limit: limit as u32 });
        }
        // SAFETY: the memory table found these bytes inside a mapping, and the chain keeps the table alive.
        self.chain.segments.push(unsafe { Segment::from_raw_parts(ptr, len as usize) });
        Ok(())
    }

    #[inline]
    fn finish(&mut self) -> Result<(), RingError> {
        if !self.writable {
            self.chain.readable = self.chain.segments.len();
        }
        if self.bytes > CHAIN_BYTES_MAX {
            return Err(RingError::TooManyBytes { head: self.head });
        }
        Ok(())
    }

    fn next_out_of_range(&self, next: u16, size: u32) -> RingError {
        RingError::NextOutOfRange { head: self.head, next, size }
    }
}

/// An indirect descriptor table (2.7.5.3).
struct Table {
    guest_addr: u64,
    entries: u32,
    /// The whole table, when it lies in one region: nearly always.
    whole: Option<NonNull<u8>>,
}

impl Table {
    fn new(memory: &Memory, hint: &mut usize, descriptor: Descriptor, head: u16) -> Result<Table, RingError> {
        let entries = descriptor.len / DESCRIPTOR_BYTES as u32;
        let legal = 1..=u32::from(QUEUE_SIZE_MAX);
        if !descriptor.len.is_multiple_of(DESCRIPTOR_BYTES as u32) || !legal.contains(&entries) {
            return Err(RingError::BadIndirectLength { head, len: descriptor.len });
        }
        let len = u64::from(descriptor.len);
        let Some((ptr, found)) = memory.translate(descriptor.addr, len, hint) else {
            return Err(outside(head, descriptor));
        };
        Ok(Table { guest_addr: descriptor.addr, entries, whole: (found == len).then_some(ptr) })
    }

    /// Entry `index`, which the caller has checked; `None` when it lies outside memory.
    #[inline]
    fn entry(&self, memory: &Memory, hint: &mut usize, index: u16) -> Option<Descriptor> {
        let offset = usize::from(index) * DESCRIPTOR_BYTES;
        match self.whole {
            // SAFETY: `index` is below the number of entries, and all of them lie in this range.
            Some(ptr) => Some(unsafe { Descriptor::read(ptr.as_ptr().add(offset)) }),
            None => self.scattered_entry(memory, hint, offset as u64),
        }
    }

    /// An entry of a table that crosses regions; the entry itself may do so too. Each byte is read once.
    #[cold]
    fn scattered_entry(&self, memory: &Memory, hint: &mut usize, offset: u64) -> Option<Descriptor> {
        let mut addr = self.guest_addr.checked_add(offset)?;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let mut done = 0;
        while done < bytes.len() {
            let left = (bytes.len() - done) as u64;
            let (ptr, len) = memory.translate(addr, left, hint)?;
            for i in 0..len as usize {
                // SAFETY: `translate` found `len` bytes at `ptr`.
                bytes[done + i] = unsafe { ptr.as_ptr().add(i).read_volatile() };
            }
            done += len as usize;
            if done < bytes.len() {
                addr = addr.checked_add(len)?;
            }
        }
        Some(Descriptor::from_bytes(bytes))
    }
}

#[cold]
fn outside(head: u16, descriptor: Descriptor) -> RingError {
    RingError::OutsideMemory { head, guest_addr: descriptor.addr, len: descriptor.len }
}
