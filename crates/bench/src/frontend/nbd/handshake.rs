//! The handshake: fixed newstyle, up to the point where requests may be sent.

use std::io::{self, Read, Write};

use super::spec::{
    BLOCK_BYTES_PORTABLE, OPTION_REPLY_BYTES_MAX, PAYLOAD_BYTES_PORTABLE, handshake_flag, info, magic, option,
    option_reply, transmission_flag,
};

/// Why a server's disk cannot be used. Messages are whole.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum HandshakeError {
    /// the server closed the connection during the handshake; does it take as many at once as --queues says?
    Closed,
    /// cannot talk to the server: {0}
    Io(io::Error),
    /// what is said first is not NBD's ({0:#018x}); is an NBD server listening there?
    NotNbd(u64),
    /// the server knows only the old handshake, without options
    Old,
    /// option {option} was answered by what is no reply to it (magic {magic:#x}, option {answered}, type {reply:#x})
    Reply {
        /// The option.
        option: u32,
        /// What the reply begins with.
        magic: u64,
        /// What it says it answers.
        answered: u32,
        /// Its type.
        reply: u32,
    },
    /// option {option} was answered with {bytes} bytes, which are too few or too many
    ReplyBytes {
        /// The option.
        option: u32,
        /// How many there were.
        bytes: usize,
    },
    /// the server refuses option {option}: {reason}
    Refused {
        /// The option.
        option: u32,
        /// Why, as far as it says.
        reason: String,
    },
    /// the server has no default export and {0} others; serve one
    Exports(usize),
    /// the server does not say how large the disk is
    NoSize,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// A disk, as its server describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) capacity_bytes: u64,
    flags: u16,
    /// Requests are multiples of this.
    pub(super) block_bytes: u32,
    /// The longest data of a request.
    pub(super) payload_bytes_max: u32,
}

impl Export {
    pub(super) fn is_read_only(&self) -> bool {
        self.flags & transmission_flag::READ_ONLY != 0
    }

    pub(super) fn has_flush(&self) -> bool {
        self.flags & transmission_flag::SEND_FLUSH != 0
    }
}

/// Brings a new connection to where requests may be sent: to the default export, or to the only one there is.
pub(super) fn negotiate(stream: &mut (impl Read + Write)) -> Result<Export, HandshakeError> {
    greet(stream)?;
    if let Some(export) = go(stream, b"")? {
        return Ok(export);
    }
    let names = list(stream)?;
    let [name] = &names[..] else { return Err(HandshakeError::Exports(names.len())) };
    go(stream, name)?.ok_or(HandshakeError::Exports(names.len()))
}

fn greet(stream: &mut (impl Read + Write)) -> Result<(), HandshakeError> {
    let init = u64::from_be_bytes(read(stream)?);
    if init != magic::INIT {
        return Err(HandshakeError::NotNbd(init));
    }
    if u64::from_be_bytes(read(stream)?) != magic::OPTION {
        return Err(HandshakeError::Old);
    }
    let flags = u16::from_be_bytes(read(stream)?);
    if flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(HandshakeError::Old);
    }
    let known = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    Ok(stream.write_all(&u32::from(known).to_be_bytes())?)
}

/// Chooses the export of this name; `None` when there is no such one.
fn go(stream: &mut (impl Read + Write), name: &[u8]) -> Result<Option<Export>, HandshakeError> {
    let mut asked = (name.len() as u32).to_be_bytes().to_vec();
    asked.extend_from_slice(name);
    asked.extend_from_slice(&1_u16.to_be_bytes());
    asked.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    send(stream, option::GO, &asked)?;
    let (mut disk, mut sizes) = (None, (BLOCK_BYTES_PORTABLE, PAYLOAD_BYTES_PORTABLE));
    loop {
        let reply = OptionReply::receive(stream, option::GO)?;
        match reply.kind {
            option_reply::ACK => break,
            option_reply::ERR_UNKNOWN => return Ok(None),
            option_reply::INFO => match u16::from_be_bytes(reply.field(0)?) {
                info::EXPORT => {
                    disk = Some((u64::from_be_bytes(reply.field(2)?), u16::from_be_bytes(reply.field(10)?)));
                }
                // The second of three is the preferred size.
                info::BLOCK_SIZE => {
                    sizes = (u32::from_be_bytes(reply.field(2)?), u32::from_be_bytes(reply.field(10)?));
                }
                _ => {}
            },
            _ => return Err(reply.refusal()),
        }
    }
    let (capacity_bytes, flags) = disk.ok_or(HandshakeError::NoSize)?;
    Ok(Some(Export { capacity_bytes, flags, block_bytes: sizes.0, payload_bytes_max: sizes.1 }))
}

