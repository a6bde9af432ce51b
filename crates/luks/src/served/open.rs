//! From a storage that holds a container, and a passphrase, to a disk.

use super::LuksStorage;
use super::blocks::Blocks;
use super::handover;
use super::pool::Pool;
use crate::header::{Data, Header};
use crate::slot::VolumeKey;
use crate::xts::Xts;
use crate::{LuksError, Passphrase};
use std::path::PathBuf;
use std::sync::Arc;
use storage::{Handed, OpenError, Opened, Storage};
use values::Luks;

/// Opens the container in `lower`. The key file is read now, before paths go out of sight, and the container is unlocked when it starts.
///
/// # Errors
/// What is wrong with the key file.
pub fn open(luks: &Luks, lower: Opened) -> Result<Opened, OpenError> {
    let passphrase = Passphrase::read(&luks.key_file)?;
    let about = format!("{luks:?} over {lower:?}");
    let allow_discards = luks.allow_discards;
    Ok(Opened::new(about, move || Ok(Arc::new(LuksStorage::unlock(lower.start()?, &passphrase, allow_discards)?))))
}

/// Goes on with a container that another program has unlocked; `lower` goes on with the storage below.
///
/// # Errors
/// Those of `lower`; or the key is not among what was handed over.
pub fn adopt(
    luks: &Luks,
    handed: Handed,
    lower: impl FnOnce(Handed) -> Result<Arc<dyn Storage>, OpenError>,
) -> Result<Arc<dyn Storage>, OpenError> {
    let (below, data, key) = handover::take(handed)?;
    Ok(Arc::new(LuksStorage::new(lower(below)?, data, key, luks.allow_discards)?))
}

impl LuksStorage {
    /// Unlocks the container in `lower`, which a passphrase opens. It takes as long as the header says, and memory; and blocks.
    ///
    /// # Errors
    /// It is no container, one that is not supported, or the passphrase opens none of its slots.
    pub fn unlock(
        lower: Arc<dyn Storage>,
        passphrase: &Passphrase,
        allow_discards: bool,
    ) -> Result<LuksStorage, LuksError> {
        let path = || PathBuf::from(lower.describe().target);
        let mut bytes = Blocks::of(&*lower).map_err(|source| LuksError::Read { path: path(), source })?;
        let header = Header::read(&mut |at, buf| bytes.read(at, buf));
        let header = header.map_err(|source| LuksError::Read { path: path(), source })?;
        let header = header.map_err(|source| LuksError::Format { path: path(), source })?;
        let unlocked = header.unlock(passphrase.bytes(), &mut |at, buf| bytes.read(at, buf));
        let key =
            unlocked.map_err(|source| LuksError::Unlock { path: path(), key_file: passphrase.path.clone(), source })?;
        drop(bytes);
        LuksStorage::new(lower, header.data, key, allow_discards)
    }

    pub(super) fn new(
        lower: Arc<dyn Storage>,
        data: Data,
        key: VolumeKey,
        allow_discards: bool,
    ) -> Result<LuksStorage, LuksError> {
        let path = || PathBuf::from(lower.describe().target);
        let present_bytes = lower.capacity_bytes();
        if data.within(present_bytes) == 0 {
            return Err(LuksError::Empty { path: path(), present_bytes, offset: data.offset });
        }
        // What a read leaves as it was, of a buffer of ours, would be another guest's.
        let cipher = Xts::new(key.bytes()).filter(|_| lower.fills());
        let cipher = cipher.ok_or_else(|| LuksError::Lower { path: path() })?;
        let read_only = lower.describe().read_only;
        Ok(LuksStorage { lower, data, cipher, key, allow_discards, read_only, pool: Pool::new() })
    }
}
