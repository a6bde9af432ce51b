//! fio's JSON, of fio 2 and fio 3, as figures.
//!
//! fio 3 gives latencies in nanoseconds (`lat_ns`, `clat_ns`) and bytes as bytes; fio 2 gives microseconds (`lat`, `clat`)
//! and KiB, and percentiles for completion latencies alone. Both print warnings before the document, and on the same stream.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::record::{Figures, Latency};

/// Why fio gave no figures.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum Error {
    /// fio printed no JSON{0}
    NoDocument(String),
    /// fio printed JSON of an unknown form: {0}
    Form(String),
    /// fio's job failed: {message}
    Job {
        /// The number of the error, as errno(3).
        number: i32,
        /// Its text.
        message: String,
    },
    /// fio completed no request
    Nothing,
}

#[derive(Debug, Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    #[serde(default)]
    error: i32,
    read: Side,
    write: Side,
    #[serde(default)]
    trim: Side,
}

/// One direction of a job. Run times are in ms, `bw` in KiB/s; the unit of `io_bytes` is the version's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Side {
    io_bytes: u64,
    /// fio 3 alone has it, and counts `io_bytes` in bytes.
    io_kbytes: Option<u64>,
    total_ios: u64,
    runtime: f64,
    iops: f64,
    bw: f64,
    /// fio 3.
    lat_ns: Option<Times>,
    clat_ns: Option<Times>,
    /// fio 2.
    lat: Option<Times>,
    clat: Option<Times>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Times {
    mean: f64,
    max: f64,
    percentile: BTreeMap<String, f64>,
}

/// Reads what fio printed with `--output-format=json` (or `json+`, or `normal,json`).
///
/// Jobs are summed up: rates add, the longest time is the time. CPU times are not in there.
///
/// # Errors
/// There is no document, a job failed, or nothing was done.
pub fn parse(text: &str) -> Result<Figures, Error> {
    let document = document(text)?;
    if let Some(job) = document.jobs.iter().find(|job| job.error != 0) {
        let message = std::io::Error::from_raw_os_error(job.error).to_string();
        // The number is in the error itself.
        let message = message.split(" (os error").next().unwrap_or_default().to_owned();
        return Err(Error::Job { number: job.error, message });
    }
    let sides: Vec<&Side> = document.jobs.iter().flat_map(|job| [&job.read, &job.write, &job.trim]).collect();
    let requests: u64 = sides.iter().map(|side| side.total_ios).fold(0, u64::saturating_add);
    if requests == 0 {
        return Err(Error::Nothing);
    }
    Ok(Figures {
        seconds: sides.iter().map(|side| side.runtime).fold(0.0, f64::max) / 1000.0,
        requests,
        iops: sides.iter().map(|side| side.iops).sum(),
        kib_per_s: sides.iter().map(|side| side.kib_per_s()).sum(),
        latency: latency(&sides),
        server_cpu_s: None,
        guest_cpu_s: None,
    })
}

fn document(text: &str) -> Result<Document, Error> {
    let mut last = None;
    // A warning may have a brace in it: the document begins where a line does.
    for (start, _) in text.match_indices('{') {
        if !text.get(..start).is_some_and(|before| before.is_empty() || before.ends_with('\n')) {
            continue;
        }
        let rest = text.get(start..).unwrap_or_default();
        match serde_json::Deserializer::from_str(rest).into_iter().next() {
            Some(Ok(document)) => return Ok(document),
            Some(Err(error)) => last = Some(error),
            None => {}
        }
    }
    let said = crate::stand::last_line(text);
    Err(match last {
        Some(error) => Error::Form(error.to_string()),
        None if said.is_empty() => Error::NoDocument(String::new()),
        None => Error::NoDocument(format!(": {said}")),
    })
}

impl Side {
    fn kib_per_s(&self) -> f64 {
        // `bw` is rounded down; bytes in a time are not.
        match self.io_kbytes {
            Some(_) if self.runtime > 0.0 => self.io_bytes as f64 / 1024.0 / (self.runtime / 1000.0),
            _ => self.bw,
        }
    }

    fn latency(&self) -> Latency {
        let none = Times::default();
        let (total, completion, per_us) = match (&self.lat_ns, &self.clat_ns) {
            (None, None) => (self.lat.as_ref(), self.clat.as_ref(), 1.0),
            (total, completion) => (total.as_ref(), completion.as_ref(), 1000.0),
        };
        let completion = completion.unwrap_or(&none);
        let total = total.filter(|times| times.mean > 0.0).unwrap_or(completion);
        // Those of total latency only when they were asked for; those of completion unless they were switched off.
        let percentiles = if total.percentile.is_empty() { &completion.percentile } else { &total.percentile };
        let at = |percent: f64| {
            let exact = |(name, value): (&String, &f64)| {
                let is_it = name.parse::<f64>().is_ok_and(|given| (given - percent).abs() < 1e-6);
                is_it.then_some(*value / per_us)
            };
            percentiles.iter().find_map(exact).unwrap_or(0.0)
        };
        Latency {
            mean_us: total.mean / per_us,
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: total.max / per_us,
        }
    }
}

/// The mean of all; the percentiles of the worst, as fio keeps none in common.
fn latency(sides: &[&Side]) -> Latency {
    let mut all = Latency::default();
    let (mut weighted_us, mut count) = (0.0, 0.0);
    for side in sides.iter().filter(|side| side.total_ios > 0) {
        let one = side.latency();
        weighted_us += one.mean_us * side.total_ios as f64;
        count += side.total_ios as f64;
        all.p50_us = all.p50_us.max(one.p50_us);
        all.p90_us = all.p90_us.max(one.p90_us);
        all.p99_us = all.p99_us.max(one.p99_us);
        all.p999_us = all.p999_us.max(one.p999_us);
        all.max_us = all.max_us.max(one.max_us);
    }
    all.mean_us = if count > 0.0 { weighted_us / count } else { 0.0 };
    all
}
