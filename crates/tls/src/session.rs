//! One client's session: bytes that came and bytes that leave, and what is said in between.

use crate::SessionError;
use rustls::ServerConfig;
use rustls::server::ServerConnectionData;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Longest record, in bytes: 2^14 of data, 2048 of what a cipher may add, and the header (RFC 5246, 6.2.3).
const RECORD_BYTES_MAX: usize = (16 << 10) + (2 << 10) + 5;
/// Bytes that are kept until they are understood: four records of the longest, and with them any message of a handshake that rustls
/// takes (64 KiB).
const INCOMING_BYTES: usize = 4 * RECORD_BYTES_MAX;
/// Data of a record, in bytes, at most (RFC 8446, 5.1).
const DATA_BYTES_MAX: usize = 16 << 10;
/// What a record of ours has besides its data, at most: a header of 5 bytes, a nonce of 8, a type of 1, a tag of 16; rounded up.
const RECORD_EXTRA_BYTES: usize = 64;
/// Records that are sealed before somebody has to send them.
const RECORDS: usize = 8;
/// Bytes that are kept until they are sent, unless a handshake needs more.
const OUTGOING_BYTES: usize = RECORDS * (DATA_BYTES_MAX + RECORD_EXTRA_BYTES);

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaken {
    /// The client has to say more.
    Wants,
    /// It is over.
    Done,
}

/// What there was to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data, of one record or more.
    Data,
    /// Not all of a record.
    Nothing,
    /// The client has said that it says no more.
    End,
}

/// Takes all of what was opened.
type Sink<'a> = &'a mut dyn FnMut(&[u8]);

/// The server's side of a session.
pub struct Session {
    connection: UnbufferedServerConnection,
    /// All of it may be written.
    incoming: Vec<u8>,
    /// What of it has come, and was not understood yet.
    came: Range<usize>,
    /// So many bytes at the front of that are parts of a message or a record, and no whole record.
    parts: usize,
    outgoing: Vec<u8>,
    /// What of it was not sent.
    unsent: Range<usize>,
    /// Why nothing is heard or said any more. Rustls must not be asked again.
    over: Option<SessionError>,
}

impl Session {
    pub(crate) fn new(server: Arc<ServerConfig>) -> Result<Session, SessionError> {
        Ok(Session {
            connection: UnbufferedServerConnection::new(server)?,
            incoming: vec![0; INCOMING_BYTES],
            came: 0..0,
            parts: 0,
            outgoing: vec![0; OUTGOING_BYTES],
            unsent: 0..0,
            over: None,
        })
    }

    /// Where to receive to; [`received`](Self::received) says how much has come.
    ///
    /// # Errors
    /// There is no room: a message of the handshake is too long.
    pub fn room(&mut self) -> Result<&mut [u8], SessionError> {
        if self.came.start > 0 {
            self.incoming.copy_within(self.came.clone(), 0);
            self.came = 0..self.came.len();
        }
        match self.incoming.get_mut(self.came.end..) {
            Some(room) if !room.is_empty() => Ok(room),
            _ => Err(SessionError::LongMessage),
        }
    }

    /// So many bytes have come to the [`room`](Self::room), and at most as many as it had.
    pub fn received(&mut self, bytes: usize) {
        self.came.end = (self.came.end + bytes).min(self.incoming.len());
    }

    /// Goes on with the handshake: with signatures and exponents, which take a millisecond and more. What it has to say is
    /// [unsent](Self::unsent) then, and so is the alert of an error.
    ///
    /// # Errors
    /// The client cannot be understood, or is not accepted. The session is over.
    pub fn shake(&mut self) -> Result<Shaken, SessionError> {
        // What comes behind a handshake is opened by who wants it.
        self.check()?;
        if self.connection.is_handshaking() {
            self.go_on(None)?;
        }
        Ok(if self.connection.is_handshaking() { Shaken::Wants } else { Shaken::Done })
    }

    /// Bytes that have come and were not understood.
    pub fn came_bytes(&self) -> usize {
        self.came.len()
    }

    /// Opens what has come up to the end of a record, and gives its data to `sink`, which takes all of it.
    ///
    /// # Errors
    /// What has come was not made by the client, or cannot be. The session is over.
    pub fn open(&mut self, sink: Sink<'_>) -> Result<Opened, SessionError> {
        self.go_on(Some(sink))
    }

    fn go_on(&mut self, sink: Option<Sink<'_>>) -> Result<Opened, SessionError> {
        self.check()?;
        let result = self.try_to_go_on(sink);
        self.remember(result)
    }

    fn check(&self) -> Result<(), SessionError> {
        self.over.clone().map_or(Ok(()), Err)
    }

    /// An error is the last thing that happens.
    fn remember<T>(&mut self, result: Result<T, SessionError>) -> Result<T, SessionError> {
        if let Err(error) = &result {
            self.over = Some(error.clone());
        }
        result
    }

