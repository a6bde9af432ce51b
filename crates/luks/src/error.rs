//! What can be wrong with a container, or with the key that is to open it.

use secret::SecretError;
use std::io;
use std::path::PathBuf;
use storage::OpenError;

/// What a header says that cannot be, or is not supported. The doc comments are the messages.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum FormatError {
    /// is no LUKS container: it begins with something else
    Foreign,
    /// LUKS version {0} is not known: 1 and 2 are
    Version(u16),
    /// {what} ends too early: the container is cut short
    Short {
        /// What is cut.
        what: &'static str,
    },
    /// both copies of its LUKS2 header are damaged: restore one with `cryptsetup luksHeaderRestore`
    Checksum,
    /// its LUKS2 metadata cannot be understood: {0}
    Metadata(String),
    /// {what} `{value}` is not supported: {supported}
    Unsupported {
        /// The field.
        what: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        supported: &'static str,
    },
    /// {what} is {value}, which cannot be: the header is damaged
    Value {
        /// The field.
        what: &'static str,
        /// What it says.
        value: u64,
    },
}

impl FormatError {
    pub(crate) fn unsupported(what: &'static str, value: impl Into<String>, supported: &'static str) -> FormatError {
        // A header is anybody's: a line has an end.
        let value = value.into().chars().take(64).flat_map(char::escape_debug).collect();
        FormatError::Unsupported { what, value, supported }
    }

    pub(crate) fn value(what: &'static str, value: impl Into<u64>) -> FormatError {
        FormatError::Value { what, value: value.into() }
    }
}

/// Why a key opens nothing. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum UnlockError {
    /// no key slot opens with this key, of which every byte counts, a newline at its end too
    Wrong,
    /// no key slot is in use, so that no key opens it
    NoSlot,
    /// no key slot opens with this key, and slot {number} is not supported: {source}
    Slot {
        /// The slot.
        number: u32,
        /// Why it is not.
        source: FormatError,
    },
    /// key slot {number} asks for more work than a container may ({what}): make it anew with `cryptsetup luksChangeKey`
    Work {
        /// The slot.
        number: u32,
        /// How much.
        what: String,
    },
    /// key slot {number} needs {kib} KiB of memory, more than there is: change it with `cryptsetup luksConvertKey --pbkdf-memory`
    Memory {
        /// The slot.
        number: u32,
        /// How much.
        kib: u32,
    },
    /// cannot be read: {0}
    Io(#[from] io::Error),
}

/// Why a container cannot be opened, or made. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum LuksError {
    /// {path}: {source}
    Format {
        /// The container.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// {path}: cannot be read: {source}
    Read {
        /// The container.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: cannot be written: {source}
    Write {
        /// The container.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: {source} (luks.key_file: {key_file})
    Unlock {
        /// The container.
        path: PathBuf,
        /// The key that was tried.
        key_file: PathBuf,
        /// Why it does not open.
        source: UnlockError,
    },
    /// luks.key_file: {path}: {source}
    KeyFile {
        /// The key file.
        path: PathBuf,
        /// Why it is not taken.
        source: SecretError,
    },
    /// luks.key_file: {path}: {reason}
    Key {
        /// The key file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// {path}: is no storage that can hold a LUKS container
    Lower {
        /// The storage.
        path: PathBuf,
    },
    /// {path}: its key would cost more than there is ({what}): use less, as by --pbkdf-memory
    Costly {
        /// The container.
        path: PathBuf,
        /// What of it.
        what: String,
    },
    /// {path}: has {present_bytes} bytes, and its data begin at byte {offset}: the container is cut short
    Empty {
        /// The container.
        path: PathBuf,
        /// Its size.
        present_bytes: u64,
        /// Where its data begin.
        offset: u64,
    },
}

impl From<LuksError> for OpenError {
    fn from(error: LuksError) -> OpenError {
        OpenError::Other(Box::new(error))
    }
}
