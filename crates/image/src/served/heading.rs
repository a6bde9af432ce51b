//! Another header for an image that is open.

use super::chain::Chain;
use super::disk;
use super::error::Trouble;
use crate::header::Header;
use crate::rewrite::{self, Steps};
use std::sync::PoisonError;

const SECTOR_BYTES: usize = 512;

/// Writes what `steps` makes of the header and the bytes of the first cluster, one after the other, each on stable storage before the next:
/// a power cut leaves one header or the other.
///
/// # Errors
/// There is no room for it, or it cannot be written.
pub(super) fn change_header(chain: &Chain, steps: impl FnOnce(&Header, &[u8]) -> Steps) -> Result<(), Trouble> {
    // Others change other fields of the header at any time.
    let _one_at_a_time = chain.header.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut first, steps) = planned(chain, steps)?;
    let top = chain.top();
    let file = chain.file(top.file);
    for (number, (at, bytes)) in steps.iter().enumerate() {
        first[*at..at + bytes.len()].copy_from_slice(bytes);
        let sectors = at / SECTOR_BYTES * SECTOR_BYTES..(at + bytes.len()).next_multiple_of(SECTOR_BYTES);
        // Once something has changed, nobody knows which header the image has. What comes before others lies where nothing leads yet.
        let is_aside = steps.len() > 1 && number == 0 && *at >= SECTOR_BYTES;
        let failed = |errno| if is_aside { Trouble::Errno(errno) } else { Trouble::Apart(errno) };
        disk::write(file, sectors.start as u64, &first[sectors]).map_err(failed)?;
        chain.flush(top.file).map_err(failed)?;
    }
    Ok(())
}

/// Whether [`change_header`] would find room.
///
/// # Errors
/// As [`change_header`].
pub(super) fn check_header(chain: &Chain, steps: impl FnOnce(&Header, &[u8]) -> Steps) -> Result<(), Trouble> {
    let _one_at_a_time = chain.header.lock().unwrap_or_else(PoisonError::into_inner);
    planned(chain, steps).map(|_| ())
}

/// The bytes of the first cluster, and what is to be written there, if it fits. Whoever asks holds the lock of the header.
fn planned(chain: &Chain, steps: impl FnOnce(&Header, &[u8]) -> Steps) -> Result<(Vec<u8>, Steps), Trouble> {
    let top = chain.top();
    let file = chain.file(top.file);
    let cluster = top.geometry.cluster_bytes().min(file.capacity_bytes()) as usize;
    let mut first = vec![0; cluster.next_multiple_of(SECTOR_BYTES)];
    disk::read(file, 0, &mut first)?;
    let old = Header::parse(&first).map_err(|error| Trouble::Format(0, error))?;
    let steps = steps(&old, &first);
    match rewrite::fits(&first, &steps) {
        true => Ok((first, steps)),
        // No room in the first cluster, or none in which it can change at once.
        false => Err(Trouble::Errno(libc::ENOSPC)),
    }
}