    fn try_to_go_on(&mut self, mut sink: Option<Sink<'_>>) -> Result<Opened, SessionError> {
        loop {
            let came = self.incoming.get_mut(self.came.clone()).unwrap_or_default();
            let UnbufferedStatus { mut discard, state, .. } = self.connection.process_tls_records(came);
            let ended = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => match &mut sink {
                    Some(sink) => {
                        while let Some(record) = traffic.next_record() {
                            let record = record?;
                            discard += record.discard;
                            sink(record.payload);
                        }
                        Some(Opened::Data)
                    }
                    // It stays for whoever asks.
                    None => Some(Opened::Nothing),
                },
                Ok(ConnectionState::EncodeTlsData(data)) => {
                    encode(data, &mut self.outgoing, &mut self.unsent)?;
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    None
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Opened::End),
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    self.parts = self.came.len() - discard;
                    self.came.start += discard;
                    return Ok(Opened::Nothing);
                }
                Ok(_) => return Err(SessionError::Protocol("data before the handshake".to_owned())),
                Err(error) => {
                    self.came.start += discard;
                    self.say_last();
                    return Err(error.into());
                }
            };
            self.came.start += discard;
            self.parts = 0;
            if let Some(ended) = ended {
                return Ok(ended);
            }
        }
    }

    /// The alert behind an error, if there is one.
    fn say_last(&mut self) {
        let came = self.incoming.get_mut(self.came.clone()).unwrap_or_default();
        if self.connection.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(data)) = self.connection.process_tls_records(came).state
        {
            // The error has been told; without an alert the client sees the end of the connection alone.
            let _ = encode(data, &mut self.outgoing, &mut self.unsent);
        }
    }

    /// Seals data behind what is unsent, as far as there is room. Returns how many bytes of it that were.
    ///
    /// # Errors
    /// The handshake is not over, or the session is.
    pub fn seal(&mut self, data: &[u8]) -> Result<usize, SessionError> {
        self.check()?;
        let result = self.try_to_seal(data);
        self.remember(result)
    }

    fn try_to_seal(&mut self, data: &[u8]) -> Result<usize, SessionError> {
        const SEALED_BYTES_MAX: usize = DATA_BYTES_MAX + RECORD_EXTRA_BYTES;
        let room = self.outgoing.len() - self.unsent.end;
        let fits =
            room / SEALED_BYTES_MAX * DATA_BYTES_MAX + (room % SEALED_BYTES_MAX).saturating_sub(RECORD_EXTRA_BYTES);
        let data = data.get(..fits).unwrap_or(data);
        if data.is_empty() {
            return Ok(0);
        }
        loop {
            // Rustls looks at its pieces of a message each time. What has come behind them is for who opens it.
            // Where more is received at this moment is left alone.
            let parts = self.came.start..self.came.start + self.parts;
            let parts = if parts.is_empty() { &mut [] } else { self.incoming.get_mut(parts).unwrap_or_default() };
            match self.connection.process_tls_records(parts).state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let room = self.outgoing.get_mut(self.unsent.end..).unwrap_or_default();
                    return match traffic.encrypt(data, room) {
                        Ok(written) => {
                            self.unsent.end += written;
                            Ok(data.len())
                        }
                        // Something has to leave before, such as word of another key.
                        Err(EncryptError::InsufficientSize(_)) => Ok(0),
                        Err(EncryptError::EncryptExhausted) => Err(SessionError::UsedUp),
                    };
                }
                ConnectionState::EncodeTlsData(data) => encode(data, &mut self.outgoing, &mut self.unsent)?,
                ConnectionState::TransmitTlsData(data) => data.done(),
                _ => return Err(SessionError::UsedUp),
            }
        }
    }

    /// What is to be sent next. It stays where it is while nothing is opened, sealed or shaken.
    pub fn unsent(&self) -> &[u8] {
        self.outgoing.get(self.unsent.clone()).unwrap_or_default()
    }

    /// So many bytes more were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.unsent.start = (self.unsent.start + bytes).min(self.unsent.end);
        if self.unsent.is_empty() {
            self.unsent = 0..0;
        }
    }

    /// Nobody reads any more: drops what was not sent.
    pub fn forget_unsent(&mut self) {
        self.unsent = 0..0;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("came", &self.came).field("unsent", &self.unsent).finish_non_exhaustive()
    }
}

/// Puts what the session itself has to say behind what is unsent. There are few of these and they are short: a client cannot have many
/// made before it reads.
fn encode(
    mut data: EncodeTlsData<'_, ServerConnectionData>,
    outgoing: &mut Vec<u8>,
    unsent: &mut Range<usize>,
) -> Result<(), SessionError> {
    let mut written = data.encode(outgoing.get_mut(unsent.end..).unwrap_or_default());
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = written {
        outgoing.resize(unsent.end + required_size, 0);
        written = data.encode(outgoing.get_mut(unsent.end..).unwrap_or_default());
    }
    unsent.end += written.map_err(|error| SessionError::Protocol(error.to_string()))?;
    Ok(())
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
