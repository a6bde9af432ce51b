//! LUKS2: two copies of a binary header with metadata in JSON.

use crate::FormatError;
use crate::field::{array, put, text, u16_at, u64_at};
use crate::header::{CIPHER, Data, Digest, Header, MAGIC, Read};
use crate::kdf::{Hash, Kdf};
use crate::slot::{Area, Slot};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Bytes of the binary part.
pub(crate) const BINARY_BYTES: usize = 4096;
/// The first bytes of the second copy.
const MAGIC_SECOND: [u8; 6] = *b"SKUL\xba\xbe";
/// Sizes of a copy with its JSON, which are as well the offsets at which the second one may be.
const SIZES: [u64; 9] = [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];
const CHECKSUM_AT: usize = 448;
const CHECKSUM_BYTES: usize = 64;

/// A copy of which the checksum is right.
struct Copy {
    sequence: u64,
    bytes: Vec<u8>,
}

/// Reads the newer of both copies.
pub(crate) fn read(read: &mut Read<'_>) -> io::Result<Result<Header, FormatError>> {
    let first = copy(read, 0, MAGIC)?;
    let places = first.as_ref().map_or_else(|| SIZES.to_vec(), |first| vec![first.bytes.len() as u64]);
    let mut second = None;
    for at in places {
        second = copy(read, at, MAGIC_SECOND)?;
        if second.is_some() {
            break;
        }
    }
    let newer = match (first, second) {
        (Some(first), Some(second)) if second.sequence > first.sequence => second,
        (Some(first), _) => first,
        (None, Some(second)) => second,
        (None, None) => return Ok(Err(FormatError::Checksum)),
    };
    Ok(parse(&newer.bytes))
}

/// A copy at this offset; none where it is damaged, or was never there.
fn copy(read: &mut Read<'_>, at: u64, magic: [u8; 6]) -> io::Result<Option<Copy>> {
    let mut binary = [0; BINARY_BYTES];
    let there = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    };
    if !there(read(at, &mut binary))? || !binary.starts_with(&magic) || u16_at(&binary, 6) != 2 {
        return Ok(None);
    }
    let size = u64_at(&binary, 8);
    // Where it is, it says: a copy of a copy is none.
    if !SIZES.contains(&size) || u64_at(&binary, 256) != at || at != 0 && at != size {
        return Ok(None);
    }
    let mut bytes = vec![0; size as usize];
    if !there(read(at, &mut bytes))? {
        return Ok(None);
    }
    let said: [u8; CHECKSUM_BYTES] = array(&bytes, CHECKSUM_AT);
    let Some(found) = checksum(&mut bytes) else { return Ok(None) };
    let right = said == found;
    put(&mut bytes, CHECKSUM_AT, &said);
    Ok(right.then(|| Copy { sequence: u64_at(&bytes, 16), bytes }))
}

/// The checksum of a copy, whose own place is zero for that.
fn checksum(bytes: &mut [u8]) -> Option<[u8; CHECKSUM_BYTES]> {
    put(bytes, CHECKSUM_AT, &[0; CHECKSUM_BYTES]);
    let hash = Hash::named("the checksum", &text(bytes, 72, 32)).ok()?;
    let mut out = [0; CHECKSUM_BYTES];
    hash.of(&[bytes], &mut out);
    Some(out)
}

/// Numbers of 64 bits are text, because those of JSON are not.
fn number(what: &'static str, text: &str) -> Result<u64, FormatError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let refused = || FormatError::unsupported(what, text, "a number is");
    text.parse().ok().filter(|_| digits).ok_or_else(refused)
}

/// Longest salt and digest, as base64: those of cryptsetup have 32 bytes, and the hash's.
const BASE64_BYTES_MAX: usize = 1024;
/// Most slots of a container. Source: LUKS2_KEYSLOTS_MAX in cryptsetup's `lib/luks2/luks2.h`.
const SLOTS_MAX: u32 = 32;

fn bytes(what: &'static str, text: &str) -> Result<Vec<u8>, FormatError> {
    if text.len() > BASE64_BYTES_MAX {
        return Err(FormatError::value(what, text.len() as u64));
    }
    BASE64.decode(text).map_err(|_| FormatError::unsupported(what, text, "base64 is"))
}

#[derive(Deserialize)]
struct Metadata {
    keyslots: BTreeMap<String, Keyslot>,
    segments: BTreeMap<String, Segment>,
    digests: BTreeMap<String, StoredDigest>,
    config: Config,
}

/// All of it may be missing in a slot of another type.
#[derive(Deserialize)]
struct Keyslot {
    #[serde(rename = "type")]
    kind: String,
    key_size: Option<u32>,
    priority: Option<u8>,
    af: Option<Stripes>,
    area: Option<StoredArea>,
    kdf: Option<StoredKdf>,
}

