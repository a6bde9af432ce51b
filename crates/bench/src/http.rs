//! Questions to a `vringd` over its control socket.
//!
//! Short HTTP by hand: a whole client would have to be a part of the server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Sends one request to the server whose control socket is at `control`, and gives the body of its answer.
///
/// # Errors
/// Nobody answers in time, or the server refuses: the error has its words.
pub(crate) fn ask(control: &Path, method: &str, target: &str, body: Option<&Value>) -> Result<String> {
    let failed = || format!("{method} {target}: cannot ask the server on {}", control.display());
    let mut stream = UnixStream::connect(control).with_context(failed)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX)).with_context(failed)?;
    stream.set_write_timeout(Some(ANSWER_TIME_MAX)).with_context(failed)?;
    // HTTP 1.0: the answer ends with the connection, and comes in one piece. So does the question: who is asked may look once.
    stream.write_all(question(method, target, body).as_bytes()).with_context(failed)?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).with_context(failed)?;
    body_of(&answer).map(str::to_owned).with_context(failed)
}

fn question(method: &str, target: &str, body: Option<&Value>) -> String {
    let head = format!("{method} {target} HTTP/1.0\r\nHost: localhost\r\n");
    match body.map(Value::to_string) {
        Some(body) => {
            format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        }
        None => head + "\r\n",
    }
}

fn body_of(answer: &str) -> Result<&str> {
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(body),
        _ => bail!("it answers {status:?}: {}", body.trim()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    use tempfile::TempDir;

    /// A server that gives one answer after the other, each on a connection of its own, and in the end what it was asked.
    pub(crate) fn fake(answers: Vec<String>) -> (TempDir, PathBuf, JoinHandle<Vec<String>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let answer = move |answer: String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 512];
            let length = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        };
        let server = std::thread::spawn(move || answers.into_iter().map(answer).collect());
        (directory, path, server)
    }

    /// An answer that says yes.
    pub(crate) fn ok(body: &str) -> String {
        format!("HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{body}")
    }

    #[test]
    fn one_question_is_one_answer() {
        let (_directory, path, server) = fake(vec![ok("{}"), "HTTP/1.0 204 No Content\r\n\r\n".into()]);
        assert_eq!(ask(&path, "GET", "/v1/info", None).unwrap(), "{}");
        assert_eq!(ask(&path, "POST", "/v1/jobs", Some(&serde_json::json!({"a": 1}))).unwrap(), "");
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("GET /v1/info HTTP/1.0\r\n"), "{asked:?}");
        assert!(asked[1].ends_with("Content-Length: 7\r\n\r\n{\"a\":1}"), "{asked:?}");
        let error = format!("{:#}", ask(&path.with_extension("none"), "GET", "/", None).unwrap_err());
        assert!(error.contains("cannot ask the server"), "{error}");
    }

    #[test]
    fn a_refusal_is_passed_on() {
        let error = body_of("HTTP/1.0 404 Not Found\r\n\r\nno such export").unwrap_err().to_string();
        assert!(error.contains("404") && error.contains("no such export"), "{error}");
        assert!(body_of("nonsense").is_err());
    }
}
