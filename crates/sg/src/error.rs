//! Why a device cannot be passed through, in words that name the fix.

use std::io;
use std::path::PathBuf;
use storage::OpenError;

/// Why a device cannot be passed through. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum SgError {
    /// {path}: cannot open: {source}{hint}
    Open {
        /// The device.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
        /// What may help, beginning with what separates it.
        hint: &'static str,
    },
    /// {path}: is no device of the generic SCSI driver: name one of /dev/sg* (`lsscsi -g` lists them), or serve a file or block device with storage `file`
    NotGeneric {
        /// What was named.
        path: PathBuf,
    },
    /// {path}: is in use, another program has it open for itself; `lock = false` (`--no-lock`) opens it all the same
    InUse {
        /// The device.
        path: PathBuf,
    },
    /// {path}: this host uses its block device {block} (mounted, or part of a RAID or volume group): release it, or use `lock = false` (`--no-lock`)
    HostUses {
        /// The device.
        path: PathBuf,
        /// Its block device.
        block: String,
    },
    /// {path}: commands of somebody else are still under way on it after {seconds} s, which would spoil what comes later: end that, or see to the device, then try again
    Late {
        /// The device.
        path: PathBuf,
        /// How long they were waited for.
        seconds: u64,
    },
    /// {path}: does not answer INQUIRY: {why}
    Silent {
        /// The device.
        path: PathBuf,
        /// What became of it.
        why: String,
    },
    /// {path}: cannot connect to the helper for reservations: {source}; start qemu-pr-helper there, or leave `pr_helper` (`--pr-helper`) out
    Helper {
        /// Its socket.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// {path}: {source}
    Threads {
        /// The device.
        path: PathBuf,
        /// Why they do not start.
        source: engine::PoolError,
    },
}

impl From<SgError> for OpenError {
    fn from(error: SgError) -> OpenError {
        match error {
            // The description is not at fault.
            SgError::Late { .. } | SgError::Silent { .. } | SgError::Helper { .. } => OpenError::Away(Box::new(error)),
            error => OpenError::Other(Box::new(error)),
        }
    }
}