#[derive(Deserialize)]
struct Stripes {
    #[serde(rename = "type")]
    kind: String,
    stripes: Option<u32>,
    hash: Option<String>,
}

#[derive(Deserialize)]
struct StoredArea {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    encryption: Option<String>,
    key_size: Option<u32>,
}

#[derive(Deserialize)]
struct StoredKdf {
    #[serde(rename = "type")]
    kind: String,
    salt: String,
    hash: Option<String>,
    iterations: Option<u32>,
    time: Option<u32>,
    memory: Option<u32>,
    cpus: Option<u32>,
}

#[derive(Deserialize)]
struct Segment {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<u32>,
    integrity: Option<serde_json::Value>,
    flags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct StoredDigest {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    segments: Vec<String>,
    salt: String,
    digest: String,
    hash: Option<String>,
    iterations: Option<u32>,
}

#[derive(Deserialize)]
struct Config {
    requirements: Option<Requirements>,
}

#[derive(Deserialize)]
struct Requirements {
    mandatory: Option<Vec<String>>,
}

fn parse(copy: &[u8]) -> Result<Header, FormatError> {
    let area = &copy[BINARY_BYTES..];
    let end = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
    let metadata = serde_json::from_slice(&area[..end]);
    // An error quotes what it does not understand.
    let cut = |error: serde_json::Error| error.to_string().chars().take(160).flat_map(char::escape_debug).collect();
    let metadata: Metadata = metadata.map_err(|error| FormatError::Metadata(cut(error)))?;
    let mandatory = metadata.config.requirements.as_ref().and_then(|all| all.mandatory.as_ref()?.first());
    if let Some(requirement) = mandatory {
        let supported = "end what is under way with `cryptsetup reencrypt --resume-only`; others are not";
        return Err(FormatError::unsupported("the requirement", requirement, supported));
    }
    let (name, segment) = segment(&metadata)?;
    let (digest, keyslots) = digest(&metadata, name)?;
    let mut slots = Vec::new();
    let mut found = Vec::new();
    let mut named = BTreeSet::new();
    for name in keyslots {
        let Some(keyslot) = metadata.keyslots.get(name) else { continue };
        let number = number("the number of a key slot", name)?.try_into().ok().filter(|number| *number < SLOTS_MAX);
        let number: u32 = number.ok_or_else(|| FormatError::unsupported("the key slot", name, "0 to 31 are"))?;
        if !named.insert(number) {
            return Err(FormatError::Metadata(format!("key slot {number} is named twice by one digest")));
        }
        // One that must be asked for by its number is not tried.
        let priority = keyslot.priority.unwrap_or(1);
        if priority > 0 {
            found.push((std::cmp::Reverse(priority), number, keyslot));
        }
    }
    found.sort_by_key(|(priority, number, _)| (*priority, *number));
    // All slots of a digest have its key.
    let key_bytes = found.iter().filter(|(.., slot)| slot.kind == "luks2").find_map(|(.., slot)| slot.key_size);
    let key_bytes = key_bytes.unwrap_or(64) as usize;
    let data = Data { key_bytes, ..segment };
    data.check()?;
    for (_, number, keyslot) in found {
        slots.push(Slot { number, area: keyslot.area(key_bytes) });
    }
    Ok(Header { version: 2, uuid: text(copy, 168, 40), label: text(copy, 24, 48), data, digest, slots })
}

/// The one segment, by its name.
fn segment(metadata: &Metadata) -> Result<(&str, Data), FormatError> {
    let mut segments = metadata.segments.iter();
    let (Some((name, segment)), None) = (segments.next(), segments.next()) else {
        let count = metadata.segments.len().to_string();
        return Err(FormatError::unsupported("the number of segments", count, "1 is"));
    };
    if segment.kind != "crypt" {
        return Err(FormatError::unsupported("the segment type", &segment.kind, "crypt is"));
    }
    if segment.integrity.is_some() {
        return Err(FormatError::unsupported("the segment field", "integrity", "containers without it are"));
    }
    if let Some(flag) = segment.flags.as_ref().and_then(|flags| flags.first()) {
        return Err(FormatError::unsupported("the segment flag", flag, "none is"));
    }
    supported("the cipher", segment.encryption.as_deref().unwrap_or_default(), CIPHER, "aes-xts-plain64 is")?;
    let data = Data {
        offset: number("the offset of its data", &segment.offset)?,
        bytes: match &*segment.size {
            "dynamic" => None,
            size => Some(number("the size of its data", size)?),
        },
        sector_bytes: segment.sector_size.unwrap_or(512),
        first_tweak: number("the first tweak", segment.iv_tweak.as_deref().unwrap_or("0"))?,
        key_bytes: 0,
    };
    Ok((name, data))
}

fn supported(what: &'static str, value: &str, known: &str, words: &'static str) -> Result<(), FormatError> {
    if value == known { Ok(()) } else { Err(FormatError::unsupported(what, value, words)) }
}

/// The digest of the key of a segment, and the slots that have it.
fn digest<'a>(metadata: &'a Metadata, segment: &str) -> Result<(Digest, &'a [String]), FormatError> {
    let found = metadata.digests.values().find(|digest| digest.segments.iter().any(|of| of == segment));
    let found = found.ok_or_else(|| FormatError::Metadata("no digest is of its segment".to_owned()))?;
    supported("the digest", &found.kind, "pbkdf2", "pbkdf2 is")?;
    let digest = Digest {
        hash: Hash::named("the hash of its digest", found.hash.as_deref().unwrap_or_default())?,
        iterations: found.iterations.unwrap_or(0),
        salt: bytes("the salt of its digest", &found.salt)?,
        value: bytes("its digest", &found.digest)?,
    };
    digest.check()?;
    Ok((digest, &found.keyslots))
}

