//! 9P: requests and replies against messages that are put together as the specification's tables say, every refusal, and any
//! bytes.

mod config;
mod examples;
mod message;
mod numbers;
mod properties;
mod refusals;
mod replies;
mod requests;

use device::p9::{Dialect, Header, Malformed, Request};

/// Decodes a request as a ring does: its front alone is copied.
fn decode(bytes: &[u8], dialect: Dialect) -> Result<(Header, Request<'_>), Malformed> {
    let wanted = device::p9::bytes_wanted(bytes)?;
    device::p9::decode(&bytes[..wanted.min(bytes.len())], bytes.len() as u64, dialect)
}
