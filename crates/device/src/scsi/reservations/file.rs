//! Reservations as bytes: what a file keeps of them over a loss of power, and a live upgrade hands over.
//! `docs/formats/reservations.md` is the description.

use std::collections::BTreeMap;

use super::kind::Kind;
use super::state::{REGISTRATIONS_MAX, Reservation, Reservations};
use crate::scsi::{InitiatorPort, Nexus, TargetPort};
use crate::wire::{le16, le32, le64, put};

/// What the bytes begin with.
pub const MAGIC: [u8; 8] = *b"VRINGDPR";
/// The only version there is.
pub const VERSION: u32 = 1;
/// Bytes before the registrations, and of each of them.
const HEADER_BYTES: usize = 64;
const REGISTRATION_BYTES: usize = 24;
/// Longest form.
pub const FILE_BYTES_MAX: usize = HEADER_BYTES + REGISTRATIONS_MAX * REGISTRATION_BYTES;

/// Offsets into the header.
mod at {
    pub(super) const VERSION: usize = 8;
    pub(super) const COUNT: usize = 12;
    pub(super) const CHECKSUM: usize = 16;
    pub(super) const GENERATION: usize = 24;
    pub(super) const FLAGS: usize = 28;
    pub(super) const TYPE: usize = 29;
    pub(super) const HOLDER: usize = 32;
    pub(super) const RESERVED: usize = 48;
}

/// Flags: APTPL, and there is a reservation of SCSI-2.
const SURVIVES_POWER_LOSS: u8 = 1;
const IS_RESERVED: u8 = 2;

/// Why bytes are no reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum FileError {
    /// the file is not one of reservations
    Magic,
    /// the file has version {0}, this program reads version 1
    Version(u32),
    /// the file has {bytes} bytes, {registrations} registrations need {needed}
    Length {
        /// Its length.
        bytes: usize,
        /// Number of registrations that it says.
        registrations: u32,
        /// The length that it should have.
        needed: u64,
    },
    /// the file has {0} registrations, more than 256
    Registrations(u32),
    /// the file's checksum does not match
    Checksum,
    /// a field that is reserved is not zero, {0} bytes into the file
    Reserved(usize),
    /// registration {0} has no key
    Key(usize),
    /// registration {0} is not behind the one before it
    Order(usize),
    /// {0} is no type of reservation
    Type(u8),
    /// the holder is not registered
    Holder,
    /// a reservation by RESERVE stands beside registrations
    Beside,
}

impl Reservations {
    /// All of it as bytes, at most [`FILE_BYTES_MAX`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES];
        put::<0, _, _>(&mut header, MAGIC);
        put::<{ at::VERSION }, _, _>(&mut header, VERSION.to_le_bytes());
        put::<{ at::COUNT }, _, _>(&mut header, (self.registrations.len() as u32).to_le_bytes());
        put::<{ at::GENERATION }, _, _>(&mut header, self.generation.to_le_bytes());
        let mut flags = 0;
        if self.survives_power_loss {
            flags |= SURVIVES_POWER_LOSS;
        }
        if let Some(nexus) = self.reserved {
            flags |= IS_RESERVED;
            put::<{ at::RESERVED }, _, _>(&mut header, nexus.to_bytes());
        }
        if let Some(held) = self.reservation {
            put::<{ at::TYPE }, _, _>(&mut header, [held.kind.code()]);
            if let Some(holder) = held.holder {
                put::<{ at::HOLDER }, _, _>(&mut header, holder.to_bytes());
            }
        }
        put::<{ at::FLAGS }, _, _>(&mut header, [flags]);
        let mut out = header.to_vec();
        for (nexus, key) in self.registrations() {
            out.extend_from_slice(&nexus.to_bytes());
            out.extend_from_slice(&key.to_le_bytes());
        }
        seal(&mut out);
        out
    }

    /// What a file has to hold before the status of the last change: nothing (no file) unless registrations are to survive a loss
    /// of power.
    pub fn stored(&self) -> Option<Vec<u8>> {
        (self.survives_power_loss && !self.registrations.is_empty()).then(|| self.to_bytes())
    }

    /// Reads what [`to_bytes`](Reservations::to_bytes) wrote. Of what a file has kept over a loss of power,
    /// [`after_power_loss`](Reservations::after_power_loss) says what is left.
    ///
    /// # Errors
    /// One that names the first thing that is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Reservations, FileError> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(FileError::Magic)?;
        if !header.starts_with(&MAGIC) {
            return Err(FileError::Magic);
        }
        let version = le32::<{ at::VERSION }, _>(header);
        if version != VERSION {
            return Err(FileError::Version(version));
        }
        let count = le32::<{ at::COUNT }, _>(header);
        let needed = HEADER_BYTES as u64 + u64::from(count) * REGISTRATION_BYTES as u64;
        if bytes.len() as u64 != needed {
            return Err(FileError::Length { bytes: bytes.len(), registrations: count, needed });
        }
        if count as usize > REGISTRATIONS_MAX {
            return Err(FileError::Registrations(count));
        }
        if checksum(bytes) != le64::<{ at::CHECKSUM }, _>(header) {
            return Err(FileError::Checksum);
        }
        let registrations = registrations(rest)?;
        let flags = header[at::FLAGS];
        let reservation = held(header, &registrations)?;
        let reserved = nexus::<{ at::RESERVED }, _>(header, 0)?;
        if flags & !(SURVIVES_POWER_LOSS | IS_RESERVED) != 0 {
            return Err(FileError::Reserved(at::FLAGS));
        }
        let is_reserved = flags & IS_RESERVED != 0;
        if is_reserved && !registrations.is_empty() {
            return Err(FileError::Beside);
        }
        if !is_reserved && reserved != Nexus::NOBODY {
            return Err(FileError::Reserved(at::RESERVED));
        }
        Ok(Reservations {
            registrations,
            reservation,
            generation: le32::<{ at::GENERATION }, _>(header),
            survives_power_loss: flags & SURVIVES_POWER_LOSS != 0,
            volatile: false,
            reserved: is_reserved.then_some(reserved),
        })
    }
}

