//! fio's JSON, of fio 2 and fio 3, as figures.
//!
//! fio 3 gives latencies in nanoseconds (`lat_ns`, `clat_ns`) and bytes as bytes; fio 2 gives microseconds (`lat`, `clat`)
//! and KiB, and percentiles for completion latencies alone. Both print warnings before the document, and on the same stream.

use std::collections::BTreeMap;

use guest::usage::Usage;
use serde::Deserialize;

use crate::frontend::Report;
use crate::stats::{Latency, ratio};

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

/// The parts of a job that are used. Its run time is in ms, processor time a percentage of that.
#[derive(Debug, Deserialize)]
struct Job {
    #[serde(default)]
    error: i32,
    read: Side,
    write: Side,
    #[serde(default)]
    trim: Side,
    #[serde(default)]
    sync: Side,
    #[serde(default)]
    job_runtime: f64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
    #[serde(default)]
    ctx: u64,
}

/// One direction of a job, or its flushes. Run times are in ms, `bw` in KiB/s; the unit of `io_bytes` is the version's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Side {
    io_bytes: u64,
    /// fio 3 alone has it, and counts `io_bytes` in bytes.
    io_kbytes: Option<u64>,
    /// fio before 2.2 does not have it.
    total_ios: Option<u64>,
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
    #[serde(rename = "N")]
    count: u64,
    percentile: BTreeMap<String, f64>,
}

