//! Who a logical unit says it is.

/// Who has made it (SPC-5, "T10 VENDOR IDENTIFICATION field").
pub const VENDOR: &str = "VRINGD";
/// Bytes of the vendor, the product and the revision in standard INQUIRY data.
pub(super) const VENDOR_BYTES: usize = 8;
pub(super) const PRODUCT_BYTES: usize = 16;
pub(super) const REVISION_BYTES: usize = 4;
/// Longest serial number, in bytes: it is part of a designator, which has at most 255.
pub const SERIAL_BYTES_MAX: usize = 64;

/// A name of the NAA format (SPC-5, "NAA designator format"), unique in the world or, locally assigned, where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Naa {
    bytes: [u8; 16],
    len: usize,
}

/// Why a number is no NAA identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum NaaError {
    /// an NAA identifier of 8 bytes begins with 2, 3 or 5, not with {0:x}
    Short(u8),
    /// an NAA identifier of 16 bytes begins with 6, not with {0:x}
    Long(u8),
}

impl Naa {
    /// The format of identifiers that are assigned locally.
    const LOCAL: u64 = 3 << 60;

    /// An identifier of 8 bytes: IEEE extended (2), locally assigned (3) or IEEE registered (5).
    ///
    /// # Errors
    /// Any other format.
    pub fn from_u64(identifier: u64) -> Result<Naa, NaaError> {
        match (identifier >> 60) as u8 {
            2 | 3 | 5 => Ok(Naa::short(identifier)),
            other => Err(NaaError::Short(other)),
        }
    }

    /// An identifier of 16 bytes: IEEE registered extended (6).
    ///
    /// # Errors
    /// Any other format.
    pub fn from_u128(identifier: u128) -> Result<Naa, NaaError> {
        match (identifier >> 124) as u8 {
            6 => Ok(Naa { bytes: identifier.to_be_bytes(), len: 16 }),
            other => Err(NaaError::Long(other)),
        }
    }

    /// A locally assigned identifier with the lower 60 bits of a number.
    pub fn local(number: u64) -> Naa {
        Naa::short(Naa::LOCAL | number & (u64::MAX >> 4))
    }

    fn short(identifier: u64) -> Naa {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&identifier.to_be_bytes());
        Naa { bytes, len: 8 }
    }

    /// The bytes, 8 or 16.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Why a unit cannot have such an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum IdentityError {
    /// the {0} is longer than {1} characters
    Long(&'static str, usize),
    /// the {0} has a character that is no printable ASCII
    Character(&'static str),
    /// the {0} is empty
    Empty(&'static str),
}

/// What INQUIRY says of a logical unit, whatever happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    product: String,
    revision: String,
    serial: String,
    naa: Naa,
}

impl Identity {
    /// - `product`: its kind, 1 to 16 characters.
    /// - `revision`: of the program, at most 4.
    /// - `serial`: 1 to [`SERIAL_BYTES_MAX`], no two units' the same.
    /// - `naa`: no two units' the same.
    ///
    /// All of it is printable ASCII.
    ///
    /// # Errors
    /// One that names the first text that is not.
    pub fn new(product: &str, revision: &str, serial: &str, naa: Naa) -> Result<Identity, IdentityError> {
        check("product", product, PRODUCT_BYTES)?;
        check("serial number", serial, SERIAL_BYTES_MAX)?;
        for (what, text) in [("product", product), ("serial number", serial)] {
            if text.is_empty() {
                return Err(IdentityError::Empty(what));
            }
        }
        check("revision", revision, REVISION_BYTES)?;
        Ok(Identity { product: product.to_owned(), revision: revision.to_owned(), serial: serial.to_owned(), naa })
    }

    /// The product's name.
    pub fn product(&self) -> &str {
        &self.product
    }

    /// The revision of the product.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The serial number.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// The name.
    pub fn naa(&self) -> &Naa {
        &self.naa
    }
}

fn check(what: &'static str, text: &str, bytes_max: usize) -> Result<(), IdentityError> {
    if !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err(IdentityError::Character(what));
    }
    if text.len() > bytes_max { Err(IdentityError::Long(what, bytes_max)) } else { Ok(()) }
}

/// Text of a fixed length, padded with spaces (SPC-5, "ASCII data field requirements").
pub(super) fn padded<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut out = [b' '; LEN];
    for (to, from) in out.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    out
}
