//! Fields of structures whose size is known, checked when this is compiled rather than when it runs.

/// The 16 bits at `AT`, little-endian.
#[inline(always)]
pub(crate) fn le16<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_le_bytes([bytes[AT], bytes[AT + 1]])
}

/// The 32 bits at `AT`, little-endian.
#[inline(always)]
pub(crate) fn le32<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_le_bytes([bytes[AT], bytes[AT + 1], bytes[AT + 2], bytes[AT + 3]])
}

/// The 64 bits at `AT`, little-endian.
#[inline(always)]
pub(crate) fn le64<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(AT + 8 <= N) };
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[AT..AT + 8]);
    u64::from_le_bytes(word)
}

/// The 16 bits at `AT`, big-endian.
#[inline(always)]
pub(crate) fn be16<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_be_bytes([bytes[AT], bytes[AT + 1]])
}

/// The 32 bits at `AT`, big-endian.
#[inline(always)]
pub(crate) fn be32<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_be_bytes([bytes[AT], bytes[AT + 1], bytes[AT + 2], bytes[AT + 3]])
}

/// The 64 bits at `AT`, big-endian.
#[inline(always)]
pub(crate) fn be64<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(AT + 8 <= N) };
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[AT..AT + 8]);
    u64::from_be_bytes(word)
}

/// Puts a field of `LEN` bytes to `AT`.
#[inline(always)]
pub(crate) fn put<const AT: usize, const N: usize, const LEN: usize>(bytes: &mut [u8; N], field: [u8; LEN]) {
    const { assert!(AT + LEN <= N) };
    bytes[AT..AT + LEN].copy_from_slice(&field);
}