impl Keyslot {
    fn area(&self, volume_key_bytes: usize) -> Result<Area, FormatError> {
        supported("the key slot type", &self.kind, "luks2", "luks2 is")?;
        let (Some(key_size), Some(af), Some(area), Some(kdf)) = (self.key_size, &self.af, &self.area, &self.kdf) else {
            return Err(FormatError::Metadata("a key slot has not all that it needs".to_owned()));
        };
        if key_size as usize != volume_key_bytes {
            return Err(FormatError::value("the length of the key of a slot", key_size));
        }
        supported("the area type", &area.kind, "raw", "raw is")?;
        supported("the splitter", &af.kind, "luks1", "luks1 is")?;
        supported(
            "the cipher of a key slot",
            area.encryption.as_deref().unwrap_or_default(),
            CIPHER,
            "aes-xts-plain64 is",
        )?;
        let area = Area {
            kdf: kdf.read()?,
            offset: number("the offset of a key slot", &area.offset)?,
            key_bytes: area.key_size.unwrap_or(0) as usize,
            stripes: af.stripes.unwrap_or(0),
            hash: Hash::named("the hash of the splitter", af.hash.as_deref().unwrap_or_default())?,
        };
        area.check(volume_key_bytes)
    }
}

impl StoredKdf {
    fn read(&self) -> Result<Kdf, FormatError> {
        let salt = bytes("the salt of a key slot", &self.salt)?;
        match &*self.kind {
            "pbkdf2" => Ok(Kdf::Pbkdf2 {
                hash: Hash::named("the hash of a key slot", self.hash.as_deref().unwrap_or_default())?,
                iterations: self.iterations.unwrap_or(0),
                salt,
            }),
            "argon2i" | "argon2id" => Ok(Kdf::Argon2 {
                independent: self.kind == "argon2i",
                passes: self.time.unwrap_or(0),
                memory_kib: self.memory.unwrap_or(0),
                lanes: self.cpus.unwrap_or(0),
                salt,
            }),
            other => Err(FormatError::unsupported("the key derivation", other, "pbkdf2, argon2i and argon2id are")),
        }
    }
}

/// Bytes of each copy of a new header.
const NEW_BYTES: u64 = SIZES[0];
/// Where the key material of a new container begins: behind both copies.
pub(crate) const AREAS_AT: u64 = 2 * NEW_BYTES;

/// Both copies of the header of a new container, each with its offset. `salt` makes a salt for each.
pub(crate) fn encode(header: &Header, salt: &mut dyn FnMut() -> [u8; 64]) -> Vec<(u64, Vec<u8>)> {
    let json = metadata(header).to_string();
    let copies = [(0, MAGIC), (NEW_BYTES, MAGIC_SECOND)];
    let copies = copies.map(|(at, magic)| {
        let mut bytes = vec![0; NEW_BYTES as usize];
        put(&mut bytes, 0, &magic);
        put(&mut bytes, 6, &2u16.to_be_bytes());
        put(&mut bytes, 8, &NEW_BYTES.to_be_bytes());
        put(&mut bytes, 16, &1u64.to_be_bytes());
        put(&mut bytes, 24, header.label.as_bytes().get(..47).unwrap_or(header.label.as_bytes()));
        put(&mut bytes, 72, b"sha256");
        put(&mut bytes, 104, &salt());
        put(&mut bytes, 168, header.uuid.as_bytes().get(..39).unwrap_or(header.uuid.as_bytes()));
        put(&mut bytes, 256, &at.to_be_bytes());
        put(&mut bytes, BINARY_BYTES, json.as_bytes());
        if let Some(checksum) = checksum(&mut bytes) {
            put(&mut bytes, CHECKSUM_AT, &checksum);
        }
        (at, bytes)
    });
    copies.into()
}

