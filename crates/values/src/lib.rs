//! Values that people write and programs read: poll window, execution, placement, sizes, spans of time, CPU lists, modes, intent logs.
//!
//! Each has one type, from the command line to the worker's loop, and one text form, in which the command line, the configuration
//! file, the API and its schema write it. Nothing here knows what is done with a value.

mod cpus;
mod directory;
mod execution;
mod favour;
mod field;
mod host;
mod listen;
mod luks;
mod lun;
mod mode;
mod on_lost;
mod placement;
mod policy_mode;
mod poll;
mod size;
mod span;
mod text;
mod tls;
mod volume;

pub use cpus::CpuList;
pub use directory::{
    CachePolicy, DaxWhen, FileHandles, MigrationMode, MigrationOnError, Multidevs, Negotiation, Readdirplus,
};
pub use execution::Execution;
pub use favour::Favour;
pub use field::{FieldError, check_size, fields};
pub use host::host_memory_bytes;
pub use listen::{Listen, SOCKET_PATH_BYTES_MAX};
pub use luks::Luks;
pub use lun::Lun;
pub use mode::FileMode;
pub use on_lost::OnLost;
pub use placement::Placement;
pub use policy_mode::PolicyMode;
pub use poll::Poll;
pub use size::ByteSize;
pub use span::Span;
pub use text::ParseError;
pub use tls::Tls;
pub use volume::{IntentLog, LogFile, MemoryFile, SyncMode};

fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    // `parse` alone would accept a leading `+`.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests;
