//! Big-endian fields of structures whose size is known, and the fields of an option from the front on.

/// The 16 bits at `AT`.
#[inline(always)]
pub(super) fn be16<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_be_bytes([bytes[AT], bytes[AT + 1]])
}

/// The 32 bits at `AT`.
#[inline(always)]
pub(super) fn be32<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_be_bytes([bytes[AT], bytes[AT + 1], bytes[AT + 2], bytes[AT + 3]])
}

/// The 64 bits at `AT`.
#[inline(always)]
pub(super) fn be64<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(AT + 8 <= N) };
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[AT..AT + 8]);
    u64::from_be_bytes(word)
}

/// What is left of an option's data.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Fields<'a> {
        Fields { rest }
    }

    /// The next 16 bits; `None` when there are less.
    pub(super) fn take_u16(&mut self) -> Option<u16> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_be_bytes(*taken))
    }

    /// The next 32 bits; `None` when there are less.
    pub(super) fn take_u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*taken))
    }

    /// The next string, which has 32 bits of length before it; `None` when it reaches beyond the end.
    pub(super) fn take_string(&mut self) -> Option<&'a [u8]> {
        let mut behind = *self;
        let len = usize::try_from(behind.take_u32()?).ok()?;
        let (string, rest) = behind.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(string)
    }

    /// All that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }
}
