//! Slow requests as a person reads them.

use super::super::cells;
use crate::model::trace::{NewTrace, SlowRequest, StageTimes, WaitedFor, Way};
use std::fmt::Write;

/// What is traced.
pub(super) fn what(new: &NewTrace) -> String {
    let whose = new.export.as_ref().map_or_else(|| "all exports".to_owned(), |name| format!("export {name}"));
    format!("requests of {whose} that take {} or longer; times are milliseconds, dates UTC", new.slower_than)
}

/// Milliseconds, with as many digits as say something.
fn ms(us: f64) -> String {
    let ms = us / 1e3;
    match ms {
        ..9.995 => format!("{ms:.2}"),
        ..99.95 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

/// One line.
pub(super) fn request(slow: &SlowRequest) -> String {
    let taken = i64::try_from(slow.taken_unix_us).ok().and_then(chrono::DateTime::from_timestamp_micros);
    let time = taken.map_or_else(|| "-".to_owned(), |taken| taken.format("%H:%M:%S%.3f").to_string());
    let moved = slow.answered_by.map_or_else(String::new, |worker| format!(">{worker}"));
    let SlowRequest { export, ring, worker, kind, total_us, .. } = slow;
    let outcome = if slow.failed { "error" } else { "ok" };
    let (about, before, stages) = (about(slow), before(slow), stages(slow));
    format!(
        "{time}  {export}/q{ring}  worker {worker}{moved}  {kind}{about}  {before}{} ms: {stages}  {outcome}",
        ms(*total_us)
    )
}

/// What it asks for.
fn about(slow: &SlowRequest) -> String {
    let mut text = String::new();
    let node = || slow.node.map(|node| format!(" node {node}"));
    let fid = || slow.fid.map(|fid| format!(" fid {fid}"));
    let object = slow.lun.map(|lun| format!(" LUN {lun}")).or_else(node).or_else(fid);
    text += &object.unwrap_or_default();
    if let Some(bytes) = slow.bytes {
        text += &format!(" {}", cells::size(bytes));
    }
    if let Some(offset) = slow.offset {
        text += &format!(" at {offset:#x}");
    }
    text
}

/// What may have been before it was taken, where it is worth a word.
fn before(slow: &SlowRequest) -> String {
    let waited_us = slow.times.waited_us_max;
    let Some(why) = slow.waited_for.filter(|_| waited_us * 20.0 >= slow.total_us) else { return String::new() };
    let why = match why {
        WaitedFor::Worker => "worker busy",
        WaitedFor::Turn => "behind others of its ring",
        WaitedFor::Limit => "limit",
        WaitedFor::Hold => "ring held",
    };
    format!("waited at most {} ({why}), then ", ms(waited_us))
}

/// The stages that took time, one after the other.
fn stages(slow: &SlowRequest) -> String {
    let times = &slow.times;
    let mut text = String::new();
    let mut add = |name: &str, us: f64, note: &str| {
        // What took no microsecond is no stage of this request.
        if us >= 1.0 {
            let comma = if text.is_empty() { "" } else { ", " };
            // A string takes all.
            let _ = write!(text, "{comma}{name} {}{note}", ms(us));
        }
    };
    add("before the trace", times.unknown_us, "");
    add("held", times.held_us, "");
    add("start", times.start_us, "");
    add("inline", times.inline_us, "");
    let behind_us = times.behind_us + times.lock_us;
    let mut notes = Vec::new();
    if slow.parts > 1 {
        notes.push(format!("{} parts", slow.parts));
    }
    if slow.seen_late_us_max * 20.0 >= behind_us.max(slow.total_us) {
        notes.push(format!("at most {} of it until the busy worker looked", ms(slow.seen_late_us_max)));
    }
    let note = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    add(&ways(&slow.ways), behind_us, &note);
    add("answer", times.answer_us, "");
    add("show", times.show_us, "");
    text
}

/// The ways that its work went, as one name.
fn ways(ways: &[Way]) -> String {
    let names: Vec<&str> = ways
        .iter()
        .map(|way| match way {
            Way::Uring => "uring",
            Way::Thread => "thread",
            Way::Timer => "timer",
            Way::Line => "line",
            Way::CommitLed => "commit (led)",
            Way::CommitJoined => "commit (joined)",
            Way::Copy => "backup copy",
            Way::Lock => "lock",
            Way::Other => "other request",
        })
        .collect();
    if names.is_empty() { "behind".to_owned() } else { names.join("+") }
}

/// What came of it all.
pub(super) fn summary(
    new: &NewTrace,
    (slow, answered, lost): (u64, u64, u64),
    seconds: f64,
    times: &StageTimes,
) -> String {
    let mut text = format!("{slow} of {answered} requests took {} or longer, in {seconds:.1} s", new.slower_than);
    if lost > 0 {
        text += &format!("; {lost} of them were not shown");
    }
    text.push('\n');
    let total_us = times.total_us();
    if slow == 0 || total_us <= 0.0 {
        return text;
    }
    let mut shares = [
        ("storage or host files", times.behind_us),
        ("on the worker", times.inline_us),
        ("locks of other clients", times.lock_us),
        ("held by a limit", times.held_us),
        ("start", times.start_us),
        ("answer", times.answer_us),
        ("show", times.show_us),
        ("before the trace", times.unknown_us),
    ];
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shares = shares.iter().filter(|(_, us)| us / total_us >= 0.001);
    let shares: Vec<String> = shares.map(|(name, us)| format!("{name} {:.1} %", us / total_us * 100.0)).collect();
    text += &format!("their time, {} ms on average: {}\n", ms(total_us / slow as f64), shares.join(", "));
    if times.waited_us_max * 20.0 >= total_us {
        text += &format!(
            "before they were taken they waited at most {} ms on average\n",
            ms(times.waited_us_max / slow as f64)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow() -> SlowRequest {
        SlowRequest {
            taken_unix_us: 1_700_000_001_123_456,
            export: "vm1".into(),
            ring: 0,
            worker: 2,
            answered_by: None,
            kind: "write".into(),
            offset: Some(0x1000),
            bytes: Some(4096),
            node: None,
            fid: None,
            lun: None,
            failed: false,
            total_us: 7300.0,
            times: StageTimes {
                start_us: 10.0,
                behind_us: 7190.0,
                answer_us: 20.0,
                show_us: 80.0,
                ..StageTimes::default()
            },
            waited_for: None,
            ways: vec![Way::Uring],
            parts: 1,
            seen_late_us_max: 100.0,
        }
    }

    #[test]
    fn a_request_is_a_line() {
        assert_eq!(
            request(&slow()),
            "22:13:21.123  vm1/q0  worker 2  write 4K at 0x1000  7.30 ms: start 0.01, uring 7.19, answer 0.02, show 0.08  ok"
        );
        let times = StageTimes { waited_us_max: 49_000.0, inline_us: 7300.0, ..StageTimes::default() };
        let held = SlowRequest { times, waited_for: Some(WaitedFor::Limit), ways: vec![], failed: true, ..slow() };
        assert_eq!(
            request(&held),
            "22:13:21.123  vm1/q0  worker 2  write 4K at 0x1000  waited at most 49.0 (limit), then 7.30 ms: inline 7.30  error"
        );
        let moved = SlowRequest {
            answered_by: Some(3),
            kind: "setlkw".into(),
            offset: None,
            bytes: None,
            node: Some(7),
            ways: vec![Way::Lock],
            parts: 2,
            seen_late_us_max: 3000.0,
            total_us: 250_000.0,
            times: StageTimes { lock_us: 250_000.0, ..StageTimes::default() },
            ..slow()
        };
        assert_eq!(request(&moved), "22:13:21.123  vm1/q0  worker 2>3  setlkw node 7  250 ms: lock 250 (2 parts)  ok");
        let late = SlowRequest { seen_late_us_max: 3000.0, ways: vec![Way::CommitJoined, Way::Uring], ..slow() };
        assert!(
            request(&late).contains("commit (joined)+uring 7.19 (at most 3.00 of it until the busy worker looked)"),
            "{}",
            request(&late)
        );
    }

    #[test]
    fn a_summary_says_how_many_and_where_their_time_went() {
        let new = NewTrace { slower_than: "5ms".parse().unwrap(), export: None };
        assert_eq!(
            summary(&new, (0, 7, 0), 30.04, &StageTimes::default()),
            "0 of 7 requests took 5ms or longer, in 30.0 s\n"
        );
        let times = StageTimes { behind_us: 9100.0, inline_us: 890.0, start_us: 10.0, ..StageTimes::default() };
        let text = "2 of 4810 requests took 5ms or longer, in 30.0 s; 1 of them were not shown\n\
                    their time, 5.00 ms on average: storage or host files 91.0 %, on the worker 8.9 %, start 0.1 %\n";
        assert_eq!(summary(&new, (2, 4810, 1), 30.0, &times), text);
        let waited = StageTimes { waited_us_max: 1000.0, ..times };
        let last = "before they were taken they waited at most 0.50 ms on average\n";
        assert_eq!(summary(&new, (2, 4810, 1), 30.0, &waited), format!("{text}{last}"));
    }
}