/// The metadata of a new container.
fn metadata(header: &Header) -> serde_json::Value {
    let data = &header.data;
    let mut keyslots = serde_json::Map::new();
    for slot in &header.slots {
        let Ok(area) = &slot.area else { continue };
        let kdf = match &area.kdf {
            Kdf::Pbkdf2 { hash, iterations, salt } => {
                json!({ "type": "pbkdf2", "hash": hash.name(), "iterations": iterations, "salt": BASE64.encode(salt) })
            }
            Kdf::Argon2 { passes, memory_kib, lanes, salt, .. } => json!({
                "type": area.kdf.name(), "time": passes, "memory": memory_kib, "cpus": lanes,
                "salt": BASE64.encode(salt),
            }),
        };
        let size = area.bytes(data.key_bytes).next_multiple_of(4096).to_string();
        keyslots.insert(
            slot.number.to_string(),
            json!({
                "type": "luks2", "key_size": data.key_bytes,
                "af": { "type": "luks1", "stripes": area.stripes, "hash": area.hash.name() },
                "area": {
                    "type": "raw", "offset": area.offset.to_string(), "size": size, "encryption": CIPHER,
                    "key_size": area.key_bytes,
                },
                "kdf": kdf,
            }),
        );
    }
    let numbers: Vec<String> = header.slots.iter().map(|slot| slot.number.to_string()).collect();
    let digest = &header.digest;
    json!({
        "keyslots": keyslots,
        "tokens": {},
        "segments": { "0": {
            "type": "crypt", "offset": data.offset.to_string(),
            "size": data.bytes.map_or("dynamic".to_owned(), |bytes| bytes.to_string()),
            "iv_tweak": data.first_tweak.to_string(), "encryption": CIPHER, "sector_size": data.sector_bytes,
        } },
        "digests": { "0": {
            "type": "pbkdf2", "keyslots": numbers, "segments": ["0"], "hash": digest.hash.name(),
            "iterations": digest.iterations, "salt": BASE64.encode(&digest.salt), "digest": BASE64.encode(&digest.value),
        } },
        "config": {
            "json_size": (NEW_BYTES - BINARY_BYTES as u64).to_string(),
            "keyslots_size": (data.offset - AREAS_AT).to_string(),
        },
    })
}

/// Makes the checksums of both copies right, wherever they are: for fuzzing, which would not get past them.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn seal(bytes: &mut [u8]) {
    for at in std::iter::once(0).chain(SIZES) {
        let Some(rest) = bytes.get_mut(at as usize..).filter(|rest| rest.len() >= BINARY_BYTES) else { break };
        let size = u64_at(rest, 8) as usize;
        if let Some(copy) = rest.get_mut(..size).filter(|copy| copy.len() >= BINARY_BYTES)
            && let Some(checksum) = checksum(copy)
        {
            put(copy, CHECKSUM_AT, &checksum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Each slot that a digest names has its salt decoded and is tried: a header must not have them without end.
    #[test]
    fn slots_and_salts_have_bounds() {
        let good = testing::bytes(&testing::cheap(2, 32, 512), 1);
        let changed = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut bytes = good.clone();
            let size = u64::from_be_bytes(crate::field::array(&bytes, 8)) as usize;
            let area = &mut bytes[BINARY_BYTES..size];
            let end = area.iter().position(|byte| *byte == 0).unwrap();
            let mut metadata: serde_json::Value = serde_json::from_slice(&area[..end]).unwrap();
            change(&mut metadata);
            let text = serde_json::to_vec(&metadata).unwrap();
            area.fill(0);
            area[..text.len()].copy_from_slice(&text);
            seal(&mut bytes[..size]);
            let mut reader = testing::reader(&bytes);
            read(&mut reader).unwrap().map_err(|error| error.to_string())
        };
        changed(&|_| {}).unwrap();
        let names = |names: &[&str]| {
            let names = names.to_vec();
            changed(&move |metadata| {
                metadata["keyslots"]["32"] = metadata["keyslots"]["0"].clone();
                metadata["digests"]["0"]["keyslots"] = names.clone().into();
            })
        };
        assert!(names(&["0", "0"]).unwrap_err().contains("named twice"));
        assert!(names(&["0", "32"]).unwrap_err().contains("0 to 31 are"));
        let salt = BASE64.encode([7; 1000]);
        let long = changed(&|metadata| metadata["keyslots"]["0"]["kdf"]["salt"] = salt.clone().into()).unwrap();
        assert!(long.slots[0].area.is_err(), "a long salt is decoded");
        assert!(changed(&|metadata| metadata["digests"]["0"]["salt"] = salt.clone().into()).is_err());
    }
}