/// The reservation that a header has.
fn held(header: &[u8; HEADER_BYTES], registrations: &BTreeMap<Nexus, u64>) -> Result<Option<Reservation>, FileError> {
    let holder = nexus::<{ at::HOLDER }, _>(header, 0)?;
    if header[at::TYPE + 1] != 0 || header[at::TYPE + 2] != 0 {
        return Err(FileError::Reserved(at::TYPE + 1));
    }
    let kind = match header[at::TYPE] {
        0 => None,
        code => Some(Kind::from_code(code).ok_or(FileError::Type(code))?),
    };
    let everybody = kind.is_none_or(Kind::is_held_by_all);
    match kind {
        _ if everybody && holder != Nexus::NOBODY => Err(FileError::Reserved(at::HOLDER)),
        None => Ok(None),
        // One at least holds it.
        Some(_) if registrations.is_empty() => Err(FileError::Holder),
        Some(kind) if everybody => Ok(Some(Reservation { kind, holder: None })),
        Some(kind) if registrations.contains_key(&holder) => Ok(Some(Reservation { kind, holder: Some(holder) })),
        Some(_) => Err(FileError::Holder),
    }
}

fn registrations(rest: &[u8]) -> Result<BTreeMap<Nexus, u64>, FileError> {
    let mut registrations = BTreeMap::new();
    for (index, bytes) in rest.as_chunks::<REGISTRATION_BYTES>().0.iter().enumerate() {
        let nexus = nexus::<0, _>(bytes, HEADER_BYTES + index * REGISTRATION_BYTES)?;
        let key = le64::<16, _>(bytes);
        if key == 0 {
            return Err(FileError::Key(index));
        }
        if registrations.last_key_value().is_some_and(|(last, _)| *last >= nexus) {
            return Err(FileError::Order(index));
        }
        registrations.insert(nexus, key);
    }
    Ok(registrations)
}

/// Puts the checksum in, of bytes long enough to have one.
pub(crate) fn seal(bytes: &mut [u8]) {
    let checksum = checksum(bytes).to_le_bytes();
    if let Some(field) = bytes.get_mut(at::CHECKSUM..at::CHECKSUM + 8) {
        field.copy_from_slice(&checksum);
    }
}

/// XXH3, 64 bits, of everything but the field itself.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(bytes.get(..at::CHECKSUM).unwrap_or_default());
    hash.update(bytes.get(at::CHECKSUM + 8..).unwrap_or_default());
    hash.digest()
}

/// A nexus in the file: initiator port (8), target port (2), zeroes (6).
const NEXUS_BYTES: usize = 16;

impl Nexus {
    /// What stands where there is none.
    const NOBODY: Nexus = Nexus { initiator: InitiatorPort(0), port: TargetPort(0) };

    fn to_bytes(self) -> [u8; NEXUS_BYTES] {
        let mut out = [0; NEXUS_BYTES];
        put::<0, _, _>(&mut out, self.initiator.0.to_le_bytes());
        put::<8, _, _>(&mut out, self.port.0.to_le_bytes());
        out
    }
}

/// The nexus at `AT` of `bytes`, which begin at `start` of the file.
fn nexus<const AT: usize, const N: usize>(bytes: &[u8; N], start: usize) -> Result<Nexus, FileError> {
    const { assert!(AT + NEXUS_BYTES <= N) };
    let mut field = [0; NEXUS_BYTES];
    field.copy_from_slice(&bytes[AT..AT + NEXUS_BYTES]);
    let nexus = Nexus { initiator: InitiatorPort(le64::<0, _>(&field)), port: TargetPort(le16::<8, _>(&field)) };
    // What is not of the fields is zero.
    if nexus.to_bytes() == field { Ok(nexus) } else { Err(FileError::Reserved(start + AT + 10)) }
}
