//! Replies to options. Each function appends one or more messages.

use super::export::ExportInfo;
use super::go::Go;
use super::option_error::OptionError;
use super::spec::{EXPORT_NAME_ZEROES, OPTION_REPLY_HEADER_BYTES, info, magic, option_reply_type};
use super::string::cut;
use crate::wire::put;

/// A reply to an option with this number: its type (see [`option_reply_type`](super::spec::option_reply_type)) and data. Without
/// data, `ACK` ends the replies to an option that succeeded.
pub fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    option_reply_of(out, option, kind, &[payload]);
}

/// A reply whose data has several parts.
fn option_reply_of(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let payload_bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut header = [0; OPTION_REPLY_HEADER_BYTES];
    put::<0, _, _>(&mut header, magic::OPTION_REPLY.to_be_bytes());
    put::<8, _, _>(&mut header, option.to_be_bytes());
    put::<12, _, _>(&mut header, kind.to_be_bytes());
    put::<16, _, _>(&mut header, (payload_bytes as u32).to_be_bytes());
    out.extend_from_slice(&header);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// The reply to an option that is refused; its data is the reason, for a person.
pub fn option_error(out: &mut Vec<u8>, option: u32, error: &OptionError) {
    option_reply(out, option, error.kind, cut(error.reason).as_bytes());
}

/// `NBD_REP_SERVER`: the name of an export, at most [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes.
pub fn server_out(out: &mut Vec<u8>, option: u32, name: &str) {
    let name_bytes = (name.len() as u32).to_be_bytes();
    option_reply_of(out, option, option_reply_type::SERVER, &[&name_bytes, name.as_bytes()]);
}

/// `NBD_REP_META_CONTEXT`: a metadata context and the number by which replies will name it; `ACK` comes behind all of them.
pub fn context_out(out: &mut Vec<u8>, option: u32, id: u32, name: &[u8]) {
    option_reply_of(out, option, option_reply_type::META_CONTEXT, &[&id.to_be_bytes(), name]);
}

/// `NBD_REP_INFO`, two or three of them: size and flags, which a client must be told; block sizes, which it may be told unasked; and
/// the name, if it asks. `ACK` comes behind them.
pub fn info_out(out: &mut Vec<u8>, option: u32, go: &Go<'_>, export: &ExportInfo<'_>) {
    let mut reply = |kind: u16, parts: [&[u8]; 3]| {
        let [a, b, c] = parts;
        option_reply_of(out, option, option_reply_type::INFO, &[&kind.to_be_bytes(), a, b, c]);
    };
    reply(info::EXPORT, [&export.size_bytes.to_be_bytes(), &export.flags.to_be_bytes(), &[]]);
    let block = &export.block;
    reply(
        info::BLOCK_SIZE,
        [&block.minimum.to_be_bytes(), &block.preferred.to_be_bytes(), &block.maximum.to_be_bytes()],
    );
    if go.wants(info::NAME) {
        reply(info::NAME, [export.name.as_bytes(), &[], &[]]);
    }
}

/// The reply to `NBD_OPT_EXPORT_NAME`: the export's size in bytes and transmission flags, without a header, and zeroes unless the
/// client wants [none](super::ClientFlags::no_zeroes). Behind it comes the first request.
pub fn export_name_out(out: &mut Vec<u8>, size_bytes: u64, flags: u16, no_zeroes: bool) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
    }
}