/// The names of all exports.
fn list(stream: &mut (impl Read + Write)) -> Result<Vec<Vec<u8>>, HandshakeError> {
    send(stream, option::LIST, &[])?;
    let mut names = Vec::new();
    loop {
        let reply = OptionReply::receive(stream, option::LIST)?;
        match reply.kind {
            option_reply::ACK => return Ok(names),
            option_reply::SERVER => {
                let len = u32::from_be_bytes(reply.field(0)?) as usize;
                let name = reply.data[4..].get(..len).ok_or_else(|| reply.bad_length())?;
                names.push(name.to_vec());
            }
            _ => return Err(reply.refusal()),
        }
    }
}

fn send(stream: &mut impl Write, option: u32, data: &[u8]) -> Result<(), HandshakeError> {
    let mut message = magic::OPTION.to_be_bytes().to_vec();
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    Ok(stream.write_all(&message)?)
}

fn read<const N: usize>(stream: &mut impl Read) -> Result<[u8; N], HandshakeError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// One of the replies to an option.
struct OptionReply {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

impl OptionReply {
    fn receive(stream: &mut impl Read, option: u32) -> Result<Self, HandshakeError> {
        let magic = u64::from_be_bytes(read(stream)?);
        let answered = u32::from_be_bytes(read(stream)?);
        let kind = u32::from_be_bytes(read(stream)?);
        if (magic, answered) != (magic::OPTION_REPLY, option) {
            return Err(HandshakeError::Reply { option, magic, answered, reply: kind });
        }
        let bytes = u32::from_be_bytes(read(stream)?) as usize;
        if bytes > OPTION_REPLY_BYTES_MAX {
            return Err(HandshakeError::ReplyBytes { option, bytes });
        }
        let mut data = vec![0; bytes];
        stream.read_exact(&mut data)?;
        Ok(Self { option, kind, data })
    }

    fn field<const N: usize>(&self, at: usize) -> Result<[u8; N], HandshakeError> {
        let field = self.data.get(at..).and_then(<[u8]>::first_chunk);
        field.copied().ok_or_else(|| self.bad_length())
    }

    fn bad_length(&self) -> HandshakeError {
        HandshakeError::ReplyBytes { option: self.option, bytes: self.data.len() }
    }

    /// What one means that is neither what was asked for nor its end.
    fn refusal(&self) -> HandshakeError {
        let word = match self.kind {
            kind if kind & option_reply::ERROR == 0 => {
                let (option, magic) = (self.option, magic::OPTION_REPLY);
                return HandshakeError::Reply { option, magic, answered: option, reply: kind };
            }
            option_reply::ERR_UNSUP => "it does not know it".to_owned(),
            option_reply::ERR_POLICY => "it is not to allow it".to_owned(),
            option_reply::ERR_TLS_REQD => "it wants TLS, which is not spoken here".to_owned(),
            option_reply::ERR_SHUTDOWN => "it is ending".to_owned(),
            kind => format!("error {kind:#x}"),
        };
        let said = String::from_utf8_lossy(&self.data);
        let reason = if said.is_empty() { word } else { format!("{word}; it says {said:?}") };
        HandshakeError::Refused { option: self.option, reason }
    }
}
