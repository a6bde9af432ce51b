//! What the API says of an upgrade that does not come about. What a real one does takes a real daemon.

use crate::common::{Served, ctl};
use control::Asker;
use control::client::{Client, ClientError};
use control::model::{Info, NewUpgrade, Takeover};
use hyper::Method;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

fn refused(served: &Served, body: &Value) -> (u16, String, Option<String>) {
    let client = Client::new(served.socket()).unwrap();
    match client.send::<Value>(Method::POST, "/v1/upgrade", body) {
        Err(ClientError::Refused { status, code, field, message }) => {
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            (status, code, field)
        }
        other => panic!("{body} must be refused: {other:?}"),
    }
}

#[test]
fn a_program_is_named_by_an_absolute_path() {
    let served = Served::new();
    let field = |name: &str| (422, "invalid-field".to_owned(), Some(name.to_owned()));
    assert_eq!(refused(&served, &json!({"binary": "vringd"})), field("binary"));
    assert_eq!(refused(&served, &json!({"programme": "/bin/true"})), field("programme"));
    assert_eq!(refused(&served, &json!({"binary": "/bin/true"})), (500, "failed".to_owned(), None));
    assert_eq!(refused(&served, &json!({})), (500, "failed".to_owned(), None));
}

#[test]
fn a_refusal_is_the_end_of_the_command() {
    let served = Served::new();
    let (status, line) = ctl(&served, "upgrade");
    assert_eq!(status, 1, "{line}");
    assert!(line.contains("cannot be upgraded") && !line.contains('\n'), "{line}");
}

/// Whoever asks on a connection, until it ends.
fn asked(served: &Served) -> (UnixStream, Asker, Receiver<Asker>) {
    // Without room: the call goes on when the second one is received.
    let (told, askers) = sync_channel(0);
    *served.fake.askers.lock().unwrap() = Some(told);
    let mut connection = UnixStream::connect(served.socket()).unwrap();
    let request = "POST /v1/upgrade HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    connection.write_all(request.as_bytes()).unwrap();
    let asker = askers.recv_timeout(PATIENCE).unwrap();
    (connection, asker, askers)
}

#[test]
fn a_call_sees_that_its_asker_has_gone() {
    let served = Served::new();
    let (connection, asker, askers) = asked(&served);
    // Others come and go meanwhile.
    let _: Info = Client::new(served.socket()).unwrap().get("/v1/info").unwrap();
    assert!(asker.waits());
    drop(connection);
    let by = Instant::now() + PATIENCE;
    while asker.waits() {
        assert!(Instant::now() < by, "the connection has ended");
        thread::sleep(Duration::from_millis(1));
    }
    drop(askers);
}

#[test]
fn what_is_left_out_is_absent() {
    assert_eq!(serde_json::to_string(&NewUpgrade::default()).unwrap(), "{}");
    let served = Served::new();
    let client = Client::new(served.socket()).unwrap();
    let shown: Value = client.get("/v1/info").unwrap();
    assert_eq!((shown["upgrades"].as_u64(), shown.get("takeover")), (Some(0), None));
    let takeover = Takeover { from: "0.1.0".into(), pause_us: 4200, sessions: 2, rings: 4, lost: vec!["a".into()] };
    let info = Info { upgrades: 1, takeover: Some(takeover), ..client.get("/v1/info").unwrap() };
    let text = serde_json::to_string(&info).unwrap();
    assert_eq!(serde_json::from_str::<Info>(&text).unwrap(), info);
}
