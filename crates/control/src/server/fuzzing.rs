//! Bodies of the fuzz targets: any bytes on the control socket, and any text where a person writes a value.
//!
//! The targets in `fuzz/` call them, and so do the crate's own tests. What they look for is a panic, here or in a handler,
//! and an answer that is none.

use axum::Router;
use axum::extract::{ConnectInfo, Extension};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use super::listen::Peer;
use super::{answer, routes};
use crate::daemon::Daemon;
use crate::model::config::NewExport;
use crate::model::policy::PolicyRecord;
use crate::model::{
    ByteSize, CpuList, Execution, Favour, FieldError, FileMode, JobSettings, Listen, NewBitmap, NewDisk, NewJob,
    NewSnapshot, Placement, Poll, Span,
};

/// Methods that an input chooses from; the last one is none that any route knows.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "BREW"];
/// Longest request line that an input asks for.
const PATH_BYTES_MAX: usize = 255;
/// More than the server reads of a body.
const HUGE: usize = answer::BODY_BYTES_MAX + 1;

thread_local! {
    /// Describing the routes takes longer than an input does.
    static ROUTES: Router<Arc<dyn Daemon>> = routes::unbound();
    static RUNTIME: Option<Runtime> =
        Builder::new_current_thread().enable_time().max_blocking_threads(1).build().ok();
}

/// Sends what `data` says to the routes of `daemon`, as the user who runs it, and returns all that is answered.
///
/// Layout of `data`: choice (1). With bit 7 the rest is what is sent, byte for byte; otherwise it is one request: the lowest
/// bits choose the method, bit 6 makes the body larger than is read, then come the length of the path (1), the path, and the
/// body.
///
/// # Panics
/// When the server answers with what is no HTTP response; that is what the fuzzer looks for.
pub fn api(daemon: Arc<dyn Daemon>, data: &[u8]) -> Vec<u8> {
    let Some(bytes) = request(data) else {
        return Vec::new();
    };
    let answered = RUNTIME.with(|runtime| runtime.as_ref().map(|runtime| runtime.block_on(talk(daemon, bytes))));
    let answered = answered.unwrap_or_default();
    assert!(answered.is_empty() || answered.starts_with(b"HTTP/1."), "no HTTP response: {answered:?}");
    answered
}

/// What is sent.
fn request(data: &[u8]) -> Option<Vec<u8>> {
    let (&choice, rest) = data.split_first()?;
    if choice & 0x80 != 0 {
        return Some(rest.to_vec());
    }
    let method = METHODS[usize::from(choice & 0x3f) % METHODS.len()];
    let (&length, rest) = rest.split_first()?;
    let (path, body) = rest.split_at(usize::from(length).min(rest.len()).min(PATH_BYTES_MAX));
    let huge = if choice & 0x40 != 0 { HUGE } else { 0 };
    let mut bytes = format!("{method} ").into_bytes();
    bytes.extend(path);
    let length = body.len() + huge;
    bytes.extend(
        format!(" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n").bytes(),
    );
    bytes.extend(body);
    bytes.resize(bytes.len() + huge, b' ');
    Some(bytes)
}

/// Serves one connection that says `bytes` and nothing more.
async fn talk(daemon: Arc<dyn Daemon>, bytes: Vec<u8>) -> Vec<u8> {
    let (theirs, ours) = tokio::io::duplex(64 << 10);
    let peer = Peer(Some(rustix::process::geteuid().as_raw()));
    let routes = ROUTES.with(Router::clone).with_state(daemon).layer(Extension(ConnectInfo(peer)));
    let connection =
        http1::Builder::new().half_close(true).serve_connection(TokioIo::new(ours), TowerToHyperService::new(routes));
    let (mut reader, mut writer) = tokio::io::split(theirs);
    let say = async {
        // The server may hang up in the middle.
        let _hung_up = writer.write_all(&bytes).await;
        let _hung_up = writer.shutdown().await;
    };
    let mut answered = Vec::new();
    let listen = async {
        let _hung_up = reader.read_to_end(&mut answered).await;
    };
    let (_served, (), ()) = tokio::join!(connection, say, listen);
    answered
}

/// Reads `data` as each value that a person can write, as the description of an export, a disk, a job, a snapshot
/// and a bitmap, and as the record of a policy, from which it is decided again. Whether any of that was understood.
///
/// # Panics
/// When what was understood is not understood again after it was shown.
pub fn text(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let values = [
        value::<ByteSize>(text),
        value::<CpuList>(text),
        value::<Execution>(text),
        value::<FileMode>(text),
        value::<Listen>(text),
        value::<Placement>(text),
        value::<Poll>(text),
        value::<Span>(text),
    ];
    let exports = [toml::from_str(text).ok(), serde_json::from_str(text).ok()];
    let disks = [toml::from_str(text).ok(), serde_json::from_str(text).ok()];
    values.contains(&true)
        | described(serde_json::from_str(text).ok(), NewJob::check)
        | described(serde_json::from_str(text).ok(), JobSettings::check)
        | described(serde_json::from_str(text).ok(), NewSnapshot::check)
        | described(serde_json::from_str(text).ok(), NewBitmap::check)
        | exports.into_iter().any(|new| described(new, NewExport::check))
        | disks.into_iter().any(|new| described(new, NewDisk::check))
        | serde_json::from_str(text).is_ok_and(|record| replayed(&record))
}

/// Whatever a record says: a policy that could be in this state decides.
fn replayed(record: &PolicyRecord) -> bool {
    let sound = record.workers.iter().filter(|worker| worker.stretches.iter().all(policy::Stretch::is_sound));
    sound.for_each(|worker| drop(policy::replay(&worker.stretches, Some(Favour::Latency))));
    true
}

fn value<T: FromStr + fmt::Display + fmt::Debug + PartialEq + Serialize + DeserializeOwned>(text: &str) -> bool {
    let Ok(value) = text.parse::<T>() else {
        return false;
    };
    let shown = value.to_string();
    assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is shown as {shown:?}, which is another");
    let json = serde_json::to_string(&value).expect("a value can be written");
    let again = serde_json::from_str::<T>(&json);
    assert!(again.is_ok_and(|again| again == value), "{text:?} is written as {json}, which is another");
    true
}

fn described<T: PartialEq + Serialize + DeserializeOwned>(
    described: Option<T>,
    check: impl FnOnce(&T) -> Result<(), FieldError>,
) -> bool {
    let Some(described) = described else {
        return false;
    };
    if let Err(error) = check(&described) {
        assert!(!error.field.is_empty() && !error.message.is_empty());
        return true;
    }
    let json = serde_json::to_string(&described).expect("a description can be written");
    let again = serde_json::from_str::<T>(&json);
    assert!(again.is_ok_and(|again| again == described), "{json} describes something else");
    true
}
