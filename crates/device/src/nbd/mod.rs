//! NBD, the server's side of the fixed newstyle protocol ("The NBD protocol", `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>, whose sections are named here): the handshake, requests, and the bytes of replies.
//!
//! A connection is a stream. The server says [`greeting`], and the client answers with [`decode_client_flags`]. Options follow:
//! [`option_bytes`] says where the next one ends, [`decode_option`] what it asks, and the functions that append to a vector answer
//! it. From `NBD_OPT_GO` or `NBD_OPT_EXPORT_NAME` on it is requests: [`request_bytes`] says where the next one ends, with the data
//! of a write, which is never looked at; [`decode_request`] and [`Request::check`] make work of it. [`Malformed`] ends the
//! connection; every other error is a reply.

mod command;
mod contexts;
mod errno;
mod export;
mod go;
mod greeting;
mod malformed;
mod option;
mod option_error;
mod refusal;
mod replies;
mod reply;
mod request;
pub mod spec;
mod string;
mod wire;
mod work;

pub use command::Command;
pub use contexts::Contexts;
pub use errno::errno_of;
pub use export::{BlockSizes, ExportInfo};
pub use go::Go;
pub use greeting::{ClientFlags, decode_client_flags, greeting};
pub use malformed::Malformed;
pub use option::{HandshakeOption, decode_option, option_bytes};
pub use option_error::OptionError;
pub use refusal::{Reason, Refusal};
pub use replies::{context_out, export_name_out, info_out, option_error, option_reply, server_out};
pub use reply::{chunk_header, data_head, error_chunk, none_chunk, simple_reply, status_chunk};
pub use request::{Request, decode_request, request_bytes};
pub use spec::{
    CHUNK_HEADER_BYTES, CLIENT_FLAGS_BYTES, DATA_HEAD_BYTES, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_HEADER_BYTES,
    REQUEST_BYTES, SIMPLE_REPLY_BYTES,
};
pub use work::{Terms, Work};
