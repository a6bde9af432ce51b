//! `vringd ctl top`: what rings and workers do now.

use super::args::TopArgs;
use super::cells::{self, NOTHING};
use super::error::CtlError;
use super::figures::{Look, RingSample, Sample, WorkerSample, compare};
use super::table;
use super::{p9, volume};
use crate::client::{Client, ClientError};
use std::io::Write;
use std::time::{Duration, Instant};

/// Cursor to the top left corner, then clear what is below: less flicker than to clear first (ECMA-48, CUP and ED).
const REDRAW: &str = "\x1b[H\x1b[J";

pub(super) fn run(
    options: &TopArgs,
    client: &Client,
    json: bool,
    out: &mut dyn Write,
    terminal: bool,
) -> Result<(), CtlError> {
    let live = terminal && !json && options.count.is_none();
    let mut left = options.count.unwrap_or(1);
    let (mut before, mut at) = (look(client)?, Instant::now());
    loop {
        std::thread::sleep(Duration::from_secs_f64(options.interval));
        let (after, now) = (look(client)?, Instant::now());
        let sample = compare(&before, &after, (now - at).as_secs_f64());
        if json {
            serde_json::to_writer(&mut *out, &sample).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            let redraw = if live { REDRAW } else { "" };
            write!(out, "{redraw}{}", show(&sample))?;
        }
        out.flush()?;
        (before, at) = (after, now);
        if !live {
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
    }
}

fn look(client: &Client) -> Result<Look, ClientError> {
    Ok(Look { exports: client.get("/v1/exports")?, workers: client.get("/v1/workers")? })
}

fn show(sample: &Sample) -> String {
    let rings = [
        "EXPORT",
        ">RING",
        "STATE",
        ">WORKER",
        ">IOPS",
        ">READ MiB/s",
        ">WRITE MiB/s",
        ">DEPTH",
        ">QUEUED p50 µs",
        ">p99 µs",
        ">SERVED p50 µs",
        ">p99 µs",
        ">KICKS/s",
        ">NOTIFIED/s",
        ">THROTTLED %",
    ];
    let workers = [
        ">WORKER",
        "NAME",
        "STATE",
        ">RINGS",
        ">CPU %",
        ">TURNS/s",
        ">SYSCALLS/s",
        ">SLEEPS/s",
        ">POLLS HIT %",
        "WAITS BY",
        ">WINDOW µs",
    ];
    let rings = match sample.rings.as_slice() {
        [] => "no rings\n".to_owned(),
        samples => cells::table(&rings, samples.iter().map(ring_row)),
    };
    let workers = match sample.workers.as_slice() {
        [] => "no workers\n".to_owned(),
        samples => cells::table(&workers, samples.iter().map(worker_row)),
    };
    let part = |table: String| if table.is_empty() { table } else { format!("{table}\n") };
    let (volumes, over_9p) = (part(volume::samples(&sample.volumes)), part(p9::samples(&sample.p9)));
    format!("{rings}\n{volumes}{over_9p}{workers}")
}

fn ring_row(ring: &RingSample) -> Vec<String> {
    let latency = |us: Option<f64>| us.map_or_else(|| NOTHING.to_owned(), cells::microseconds);
    vec![
        ring.export.clone(),
        ring.ring.to_string(),
        table::ring_state(ring.state).to_owned(),
        ring.worker.map_or_else(|| NOTHING.to_owned(), |id| id.to_string()),
        format!("{:.0}", ring.requests_per_second),
        cells::mib(ring.read_bytes_per_second),
        cells::mib(ring.written_bytes_per_second),
        ring.in_flight.to_string(),
        latency(ring.queued_p50_us),
        latency(ring.queued_p99_us),
        latency(ring.served_p50_us),
        latency(ring.served_p99_us),
        format!("{:.0}", ring.kicks_per_second),
        format!("{:.0}", ring.notifications_per_second),
        ring.throttled.map_or_else(|| NOTHING.to_owned(), |share| format!("{:.0}", share * 100.0)),
    ]
}

fn worker_row(worker: &WorkerSample) -> Vec<String> {
    vec![
        worker.worker.to_string(),
        worker.name.clone(),
        table::worker_state(worker.state).to_owned(),
        worker.rings.to_string(),
        format!("{:.1}", worker.cpu * 100.0),
        format!("{:.0}", worker.turns_per_second),
        format!("{:.0}", worker.syscalls_per_second),
        format!("{:.0}", worker.sleeps_per_second),
        worker.polls_hit.map_or_else(|| NOTHING.to_owned(), |share| format!("{:.0}", share * 100.0)),
        cells::or_nothing(worker.tactic),
        worker.poll_window_us_now.to_string(),
    ]
}
