//! `ctl trace`, and the routes behind it.

use crate::common::{Served, ctl, ctl_words};
use crate::ctl::matches_snapshot;
use control::client::{Client, ClientError};
use control::model::trace::{Trace, TraceNews};
use hyper::Method;
use serde_json::{Value, json};

fn client(served: &Served) -> Client {
    Client::new(served.socket()).unwrap()
}

fn traces(served: &Served) -> Vec<Trace> {
    client(served).get("/v1/traces").unwrap()
}

/// How long it took is another each time.
fn without_seconds(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" or longer, in ") {
        Some((before, after)) => format!("{before} or longer, in -{}\n", after.trim_start_matches(|c: char| c != ' ')),
        None => line.to_owned() + "\n",
    });
    lines.collect()
}

#[test]
fn slow_requests_are_lines_and_a_summary() {
    let served = Served::new();
    let (status, text) = ctl(&served, "trace --slower-than 5ms --count 2");
    assert_eq!(status, 0, "{text}");
    matches_snapshot("trace.txt", &without_seconds(&text));
    // It has ended its trace.
    assert_eq!(traces(&served), []);
    let (status, text) = ctl(&served, "trace root --slower-than 5ms --count 1");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((status, lines.len()), (0, 6), "{text}");
    assert!(lines[0].starts_with("requests of export root that take 5ms or longer"), "{text}");
    let (status, text) = ctl(&served, "trace --slower-than 1us --for 1ms --export all");
    assert!(status == 0 && text.starts_with("requests of all exports"), "{text}");
}

#[test]
fn programs_read_objects() {
    let served = Served::new();
    let (status, text) = ctl(&served, "trace --slower-than 5ms --count 2 --json");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((status, lines.len()), (0, 4), "{text}");
    assert_eq!(lines[0]["request"]["ways"], json!(["commit-joined"]));
    assert_eq!(lines[1]["request"]["waited_for"], "limit");
    assert_eq!(lines[2], json!({ "lost": 2 }));
    let summary = &lines[3]["summary"];
    assert_eq!((&summary["slow"], &summary["answered"], &summary["lost"]), (&json!(4), &json!(4810), &json!(2)));
    assert_eq!(summary["times"]["inline_us"], 12_400.0);
}

#[test]
fn what_cannot_be_traced_is_named() {
    let served = Served::new();
    for (words, status, message) in [
        ("trace none --slower-than 5ms", 1, "there is no export `none` (no-such-export)"),
        (
            "trace --slower-than 0ms",
            2,
            "error: invalid value '0ms' for '--slower-than <TIME>': must be 1us to 3600s, not 0ns",
        ),
        ("trace --slower-than 5", 2, "error: invalid value '5' for '--slower-than <TIME>'"),
        ("trace root --export data --slower-than 5ms", 2, "error: the argument '[NAME]' cannot be used with"),
        ("trace", 2, "error: the following required arguments were not provided"),
        ("trace --slower-than 5ms --count 0", 2, "error: invalid value '0' for '--count <N>'"),
    ] {
        let (found, text) = ctl(&served, words);
        assert!(found == status && text.starts_with(message), "{words}: {found} {text}");
    }
    let client = client(&served);
    let none = client.send::<Trace>(Method::POST, "/v1/traces", &json!({ "slower_than": "2h" }));
    assert!(matches!(none, Err(ClientError::Refused { status: 422, .. })));
    let none = client.send::<Trace>(Method::POST, "/v1/traces", &json!({ "slower_than": "3601s" }));
    assert!(
        matches!(none, Err(ClientError::Refused { status: 422, field: Some(field), .. }) if field == "slower_than")
    );
    let begin = || client.send::<Trace>(Method::POST, "/v1/traces", &json!({ "slower_than": "5ms" }));
    let first = begin().unwrap();
    begin().unwrap();
    assert!(matches!(begin(), Err(ClientError::Refused { status: 409, code, .. }) if code == "too-many-traces"));
    assert_eq!(ctl(&served, "trace --slower-than 5ms").0, 1);
    let end = || client.order(Method::DELETE, &format!("/v1/traces/{}", first.id));
    end().unwrap();
    assert!(matches!(end(), Err(ClientError::Refused { status: 404, code, .. }) if code == "no-such-trace"));
    let taken = client.post::<TraceNews>(&format!("/v1/traces/{}/take", first.id));
    assert!(matches!(taken, Err(ClientError::Refused { status: 404, code, .. }) if code == "no-such-trace"));
}

#[test]
fn a_trace_that_has_ended_goes_on_and_says_so() {
    let served = Served::new();
    let (socket, fake) = (served.socket(), served.fake.clone());
    let reading = std::thread::spawn(move || ctl_words(&socket, &["trace", "--slower-than", "5ms", "--count", "3"]));
    // It has been told of two by then, or of none: then it is told of two of the next.
    while fake.taken_traces() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fake.forget_traces();
    let (status, text) = reading.join().unwrap();
    assert_eq!(status, 0, "{text}");
    let note =
        "-- the trace had ended, as its news were not taken for seconds: it goes on, without what was slow meanwhile";
    assert!(text.lines().any(|line| line == note), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("/q")).count(), 3, "{text}");
}
