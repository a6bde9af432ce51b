//! LUKS1: a header of 592 bytes with eight key slots.

use crate::FormatError;
use crate::field::{array, put, text, u16_at, u32_at};
use crate::header::{Data, Digest, Header, MAGIC};
use crate::kdf::{Hash, Kdf};
use crate::slot::{Area, STRIPES, Slot};

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 592;
/// Slots of a header.
pub(crate) const SLOTS: usize = 8;

const SLOTS_AT: usize = 208;
const SLOT_BYTES: usize = 48;
const SALT_BYTES: usize = 32;
pub(crate) const DIGEST_BYTES: usize = 20;
const ENABLED: u32 = 0x00ac_71f3;
const DISABLED: u32 = 0x0000_dead;
const SECTOR_BYTES: u64 = 512;
/// Stripes begin at multiples of this, behind the header.
const AREA_ALIGN: usize = 4096;

/// Reads a header.
///
/// # Errors
/// What is wrong with it, or not supported.
pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FormatError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(FormatError::Foreign);
    }
    let version = u16_at(bytes, 6);
    if version != 1 {
        return Err(FormatError::Version(version));
    }
    let (cipher, mode) = (text(bytes, 8, 32), text(bytes, 40, 32));
    if (&*cipher, &*mode) != ("aes", "xts-plain64") {
        return Err(FormatError::unsupported("the cipher", format!("{cipher}-{mode}"), "aes-xts-plain64 is"));
    }
    let hash = Hash::named("the hash", &text(bytes, 72, 32))?;
    let key_bytes = u32_at(bytes, 108) as usize;
    let offset = u64::from(u32_at(bytes, 104)) * SECTOR_BYTES;
    let data = Data { offset, bytes: None, sector_bytes: 512, first_tweak: 0, key_bytes };
    data.check()?;
    let digest = Digest {
        hash,
        iterations: u32_at(bytes, 164),
        salt: array::<SALT_BYTES>(bytes, 132).to_vec(),
        value: array::<DIGEST_BYTES>(bytes, 112).to_vec(),
    };
    digest.check()?;
    let mut slots = Vec::new();
    for number in 0..SLOTS {
        let at = SLOTS_AT + number * SLOT_BYTES;
        match u32_at(bytes, at) {
            DISABLED => continue,
            ENABLED => {}
            state => return Err(FormatError::value("the state of a key slot", state)),
        }
        let salt = array::<SALT_BYTES>(bytes, at + 8).to_vec();
        let area = Area {
            kdf: Kdf::Pbkdf2 { hash, iterations: u32_at(bytes, at + 4), salt },
            offset: u64::from(u32_at(bytes, at + 40)) * SECTOR_BYTES,
            key_bytes,
            stripes: u32_at(bytes, at + 44),
            hash,
        };
        slots.push(Slot { number: number as u32, area: area.check(key_bytes) });
    }
    Ok(Header { version, uuid: text(bytes, 168, 40), label: String::new(), data, digest, slots })
}

/// The bytes of a header of which every slot is of the hash of its digest and derived by PBKDF2; `None` for any other.
pub(crate) fn encode(header: &Header) -> Option<[u8; HEADER_BYTES]> {
    let mut bytes = [0; HEADER_BYTES];
    put(&mut bytes, 0, &MAGIC);
    put(&mut bytes, 6, &1u16.to_be_bytes());
    put(&mut bytes, 8, b"aes");
    put(&mut bytes, 40, b"xts-plain64");
    put(&mut bytes, 72, header.digest.hash.name().as_bytes());
    put(&mut bytes, 104, &sectors(header.data.offset)?);
    put(&mut bytes, 108, &(header.data.key_bytes as u32).to_be_bytes());
    put(&mut bytes, 112, header.digest.value.get(..DIGEST_BYTES)?);
    put(&mut bytes, 132, header.digest.salt.get(..SALT_BYTES)?);
    put(&mut bytes, 164, &header.digest.iterations.to_be_bytes());
    put(&mut bytes, 168, header.uuid.as_bytes().get(..39.min(header.uuid.len()))?);
    for number in 0..SLOTS {
        let at = SLOTS_AT + number * SLOT_BYTES;
        let Some(slot) = header.slots.iter().find(|slot| slot.number as usize == number) else {
            // It has its place all the same, which must be nobody else's.
            put(&mut bytes, at, &DISABLED.to_be_bytes());
            put(&mut bytes, at + 40, &sectors(place(number, header.data.key_bytes))?);
            put(&mut bytes, at + 44, &STRIPES.to_be_bytes());
            continue;
        };
        let area = slot.area.as_ref().ok()?;
        let Kdf::Pbkdf2 { hash, iterations, salt } = &area.kdf else { return None };
        if *hash != header.digest.hash || area.hash != *hash {
            return None;
        }
        put(&mut bytes, at, &ENABLED.to_be_bytes());
        put(&mut bytes, at + 4, &iterations.to_be_bytes());
        put(&mut bytes, at + 8, salt.get(..SALT_BYTES)?);
        put(&mut bytes, at + 40, &sectors(area.offset)?);
        put(&mut bytes, at + 44, &area.stripes.to_be_bytes());
    }
    Some(bytes)
}

/// First byte of the stripes of a slot, as cryptsetup lays them out.
pub(crate) fn place(number: usize, key_bytes: usize) -> u64 {
    let bytes = (STRIPES as usize * key_bytes).next_multiple_of(AREA_ALIGN);
    (AREA_ALIGN + number * bytes) as u64
}

fn sectors(offset: u64) -> Option<[u8; 4]> {
    Some(u32::try_from(offset / SECTOR_BYTES).ok()?.to_be_bytes())
}
