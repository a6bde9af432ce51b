//! `vringd ctl upgrade`: asks for another program, and waits until it answers.

use super::error::CtlError;
use crate::client::{Client, ClientError};
use crate::model::{Info, NewUpgrade, Takeover};
use hyper::Method;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the new program may take to answer. It opens nothing anew and answers within a second.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Upgrades, and returns what the new program says of itself.
///
/// # Errors
/// A refusal, after which the old program serves on; or no answer, after which nobody may.
pub(super) fn run(client: &Client, binary: Option<&Path>) -> Result<Info, CtlError> {
    let before: Info = client.get("/v1/info")?;
    let asked = NewUpgrade { binary: binary.map(absolute) };
    match client.send::<serde_json::Value>(Method::POST, "/v1/upgrade", &asked) {
        // Whoever would answer is gone: the other program is there, or is about to be.
        Ok(_) | Err(ClientError::Lost { .. }) => wait(client, before.upgrades),
        Err(error) => Err(error.into()),
    }
}

/// The daemon has a working directory of its own.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn wait(client: &Client, upgrades_before: u64) -> Result<Info, CtlError> {
    let end = Instant::now() + PATIENCE;
    loop {
        let last = match client.get::<Info>("/v1/info") {
            Ok(info) if info.upgrades > upgrades_before => return Ok(info),
            Ok(_) => None,
            // A connection that the old program had accepted ends in the middle of anything.
            Err(error @ (ClientError::Lost { .. } | ClientError::TimedOut { .. } | ClientError::Strange { .. })) => {
                Some(error)
            }
            Err(source) => return Err(CtlError::Gone { source }),
        };
        if Instant::now() >= end {
            return Err(last.map_or(CtlError::NotUpgraded, CtlError::from));
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
}

/// A line about how it went.
pub(super) fn words(info: &Info) -> String {
    let Some(Takeover { from, pause_us, sessions, rings, lost }) = &info.takeover else {
        return format!("vringd {} serves\n", info.version);
    };
    let mut text = format!(
        "vringd {from} -> {}: {sessions} session(s) with {rings} ring(s) went on after {:.1} ms\n",
        info.version,
        *pause_us as f64 / 1e3
    );
    for line in lost {
        text.push_str(&format!("lost: {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_made_absolute_here() {
        assert!(absolute(Path::new("target/vringd")).is_absolute());
        assert_eq!(absolute(Path::new("/usr/bin/vringd")), Path::new("/usr/bin/vringd"));
    }
}
