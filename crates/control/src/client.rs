//! The client side: one request a connection, over the daemon's unix socket.

use crate::error::{ErrorBody, ErrorDetail};
use displaydoc::Display;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// How long an answer is waited for. Removing an export drains it, which can take as long as its storage.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// The largest answer that is read, in bytes: thousands of rings.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why a call failed. The doc comments are the messages.
#[derive(Debug, Display, thiserror::Error)]
pub enum ClientError {
    /// no daemon answers on control socket {path} ({source}): start vringd, or name its socket with --control
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// How the system answered.
        source: io::Error,
    },
    /// {message} ({code})
    Refused {
        /// HTTP status.
        status: u16,
        /// The code for machines, as in `busy`.
        code: String,
        /// The line for a person.
        message: String,
        /// The field at fault, where one is.
        field: Option<String>,
    },
    /// the connection to control socket {path} ended before there was an answer ({message}): look whether the daemon still runs
    Lost {
        /// The socket.
        path: PathBuf,
        /// What the connection said.
        message: String,
    },
    /// the daemon on control socket {path} did not answer within {seconds} s: its log may say why
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        seconds: u64,
    },
    /// what answers on control socket {path} is not a vringd of this version: {message}
    Strange {
        /// The socket.
        path: PathBuf,
        /// What was strange.
        message: String,
    },
    /// cannot start the client: {source}
    Start {
        /// How the system answered.
        source: io::Error,
    },
}

/// A client of the control API. Calls block.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client of the daemon whose control socket is at `path`. Nothing is connected yet.
    ///
    /// # Errors
    /// [`ClientError::Start`] when the system is out of descriptors.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { path: path.into(), runtime: runtime.map_err(|source| ClientError::Start { source })? })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what is at `target`, as in `/v1/info`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        self.parse(&self.call(Method::GET, target, None)?)
    }

    /// Reads the text at `target`, as in `/metrics`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn text(&self, target: &str) -> Result<String, ClientError> {
        let body = self.call(Method::GET, target, None)?;
        String::from_utf8(body).map_err(|error| self.strange(&error))
    }

    /// Sends `body` to `target` and reads the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.strange(&error))?;
        self.parse(&self.call(method, target, Some(body))?)
    }

    /// Calls `target` without a body and reads the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn post<T: DeserializeOwned>(&self, target: &str) -> Result<T, ClientError> {
        self.parse(&self.call(Method::POST, target, None)?)
    }

    /// Calls `target` where neither the request nor the answer has a body.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn order(&self, method: Method, target: &str) -> Result<(), ClientError> {
        self.call(method, target, None).map(drop)
    }

    /// One request with its body, if it has one, and the body of the answer.
    ///
    /// # Errors
    /// [`ClientError`]; an answer that is not a success is [`ClientError::Refused`].
    pub fn call(&self, method: Method, target: &str, body: Option<Vec<u8>>) -> Result<Vec<u8>, ClientError> {
        let (status, body) = self.runtime.block_on(async {
            let exchange = tokio::time::timeout(ANSWER_PATIENCE, self.exchange(method, target, body));
            let timed_out = || ClientError::TimedOut { path: self.path.clone(), seconds: ANSWER_PATIENCE.as_secs() };
            exchange.await.unwrap_or_else(|_| Err(timed_out()))
        })?;
        if status.is_success() {
            return Ok(body);
        }
        let ErrorBody { error: ErrorDetail { code, message, field } } = self.parse(&body)?;
        Err(ClientError::Refused { status: status.as_u16(), code, message, field })
    }

    async fn exchange(
        &self,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Vec<u8>), ClientError> {
        let stream = UnixStream::connect(&self.path).await;
        let stream = stream.map_err(|source| ClientError::Unreachable { path: self.path.clone(), source })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.strange(&error))?;
        // The exchange reports what goes wrong on the connection.
        let connection = tokio::spawn(async { drop(connection.await) });
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.strange(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| self.unanswered(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.strange(&error))?.to_bytes().to_vec();
        connection.abort();
        Ok((status, body))
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(body).map_err(|error| self.strange(&error))
    }

    fn unanswered(&self, error: &hyper::Error) -> ClientError {
        let broken = std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<io::Error>);
        if error.is_incomplete_message() || broken {
            return ClientError::Lost { path: self.path.clone(), message: error.to_string() };
        }
        self.strange(error)
    }

    fn strange(&self, message: &dyn std::fmt::Display) -> ClientError {
        ClientError::Strange { path: self.path.clone(), message: message.to_string() }
    }
}

/// One segment of a target, percent-encoded (RFC 3986, 2.3), so that any text names an export or nothing.
pub fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
