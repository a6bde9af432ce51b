//! LUKS containers: what one says of itself, and new ones.

use super::args::{CreateLuks, Format, Pbkdf};
use crate::failure::Failure;
use crate::out::{facts, size};
use ::image::tools::{CreateOptions, Place};
use luks::kdf::{Hash, Kdf, MEMORY_KIB_MAX};
use luks::new::New;
use luks::tools::Info;
use luks::xts::is_sector;
use luks::{LuksError, Passphrase};
use std::path::Path;

/// Iterations of PBKDF2 in a slot: a second or so.
const ITERATIONS: u32 = 2_000_000;

/// What a container says of itself; nothing where there is none.
pub(super) fn info(path: &Path) -> Result<Option<Info>, Failure> {
    match luks::tools::info(path) {
        // What cannot be read is for those who look for an image.
        Err(LuksError::Read { .. }) => Ok(None),
        other => other.map_err(Failure::of),
    }
}

/// `vringd image info`, and what was made.
pub(super) fn show(info: &Info) -> String {
    let mut lines = vec![
        ("container", info.path.clone()),
        ("format", format!("LUKS, version {}", info.version)),
        ("size", format!("{} ({} bytes), from byte {} on", size(info.size_bytes), info.size_bytes, info.data_offset)),
        ("cipher", format!("{}, a key of {} bits, sectors of {} bytes", info.cipher, info.key_bits, info.sector_bytes)),
        ("UUID", info.uuid.escape_debug().to_string()),
    ];
    if !info.label.is_empty() {
        lines.push(("label", info.label.escape_debug().to_string()));
    }
    for slot in &info.slots {
        let kdf = slot.unsupported.as_deref().or(slot.kdf).unwrap_or_default();
        lines.push(("key slot", format!("{}, {kdf}", slot.number)));
    }
    facts(&lines)
}

fn new(create: &CreateLuks) -> Result<New, Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
    let pbkdf2 = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: ITERATIONS, salt: Vec::new() };
    let kdf = match (create.pbkdf, create.luks_version, create.pbkdf_memory) {
        (Some(Pbkdf::Argon2id), 1, _) => return usage("--pbkdf: LUKS1 has pbkdf2 alone: use --luks-version 2"),
        (None, 1, None) | (Some(Pbkdf::Pbkdf2), _, None) => pbkdf2,
        (None | Some(Pbkdf::Pbkdf2), _, Some(_)) if create.luks_version == 1 || create.pbkdf.is_some() => {
            return usage("--pbkdf-memory: pbkdf2 needs none: use --pbkdf argon2id");
        }
        (.., memory) => {
            let (passes, lanes) = (4, 4);
            let half_kib = values::host_memory_bytes() >> 11;
            let kib = memory.map_or((1 << 20).min(half_kib), |memory| memory.0 >> 10);
            let memory_kib = u32::try_from(kib).ok().filter(|kib| (64..=MEMORY_KIB_MAX).contains(kib));
            let Some(memory_kib) = memory_kib else { return usage("--pbkdf-memory: use 64K to 4G") };
            Kdf::Argon2 { independent: false, passes, memory_kib, lanes, salt: Vec::new() }
        }
    };
    let new = New::version(create.luks_version, kdf);
    let sector_bytes = create.sector_size.unwrap_or(new.sector_bytes);
    if !is_sector(sector_bytes as usize) {
        return usage("--sector-size: use 512, 1024, 2048 or 4096");
    }
    if create.luks_version == 1 && sector_bytes != 512 {
        return usage("--sector-size: LUKS1 has sectors of 512 bytes: leave it out, or use --luks-version 2");
    }
    if !create.size.0.is_multiple_of(u64::from(sector_bytes)) || create.size.0 == 0 {
        return Err(Failure::Usage(format!("--size: must be a multiple of {sector_bytes} bytes, and not 0")));
    }
    Ok(New { sector_bytes, ..new })
}

/// Makes an image, and the container in it.
pub(super) fn create(create: CreateLuks) -> Result<Info, Failure> {
    let new = self::new(&create)?;
    let passphrase = Passphrase::read(&create.luks_key_file).map_err(Failure::of)?;
    let CreateLuks { path, size, format, force, .. } = create;
    let bytes = size.0.checked_add(new.data_offset());
    let bytes = bytes.ok_or_else(|| Failure::Usage("--size: is more than there can be".to_owned()))?;
    // Nothing that is there is overwritten by a key that cannot be had.
    let made = luks::tools::make(&path, &new, &passphrase).map_err(Failure::of)?;
    let place = match format {
        Format::Raw => Place::raw(&path, bytes, force),
        Format::Qcow2 => {
            let options = CreateOptions { size_bytes: Some(bytes), force, ..CreateOptions::default() };
            Place::qcow2(&path, &options)
        }
    };
    let destination = place.and_then(Place::take).map_err(Failure::of)?;
    made.write(&**destination.storage()).map_err(Failure::of)?;
    let info = luks::tools::info_of(&**destination.storage()).map_err(Failure::of)?;
    destination.keep().map_err(Failure::of)?;
    Ok(info)
}
