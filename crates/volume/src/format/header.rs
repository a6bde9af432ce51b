//! What a log on a storage of its own begins with.

use super::error::FormatError;
use super::field::{self, Field, MAGIC};
use super::superblock::{LogPlace, Region, Superblock};
use super::{COUNTER_MAX, EXTERNAL_LOG_OFFSET, incompatible};
use crate::blocks::Blocks;
use crate::units::BLOCK_BYTES;
use uuid::Uuid;

/// The fields, as `docs/formats/volume.md` lists them.
pub(super) mod at {
    use super::Field;

    pub(in crate::format) const INCOMPATIBLE: Field = Field::new("incompatible", 16, 8);
    #[cfg(test)]
    pub(in crate::format) const COMPATIBLE: Field = Field::new("compatible", 24, 8);
    pub(in crate::format) const LOG: Field = Field::new("log", 32, 16);
    pub(in crate::format) const VOLUME: Field = Field::new("volume", 48, 16);
    pub(in crate::format) const LOG_OFFSET: Field = Field::new("log offset", 64, 8);
    pub(in crate::format) const LOG_LEN: Field = Field::new("log length", 72, 8);

    #[cfg(test)]
    pub(in crate::format) const ALL: [Field; 6] = [INCOMPATIBLE, COMPATIBLE, LOG, VOLUME, LOG_OFFSET, LOG_LEN];
}

/// What a log's header begins with.
const LOG_MAGIC: [u8; 8] = *b"VRINGLOG";

/// Which log this is, and whose. Written once, when the log is added to its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LogHeader {
    /// Names the log.
    pub log: Uuid,
    /// Names the volume that it belongs to.
    pub volume: Uuid,
    /// Where its records lie.
    pub region: Region,
}

impl LogHeader {
    /// Reads the header of a log; `None` when there is none, or no whole one.
    ///
    /// # Errors
    /// [`FormatError::Newer`], [`FormatError::Io`].
    pub fn read(log: &mut dyn Blocks) -> Result<Option<LogHeader>, FormatError> {
        let mut block = vec![0; BLOCK_BYTES];
        if log.len() < block.len() as u64 {
            return Ok(None);
        }
        log.read_at(0, &mut block).map_err(FormatError::io("read the log's header", 0))?;
        if MAGIC.get(&block) != LOG_MAGIC || !field::is_sealed(0, &block) {
            return Ok(None);
        }
        let unknown = at::INCOMPATIBLE.u64(&block) & !incompatible::EXTERNAL_LOG;
        if unknown != 0 {
            return Err(FormatError::Newer { unknown });
        }
        Ok(Some(LogHeader {
            log: at::LOG.uuid(&block),
            volume: at::VOLUME.uuid(&block),
            region: Region { offset: at::LOG_OFFSET.u64(&block), len: at::LOG_LEN.u64(&block) },
        }))
    }

    /// Writes the header and flushes.
    pub(super) fn write(&self, log: &mut dyn Blocks) -> Result<(), FormatError> {
        log.write_at(0, &self.encode()).map_err(FormatError::io("write the log's header", 0))?;
        log.flush().map_err(FormatError::io("flush the log's header", 0))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        MAGIC.put(&mut block, &LOG_MAGIC);
        at::LOG.put(&mut block, self.log.as_bytes());
        at::VOLUME.put(&mut block, self.volume.as_bytes());
        at::LOG_OFFSET.put_u64(&mut block, self.region.offset);
        at::LOG_LEN.put_u64(&mut block, self.region.len);
        field::seal(0, &mut block);
        block
    }

    /// The region of records in a log's storage of `len` bytes: all behind the header.
    pub(super) fn region(len: u64) -> Region {
        let block = BLOCK_BYTES as u64;
        let rest = len.min(COUNTER_MAX).saturating_sub(EXTERNAL_LOG_OFFSET);
        Region { offset: EXTERNAL_LOG_OFFSET, len: (rest / block * block).min(super::LOG_BYTES_MAX) }
    }
}

impl Superblock {
    /// Checks that `log` is this volume's log: the one it has on a storage of its own, or none when it has none.
    ///
    /// # Errors
    /// [`FormatError::LogMissing`] and [`FormatError::LogForeign`], which say what is lost without it,
    /// [`FormatError::LogUnexpected`], [`FormatError::TooShort`], [`FormatError::Newer`], [`FormatError::Io`].
    pub fn check_log(&self, log: Option<&mut dyn Blocks>) -> Result<(), FormatError> {
        let LogPlace { uuid, offset, len, external } = &self.log;
        let log = match (external, log) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return Err(FormatError::LogUnexpected),
            (Some(_), None) => return Err(FormatError::LogMissing { hint: self.log_hint(), loss: self.loss() }),
            (Some(_), Some(log)) => log,
        };
        let found = match LogHeader::read(log)? {
            Some(header) if header.log == *uuid && header.volume == self.volume => {
                let needed_bytes = offset.saturating_add(*len);
                if log.len() < needed_bytes {
                    return Err(FormatError::TooShort { what: "log", present_bytes: log.len(), needed_bytes });
                }
                return Ok(());
            }
            Some(header) if header.volume == self.volume => format!("log {}, which this volume had before", header.log),
            Some(header) => format!("log {} of volume {}", header.log, header.volume),
            None => "no log at all, or one whose header is damaged".to_string(),
        };
        Err(FormatError::LogForeign { found, log: *uuid, hint: self.log_hint(), loss: self.loss() })
    }
}
