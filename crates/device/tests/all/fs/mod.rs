//! virtio-fs: requests and replies against bytes that the kernel's header made, every refusal, and any bytes.

mod config;
mod init;
mod numbers;
mod properties;
mod refusals;
mod replies;
mod requests;
mod vectors;

use device::fs::{Dialect, InHeader, Malformed, Request, flags};

/// What a present-day guest and a server with everything on agree on.
const FULL: Dialect = Dialect {
    minor: 45,
    flags: flags::INIT_EXT | flags::SETXATTR_EXT | flags::SECURITY_CTX | flags::CREATE_SUPP_GROUP,
};
/// What the oldest guest speaks.
const PLAIN: Dialect = Dialect { minor: 31, flags: 0 };

/// What the sender of a vector speaks.
fn dialect_of(vector: &[u8]) -> Dialect {
    if vector == vectors::SETXATTR_SHORT { PLAIN } else { FULL }
}

/// Decodes a request as a ring does: its front alone is copied.
fn decode(bytes: &[u8], dialect: Dialect) -> Result<(InHeader, Request<'_>), Malformed> {
    let wanted = device::fs::bytes_wanted(bytes)?;
    device::fs::decode(&bytes[..wanted.min(bytes.len())], bytes.len() as u64, dialect)
}

/// A request with this body, whose header says what is there.
fn request(opcode: device::fs::Opcode, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes.extend_from_slice(body);
    let len = u32::try_from(bytes.len()).unwrap();
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..8].copy_from_slice(&(opcode as u32).to_le_bytes());
    bytes
}
