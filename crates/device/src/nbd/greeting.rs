//! The first bytes of each side.

use super::malformed::Malformed;
use super::spec::{CLIENT_FLAGS_BYTES, client_flag, handshake_flag, magic};
use crate::wire::put;

/// What the server says when somebody connects: it speaks fixed newstyle, and leaves the zeroes behind the reply to
/// `NBD_OPT_EXPORT_NAME` out if the client wants.
pub fn greeting() -> [u8; 18] {
    let mut out = [0; 18];
    put::<0, _, _>(&mut out, magic::INIT.to_be_bytes());
    put::<8, _, _>(&mut out, magic::OPTION.to_be_bytes());
    put::<16, _, _>(&mut out, (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    out
}

/// What the client answers to the greeting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFlags {
    /// The client knows replies to options. One that does not say so may still be answered (section "Client flags"), and then
    /// sends `NBD_OPT_EXPORT_NAME` alone.
    pub fixed_newstyle: bool,
    /// The client expects no zeroes behind the reply to `NBD_OPT_EXPORT_NAME`; see
    /// [`export_name_out`](super::export_name_out).
    pub no_zeroes: bool,
}

/// Decodes the client's flags.
///
/// # Errors
/// [`Malformed::UnknownClientFlags`] for any other flag: the server must hang up (section "Client flags").
pub fn decode_client_flags(bytes: &[u8; CLIENT_FLAGS_BYTES]) -> Result<ClientFlags, Malformed> {
    let flags = u32::from_be_bytes(*bytes);
    if flags & !(client_flag::FIXED_NEWSTYLE | client_flag::NO_ZEROES) != 0 {
        return Err(Malformed::UnknownClientFlags);
    }
    Ok(ClientFlags {
        fixed_newstyle: flags & client_flag::FIXED_NEWSTYLE != 0,
        no_zeroes: flags & client_flag::NO_ZEROES != 0,
    })
}