/// Reads what fio printed with `--output-format=json` (or `json+`, or `normal,json`). The server is fio itself.
///
/// Jobs are summed up: rates add, the longest time is the time.
///
/// # Errors
/// There is no document, a job failed, or nothing was done.
pub fn parse(text: &str) -> Result<Report, Error> {
    let Document { jobs } = document(text)?;
    if let Some(job) = jobs.iter().find(|job| job.error != 0) {
        let message = std::io::Error::from_raw_os_error(job.error).to_string();
        // The number is in the error itself.
        let message = message.split(" (os error").next().unwrap_or_default().to_owned();
        return Err(Error::Job { number: job.error, message });
    }
    let sides: Vec<&Side> = jobs.iter().flat_map(|job| [&job.read, &job.write, &job.trim]).collect();
    let flushes: Vec<Latency> = jobs.iter().map(|job| job.sync.latency()).collect();
    let done = sides.iter().filter(|side| side.requests() > 0);
    let ops = sides.iter().map(|side| side.requests()).fold(0, u64::saturating_add);
    if ops == 0 {
        return Err(Error::Nothing);
    }
    let reads = jobs.iter().map(|job| job.read.requests()).sum();
    let cpu_s = |percent: fn(&Job) -> f64| jobs.iter().map(|job| percent(job) / 100.0 * job.job_runtime / 1000.0).sum();
    Ok(Report {
        seconds: sides.iter().map(|side| side.runtime).fold(0.0, f64::max) / 1000.0,
        ops,
        reads,
        writes: ops - reads,
        // fio 3.33 leaves the `total_ios` of flushes at 0.
        flushes: flushes.iter().map(|times| times.count).sum(),
        bytes: sides.iter().map(|side| side.bytes()).sum(),
        iops: sides.iter().map(|side| side.iops).sum(),
        mib_per_s: sides.iter().map(|side| side.kib_per_s()).sum::<f64>() / 1024.0,
        latency: together(done.map(|side| Latency { count: side.requests(), ..side.latency() })),
        flush_latency: together(flushes),
        server: Some(Usage {
            user_s: cpu_s(|job| job.usr_cpu),
            system_s: cpu_s(|job| job.sys_cpu),
            voluntary_switches: jobs.iter().map(|job| job.ctx).sum(),
            involuntary_switches: 0,
        }),
        ..Report::default()
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
    let said = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    Err(match last {
        Some(error) => Error::Form(error.to_string()),
        None => Error::NoDocument(said.map(|said| format!(": {said}")).unwrap_or_default()),
    })
}

impl Side {
    fn requests(&self) -> u64 {
        self.total_ios.unwrap_or_else(|| (self.iops * self.runtime / 1000.0).round() as u64)
    }

    fn bytes(&self) -> u64 {
        if self.io_kbytes.is_some() { self.io_bytes } else { self.io_bytes.saturating_mul(1024) }
    }

    fn kib_per_s(&self) -> f64 {
        // `bw` is rounded down; bytes in a time are not.
        let exact = self.io_kbytes.and_then(|_| ratio(self.io_bytes as f64 / 1024.0, self.runtime / 1000.0));
        exact.unwrap_or(self.bw)
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
            count: total.count,
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
fn together(sides: impl IntoIterator<Item = Latency>) -> Latency {
    sides.into_iter().fold(Latency::default(), |all, one| {
        let weighted_us = all.mean_us * all.count as f64 + one.mean_us * one.count as f64;
        let count = all.count + one.count;
        Latency {
            count,
            mean_us: ratio(weighted_us, count as f64).unwrap_or(0.0),
            p50_us: all.p50_us.max(one.p50_us),
            p90_us: all.p90_us.max(one.p90_us),
            p99_us: all.p99_us.max(one.p99_us),
            p999_us: all.p999_us.max(one.p999_us),
            max_us: all.max_us.max(one.max_us),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same job (psync, 70 % reads, two processes) as real versions of fio printed it.
    const REAL: [(&str, &str); 4] = [
        ("3.25", include_str!("../../tests/data/fio-3.25-mixed.json")),
        ("3.33", include_str!("../../tests/data/fio-3.33-mixed.json")),
        ("3.39", include_str!("../../tests/data/fio-3.39-mixed.json")),
        ("3.41", include_str!("../../tests/data/fio-3.41-mixed.json")),
    ];
    /// Written by hand after the documentation of fio 2 and excerpts that others published.
    const FIO_2: &str = include_str!("../../tests/data/fio-2.16-mixed-by-hand.json");
    /// Real: a job that maps a file on a file system that cannot.
    const REFUSED: &str = include_str!("../../tests/data/fio-3.33-refused.json");

    fn number(value: &serde_json::Value) -> f64 {
        value.as_f64().unwrap()
    }

    fn close(one: f64, other: f64) {
        assert!((one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0), "{one} is not {other}");
    }

    #[test]
    fn every_version_of_fio_3_is_read() {
        for (version, text) in REAL {
            // What is in there, found another way.
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(value["fio version"], format!("fio-{version}"));
            let (read, write) = (&value["jobs"][0]["read"], &value["jobs"][0]["write"]);
            let report = parse(text).unwrap();
            assert_eq!(report.ops as f64, number(&read["total_ios"]) + number(&write["total_ios"]), "{version}");
            close(report.iops, number(&read["iops"]) + number(&write["iops"]));
            close(report.seconds, number(&read["runtime"]).max(number(&write["runtime"])) / 1000.0);
            let kib = |side: &serde_json::Value| number(&side["io_bytes"]) / 1.024 / number(&side["runtime"]);
            close(report.mib_per_s * 1024.0, kib(read) + kib(write));
            let latency = report.latency;
            let mean = |side: &serde_json::Value| number(&side["lat_ns"]["mean"]) * number(&side["total_ios"]);
            close(latency.mean_us, (mean(read) + mean(write)) / 1000.0 / report.ops as f64);
            for (percent, ours) in [
                ("50.000000", latency.p50_us),
                ("90.000000", latency.p90_us),
                ("99.000000", latency.p99_us),
                ("99.900000", latency.p999_us),
            ] {
                let of = |side: &serde_json::Value| number(&side["clat_ns"]["percentile"][percent]) / 1000.0;
                close(ours, of(read).max(of(write)));
                assert!(ours > 0.0, "{version}");
            }
            close(latency.max_us, number(&read["lat_ns"]["max"]).max(number(&write["lat_ns"]["max"])) / 1000.0);
        }
    }

    #[test]
    fn fio_2_counts_kib_and_microseconds() {
        let report = parse(FIO_2).unwrap();
        assert_eq!(report.ops, 1779 + 762);
        close(report.iops, 68.99 + 29.54);
        close(report.mib_per_s * 1024.0, 275.0 + 118.0);
        close(report.seconds, 25.788);
        close(report.latency.mean_us, (14_467.83 * 1779.0 + 21.5 * 762.0) / 2541.0);
        close(report.latency.p50_us, 13_376.0);
        close(report.latency.p999_us, 39_168.0);
        close(report.latency.max_us, 50_213.0);
    }

    #[test]
    fn a_version_that_counts_no_requests_is_read_by_its_rate() {
        let text = r#"{"jobs": [{"read": {"io_bytes": 44920, "bw": 21, "iops": 5, "runtime": 2000}, "write": {}}]}"#;
        let report = parse(text).unwrap();
        assert_eq!((report.ops, report.mib_per_s * 1024.0), (10, 21.0));
    }

    #[test]
    fn text_around_the_document_is_skipped() {
        let noisy = format!("fio: a {{warning}} of {{some}} sort\n{{ not a document\n{}\n\nmore text\n", REAL[0].1);
        assert_eq!(parse(&noisy).unwrap(), parse(REAL[0].1).unwrap());
    }

    #[test]
    fn several_jobs_are_summed_up() {
        let one: serde_json::Value = serde_json::from_str(REAL[3].1).unwrap();
        let mut two = one.clone();
        two["jobs"] = serde_json::json!([one["jobs"][0], one["jobs"][0]]);
        let (one, two) = (parse(REAL[3].1).unwrap(), parse(&two.to_string()).unwrap());
        assert_eq!(two.ops, 2 * one.ops);
        close(two.iops, 2.0 * one.iops);
        close(two.seconds, one.seconds);
        close(two.latency.mean_us, one.latency.mean_us);
    }

    #[test]
    fn percentiles_of_total_latency_are_taken_where_they_were_asked_for() {
        let text = r#"{"jobs": [{"read": {"total_ios": 1, "iops": 1, "runtime": 1000,
            "clat_ns": {"mean": 1, "max": 1}, "lat_ns": {"mean": 2000, "max": 9000, "percentile": {"99.0": 5000}}},
            "write": {}}]}"#;
        let latency = parse(text).unwrap().latency;
        assert_eq!((latency.mean_us, latency.p99_us, latency.p50_us, latency.max_us), (2.0, 5.0, 0.0, 9.0));
    }

    #[test]
    fn a_job_that_failed_is_an_error_with_its_number() {
        let error = parse(REFUSED).unwrap_err();
        assert_eq!(error, Error::Job { number: 19, message: "No such device".into() });
        assert_eq!(error.to_string(), "fio's job failed: No such device");
    }

    #[test]
    fn what_is_no_result_is_no_figure() {
        let idle = r#"{"jobs": [{"read": {"total_ios": 0}, "write": {"total_ios": 0}}]}"#;
        assert_eq!(parse(idle), Err(Error::Nothing));
        assert_eq!(parse(r#"{"jobs": []}"#), Err(Error::Nothing));
        assert_eq!(parse(""), Err(Error::NoDocument(String::new())));
        assert_eq!(parse("x\nfio: bad option\n"), Err(Error::NoDocument(": fio: bad option".into())));
        assert!(matches!(parse("{\"tasks\": 1}"), Err(Error::Form(_))));
        // Cut off, as by a guest that was killed.
        let half = &REAL[0].1[..REAL[0].1.len() / 2];
        assert!(matches!(parse(half), Err(Error::Form(_))));
    }

    #[test]
    fn flushes_and_processor_time_are_read() {
        let report = parse(include_str!("../../tests/data/fio-3.33-randrw.json")).unwrap();
        assert_eq!((report.reads, report.writes, report.ops), (54_364, 23_301, 77_665));
        assert_eq!(report.bytes, 222_674_944 + 95_440_896);
        assert_eq!((report.flushes, report.latency.count), (6127, 77_665));
        assert!(report.flush_latency.p50_us > 0.0, "{:?}", report.flush_latency);
        assert!(report.server.unwrap().user_s > 0.0);
    }
}
