//! Little-endian fields: written one behind the other, read by their place.

use anyhow::{Context, Result};

/// Fields written one behind the other. Requests of this crate fit into their room; one that does not panics.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl<'a> Encoder<'a> {
    /// Writes into `bytes` from their beginning.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    /// Appends a field of 8 bits.
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Appends a field of 16 bits.
    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a field of 32 bits.
    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends a field of 64 bits.
    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }
}

/// Reads `N` bytes.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let field = at.checked_add(N).and_then(|end| bytes.get(at..end));
    field.and_then(|field| field.try_into().ok()).context("a reply is too short")
}

/// Reads a field of 16 bits.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(field(bytes, at)?))
}

/// Reads a field of 32 bits.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(field(bytes, at)?))
}

/// Reads a field of 64 bits.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(field(bytes, at)?))
}

/// What an encoder makes of `encode`, for tests.
#[cfg(test)]
pub(crate) fn encoded(encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut bytes = [0xee; 512];
    let mut encoder = Encoder::new(&mut bytes);
    encode(&mut encoder);
    let len = encoder.len();
    bytes[..len].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_where_they_were_written() {
        let bytes = encoded(|e| _ = e.u8(1).u16(0x203).u32(4).u64(5).bytes(b"x"));
        assert_eq!(bytes.len(), 16);
        assert_eq!(bytes[..3], [1, 3, 2]);
        assert_eq!(u16_at(&bytes, 1).unwrap(), 0x203);
        assert_eq!(u32_at(&bytes, 3).unwrap(), 4);
        assert_eq!(u64_at(&bytes, 7).unwrap(), 5);
        assert!(u32_at(&bytes, 13).is_err(), "past the end");
        assert!(u32_at(&bytes, usize::MAX).is_err());
    }
}
