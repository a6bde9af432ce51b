//! A storage in memory whose copies are cheap: a fuzzer plays one image through many times.

use crate::blocks::Blocks;
use crate::ram::Ram;
use std::io;
use std::ops::Range;
use std::rc::Rc;

const PAGE_BYTES: usize = 4096;

type Page = [u8; PAGE_BYTES];

/// Bytes in pages that copies share until one of them writes. As with [`Ram`], nothing that was written is lost.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pages {
    // `Rc` compares what is shared by its address.
    pages: Vec<Rc<Page>>,
    len: usize,
}

impl From<Ram> for Pages {
    fn from(ram: Ram) -> Pages {
        let zeroes = Rc::new([0; PAGE_BYTES]);
        let pages = ram.0.chunks(PAGE_BYTES).map(|chunk| {
            let mut page = [0; PAGE_BYTES];
            for (to, from) in page.iter_mut().zip(chunk) {
                *to = *from;
            }
            if page == *zeroes { Rc::clone(&zeroes) } else { Rc::new(page) }
        });
        Pages { pages: pages.collect(), len: ram.0.len() }
    }
}

impl Pages {
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// Whole pages, in order.
    pub(crate) fn whole_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.pages.iter_mut().take(self.len / PAGE_BYTES).map(|page| Rc::make_mut(page).as_mut_slice())
    }

    /// Changes one byte, if it is there.
    pub(crate) fn set(&mut self, at: usize, value: u8) {
        let byte = self.pages.get_mut(at / PAGE_BYTES).map(Rc::make_mut).and_then(|page| page.get_mut(at % PAGE_BYTES));
        if let Some(byte) = byte.filter(|_| at < self.len) {
            *byte = value;
        }
    }

    /// Forgets what lies behind the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.len.div_ceil(PAGE_BYTES));
    }

    /// Whether both hold the same bytes in `range`, as far as they have that many.
    pub(crate) fn agree(&self, other: &Pages, range: Range<usize>) -> bool {
        let len = range.end.min(self.len).saturating_sub(range.start);
        self.len == other.len
            && pieces(range.start, len).all(|(page, within)| {
                let (ours, theirs) = (self.pages.get(page), other.pages.get(page));
                let shared = ours.zip(theirs).is_some_and(|(ours, theirs)| Rc::ptr_eq(ours, theirs));
                shared || ours.and_then(|page| page.get(within.clone())) == theirs.and_then(|page| page.get(within))
            })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<(usize, usize)> {
        let place = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        place
            .filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= self.len))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the range leaves the storage"))
    }
}

/// The pages of `len` bytes from `offset`, and what of each.
fn pieces(offset: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = offset.saturating_add(len);
    (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        (page, offset.saturating_sub(start)..(end - start).min(PAGE_BYTES))
    })
}

impl Blocks for Pages {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read_at(&mut self, offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
        let (offset, len) = self.check(offset, buf.len() as u64)?;
        for (page, within) in pieces(offset, len) {
            let (now, rest) = buf.split_at_mut(within.len());
            now.copy_from_slice(&self.pages[page][within]);
            buf = rest;
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, mut buf: &[u8]) -> io::Result<()> {
        let (offset, len) = self.check(offset, buf.len() as u64)?;
        for (page, within) in pieces(offset, len) {
            let (now, rest) = buf.split_at(within.len());
            // Written with what is there already: still shared.
            if self.pages[page][within.clone()] != *now {
                Rc::make_mut(&mut self.pages[page])[within].copy_from_slice(now);
            }
            buf = rest;
        }
        Ok(())
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let (offset, len) = self.check(offset, len)?;
        for (page, within) in pieces(offset, len) {
            if self.pages[page][within.clone()].iter().any(|byte| *byte != 0) {
                Rc::make_mut(&mut self.pages[page])[within].fill(0);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;
    use crate::blocks::Blocks;
    use crate::ram::Ram;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Zero(u64, u64),
        Set(usize, u8),
        Truncate(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = 0..20_000_u64;
        prop_oneof![
            4 => (at.clone(), prop::collection::vec(any::<u8>(), 0..9000)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
            2 => (at, 0..9000_u64).prop_map(|(at, len)| Step::Zero(at, len)),
            2 => (0..20_000_usize, any::<u8>()).prop_map(|(at, value)| Step::Set(at, value)),
            1 => (10_000..20_000_usize).prop_map(Step::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn pages_are_what_plain_memory_is(len in 0..20_000_usize, steps in prop::collection::vec(step(), 0..20)) {
            let mut ram = Ram::new(len);
            let mut pages = Pages::from(ram.clone());
            for step in steps {
                let (ram_before, before) = (ram.clone(), pages.clone());
                let (ours, theirs) = match step {
                    Step::Write(at, bytes) => (pages.write_at(at, &bytes).is_ok(), ram.write_at(at, &bytes).is_ok()),
                    Step::Zero(at, len) => (pages.zero_at(at, len).is_ok(), ram.zero_at(at, len).is_ok()),
                    Step::Set(at, value) => {
                        pages.set(at, value);
                        ram.0.get_mut(at).into_iter().for_each(|byte| *byte = value);
                        (true, true)
                    }
                    Step::Truncate(len) => {
                        pages.truncate(len);
                        ram.0.truncate(len);
                        (true, true)
                    }
                };
                prop_assert_eq!(ours, theirs);
                let mut read = vec![0; pages.bytes()];
                pages.read_at(0, &mut read).expect("all of it");
                prop_assert_eq!(&read, &ram.0);
                prop_assert!(pages.read_at(1, &mut read).is_err() || read.is_empty());
                // A copy has stayed what it was, and is told from what has changed.
                prop_assert_eq!(before == pages, ram_before == ram);
                let mut kept = vec![0; before.bytes()];
                before.clone().read_at(0, &mut kept).expect("all of it");
                prop_assert_eq!(&kept, &ram_before.0);
                for (from, to) in [(0, 5000), (4096, 8192), (7000, 30_000)] {
                    let of = |ram: &Ram| ram.0.iter().take(to).skip(from).copied().collect::<Vec<u8>>();
                    let same = ram.0.len() == ram_before.0.len() && of(&ram) == of(&ram_before);
                    prop_assert_eq!(pages.agree(&before, from..to), same, "{}..{}", from, to);
                }
            }
        }
    }
}
