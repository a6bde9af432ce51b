//! From the bytes of an option to what it asks.

use super::contexts::Contexts;
use super::go::Go;
use super::malformed::Malformed;
use super::option_error::OptionError;
use super::spec::{NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_HEADER_BYTES, magic, option};
use super::wire::{be32, be64};

/// What a client asks for during the handshake.
///
/// Names are any bytes, at most [`NAME_BYTES_MAX`] of them: no UTF-8, no lack of NUL is promised. One that is none of the server's
/// own is unknown, whatever it is made of. The empty name is the default export's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeOption<'a> {
    /// Use the export of this name. There is no reply but [`export_name_out`](super::export_name_out): when the export cannot be
    /// used, the server hangs up.
    ExportName(&'a [u8]),
    /// The client goes, after the server's `ACK`.
    Abort,
    /// Name the exports.
    List,
    /// Describe an export.
    Info(Go<'a>),
    /// Describe an export and use it: behind `ACK` comes the first request.
    Go(Go<'a>),
    /// Answer requests with structured replies.
    StructuredReply,
    /// Speak TLS from now on.
    StartTls,
    /// Name an export's metadata contexts.
    ListMetaContext(Contexts<'a>),
    /// Choose an export's metadata contexts, in place of those that were chosen before.
    SetMetaContext(Contexts<'a>),
    /// An option that this codec does not know; the answer is
    /// [`ERR_UNSUP`](super::spec::option_reply_type::ERR_UNSUP).
    Unknown,
}

/// Bytes of the option that `front`, what has been received, begins with: header and data. `None` while the header is not all
/// there.
///
/// # Errors
/// [`Malformed::BadOptionMagic`]; [`Malformed::OptionTooLong`] for more than [`OPTION_BYTES_MAX`] bytes of data.
pub fn option_bytes(front: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(header) = front.first_chunk::<OPTION_HEADER_BYTES>() else {
        return Ok(None);
    };
    if be64::<0, _>(header) != magic::OPTION {
        return Err(Malformed::BadOptionMagic);
    }
    match usize::try_from(be32::<12, _>(header)) {
        Ok(data_bytes) if data_bytes <= OPTION_BYTES_MAX => Ok(Some(OPTION_HEADER_BYTES + data_bytes)),
        _ => Err(Malformed::OptionTooLong),
    }
}

/// Decodes an option: its number, which every reply repeats, and what it asks. `message` is as long as [`option_bytes`] says.
///
/// # Errors
/// The error is the reply, except to `NBD_OPT_EXPORT_NAME`, which is answered by hanging up. Bytes that are no whole message are an
/// error too; without a header, the number is 0.
pub fn decode_option(message: &[u8]) -> (u32, Result<HandshakeOption<'_>, OptionError>) {
    let Some((header, data)) = message.split_first_chunk::<OPTION_HEADER_BYTES>() else {
        return (0, Err(OptionError::invalid("the option is shorter than its header")));
    };
    let number = be32::<8, _>(header);
    if usize::try_from(be32::<12, _>(header)) != Ok(data.len()) {
        return (number, Err(OptionError::invalid("the option is not as long as it says")));
    }
    (number, decode_data(number, data))
}

fn decode_data(number: u32, data: &[u8]) -> Result<HandshakeOption<'_>, OptionError> {
    match number {
        option::EXPORT_NAME => checked_name(data).map(HandshakeOption::ExportName),
        // Data is ignored (section "Option types").
        option::ABORT => Ok(HandshakeOption::Abort),
        option::LIST => without_data(data, HandshakeOption::List),
        option::STARTTLS => without_data(data, HandshakeOption::StartTls),
        option::INFO => Go::decode(data).map(HandshakeOption::Info),
        option::GO => Go::decode(data).map(HandshakeOption::Go),
        option::STRUCTURED_REPLY => without_data(data, HandshakeOption::StructuredReply),
        option::LIST_META_CONTEXT => Contexts::decode(data).map(HandshakeOption::ListMetaContext),
        option::SET_META_CONTEXT => Contexts::decode(data).map(HandshakeOption::SetMetaContext),
        _ => Ok(HandshakeOption::Unknown),
    }
}

/// An option that must not have data.
fn without_data<'a>(data: &[u8], option: HandshakeOption<'a>) -> Result<HandshakeOption<'a>, OptionError> {
    if data.is_empty() { Ok(option) } else { Err(OptionError::invalid("the option has data, and must not")) }
}

/// The name of an export, if it is not too long.
pub(super) fn checked_name(name: &[u8]) -> Result<&[u8], OptionError> {
    if name.len() <= NAME_BYTES_MAX {
        Ok(name)
    } else {
        Err(OptionError::invalid("the name is longer than 4096 bytes"))
    }
}
