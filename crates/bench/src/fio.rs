//! fio as a contender: on the raw image, with no VM and no vhost-user between. By io_uring, or, for synchronous writes, by as
//! many processes as requests in flight, each with `pwrite` and `fdatasync`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::frontend::{Report, Spec};
use crate::stats::{Latency, ratio};
use guest::usage::Usage;

/// What fio shall do besides the load itself.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Whether to go around the page cache (O_DIRECT).
    pub(crate) direct: bool,
    /// Further fio options, as given.
    pub(crate) extra: Vec<String>,
    /// CPUs to run on; anywhere when empty.
    pub(crate) cpus: Vec<usize>,
}

/// The command line that puts `spec` on `image`.
pub(crate) fn command(spec: &Spec, image: &Path, options: &Options) -> Vec<String> {
    let mut words: Vec<String> =
        ["fio", "--output-format=json", "--name=bench", "--group_reporting"].map(String::from).to_vec();
    let mut option = |name: &str, value: String| words.push(format!("--{name}={value}"));
    // A colon separates files for fio.
    option("filename", image.to_string_lossy().replace(':', "\\:"));
    option("rw", spec.rw.name().into());
    option("rwmixread", spec.mix.to_string());
    option("bs", spec.block_bytes.to_string());
    if spec.sync {
        // A writer that waits is a process that waits. Of a mixed load fio flushes behind each read as well.
        option("ioengine", "psync".into());
        option("fdatasync", "1".into());
        option("numjobs", (u32::from(spec.queues) * u32::from(spec.depth)).to_string());
    } else {
        option("ioengine", "io_uring".into());
        option("iodepth", spec.depth.to_string());
        option("iodepth_batch", spec.batch.to_string());
        option("numjobs", spec.queues.to_string());
    }
    option("direct", u8::from(options.direct).to_string());
    option("randseed", spec.seed.to_string());
    // As the frontend: offsets are drawn, not dealt; and the page cache stays as the last run left it.
    option("norandommap", "1".into());
    option("invalidate", "0".into());
    option("allow_file_create", "0".into());
    option("offset", spec.offset_bytes.to_string());
    option("ramp_time", format!("{}ms", spec.ramp.as_millis()));
    if let Some(size) = spec.size_bytes {
        option("size", size.to_string());
    }
    if spec.flush_every != 0 {
        option("fdatasync", spec.flush_every.to_string());
    }
    if let Some(ops) = spec.ops {
        option("number_ios", ops.to_string());
    }
    if let Some(time) = spec.time {
        option("runtime", format!("{}ms", time.as_millis()));
        option("time_based", "1".into());
    }
    if !options.cpus.is_empty() {
        let cpus: Vec<String> = options.cpus.iter().map(ToString::to_string).collect();
        option("cpus_allowed", cpus.join(","));
    }
    words.extend(options.extra.iter().cloned());
    words
}

/// Runs fio and reads its figures.
pub(crate) fn run(spec: &Spec, image: &Path, options: &Options) -> Result<Report> {
    let words = command(spec, image, options);
    let output = Command::new(&words[0]).args(&words[1..]).output().context("cannot start fio; is it installed?")?;
    if !output.status.success() {
        bail!("fio failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut report = parse(&String::from_utf8_lossy(&output.stdout))?;
    if spec.sync {
        report.latency = with_flush(&report);
    }
    Ok(report)
}

/// Latency of synchronous writes, of which fio times the write and the flush by themselves. The mean is exact where nothing is
/// read; percentiles of sums cannot be had from those of the parts: the flush's stand in, which is nearly all of it.
fn with_flush(report: &Report) -> Latency {
    let (whole, flush) = (&report.latency, &report.flush_latency);
    let share = ratio(flush.count as f64, whole.count as f64).unwrap_or(0.0);
    Latency { count: whole.count, mean_us: whole.mean_us + flush.mean_us * share, ..*flush }
}

#[derive(Debug, Deserialize)]
struct Document {
    jobs: Vec<Job>,
}

/// The parts of a job that are used. Units as in fio's documentation: run times in ms, latencies in ns, CPU in percent.
#[derive(Debug, Deserialize)]
struct Job {
    error: i64,
    read: Side,
    write: Side,
    #[serde(default)]
    sync: Flushes,
    job_runtime: f64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
}

#[derive(Debug, Deserialize)]
struct Side {
    io_bytes: u64,
    total_ios: u64,
    runtime: f64,
    iops: f64,
    clat_ns: Times,
    lat_ns: Times,
}

#[derive(Debug, Default, Deserialize)]
struct Flushes {
    #[serde(default)]
    lat_ns: Times,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Times {
    mean: f64,
    max: f64,
    #[serde(rename = "N")]
    count: u64,
    percentile: Percentiles,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50: f64,
    #[serde(rename = "90.000000")]
    p90: f64,
    #[serde(rename = "99.000000")]
    p99: f64,
    #[serde(rename = "99.900000")]
    p999: f64,
}

/// Reads fio's JSON (with warnings before it, as fio prints them there).
fn parse(text: &str) -> Result<Report> {
    let start = text.find('{').context("fio printed no JSON")?;
    let document: Document = serde_json::from_str(&text[start..]).context("fio printed JSON of an unknown shape")?;
    let job = document.jobs.first().context("fio reported no job")?;
    if job.error != 0 {
        bail!("fio's job failed: {}", std::io::Error::from_raw_os_error(job.error as i32));
    }
    Ok(job.report())
}

impl Job {
    fn report(&self) -> Report {
        let ops = self.read.total_ios + self.write.total_ios;
        let bytes = self.read.io_bytes + self.write.io_bytes;
        let seconds = self.read.runtime.max(self.write.runtime) / 1000.0;
        let cpu_s = |percent: f64| percent / 100.0 * self.job_runtime / 1000.0;
        Report {
            seconds,
            ops,
            reads: self.read.total_ios,
            writes: self.write.total_ios,
            // fio 3.33 leaves the `total_ios` of flushes at 0.
            flushes: self.sync.lat_ns.count,
            bytes,
            iops: self.read.iops + self.write.iops,
            mib_per_s: ratio(bytes as f64 / f64::from(1 << 20), seconds).unwrap_or(0.0),
            latency: self.latency(),
            flush_latency: self.sync.lat_ns.latency(&self.sync.lat_ns.percentile),
            errors: 0,
            mismatches: 0,
            faults: Vec::new(),
            gap_us_max: Vec::new(),
            server: Some(Usage {
                user_s: cpu_s(self.usr_cpu),
                system_s: cpu_s(self.sys_cpu),
                voluntary_switches: self.ctx,
                involuntary_switches: 0,
            }),
            load_cpu_s: 0.0,
        }
    }

    /// Of both sides together: the mean is exact; percentiles are the worse side's, as fio keeps no common ones.
    fn latency(&self) -> Latency {
        let (read, write) = (self.read.latency(), self.write.latency());
        let count = read.count + write.count;
        let weighted = read.mean_us * read.count as f64 + write.mean_us * write.count as f64;
        Latency {
            count,
            mean_us: ratio(weighted, count as f64).unwrap_or(0.0),
            p50_us: read.p50_us.max(write.p50_us),
            p90_us: read.p90_us.max(write.p90_us),
            p99_us: read.p99_us.max(write.p99_us),
            p999_us: read.p999_us.max(write.p999_us),
            max_us: read.max_us.max(write.max_us),
        }
    }
}

impl Side {
    /// Total latency; its percentiles are those of completion, the only ones fio gives unasked.
    fn latency(&self) -> Latency {
        self.lat_ns.latency(&self.clat_ns.percentile)
    }
}

impl Times {
    fn latency(&self, percentile: &Percentiles) -> Latency {
        Latency {
            count: self.count,
            mean_us: self.mean / 1000.0,
            p50_us: percentile.p50 / 1000.0,
            p90_us: percentile.p90 / 1000.0,
            p99_us: percentile.p99 / 1000.0,
            p999_us: percentile.p999 / 1000.0,
            max_us: self.max / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::Rw;
    use std::time::Duration;

    const SAMPLE: &str = include_str!("../tests/data/fio-3.33-randrw.json");

    fn options() -> Options {
        Options { direct: true, extra: vec!["--hipri".into()], cpus: vec![0, 2] }
    }

    #[test]
    fn figures_of_both_sides_are_joined() {
        let report = parse(SAMPLE).unwrap();
        assert_eq!((report.reads, report.writes, report.ops), (54_364, 23_301, 77_665));
        assert_eq!(report.bytes, 222_674_944 + 95_440_896);
        assert_eq!(report.flushes, 6127);
        assert!((report.iops - 258_023.255_7).abs() < 0.1, "{}", report.iops);
        assert!((report.seconds - 0.301).abs() < 1e-9);
        let latency = report.latency;
        assert_eq!(latency.count, 77_665);
        let expected = (29_151.481_716 * 54_364.0 + 26_943.838_290 * 23_301.0) / 77_665.0 / 1000.0;
        assert!((latency.mean_us - expected).abs() < 1e-6, "{latency:?}");
        assert!(latency.p50_us > 0.0 && latency.p50_us <= latency.p99_us && latency.p99_us <= latency.p999_us);
        assert!(report.server.unwrap().user_s > 0.0);
    }

    #[test]
    fn warnings_before_the_document_are_skipped() {
        let noisy = format!("fio: a warning\n{SAMPLE}");
        assert_eq!(parse(&noisy).unwrap().ops, 77_665);
        assert!(parse("fio: nothing").is_err());
        assert!(parse("{\"jobs\": []}").is_err());
    }

    #[test]
    fn a_failed_job_is_an_error() {
        let failed = SAMPLE.replacen("\"error\" : 0", "\"error\" : 5", 1);
        assert!(parse(&failed).unwrap_err().to_string().contains("Input/output error"));
    }

    #[test]
    fn synchronous_writers_are_processes() {
        let spec = Spec { rw: Rw::RandWrite, sync: true, depth: 8, queues: 2, ..Spec::default() };
        let words = command(&spec, Path::new("/a"), &options());
        for expected in ["--ioengine=psync", "--fdatasync=1", "--numjobs=16"] {
            assert!(words.iter().any(|word| word == expected), "{expected} is missing in {words:?}");
        }
        assert!(!words.iter().any(|word| word.starts_with("--iodepth")));

        let mut report = parse(SAMPLE).unwrap();
        let (write_us, flush_us) = (report.latency.mean_us, report.flush_latency.mean_us);
        report.flush_latency.count = report.latency.count;
        let latency = with_flush(&report);
        assert!((latency.mean_us - write_us - flush_us).abs() < 1e-9, "{latency:?}");
        assert_eq!(latency.p99_us, report.flush_latency.p99_us);
    }

    #[test]
    fn the_command_line_carries_the_load() {
        let spec = Spec {
            rw: Rw::RandRw,
            time: Some(Duration::from_millis(1500)),
            size_bytes: Some(8192),
            flush_every: 3,
            ..Spec::default()
        };
        let words = command(&spec, Path::new("/a:b"), &options());
        for expected in [
            "--filename=/a\\:b",
            "--rw=randrw",
            "--rwmixread=70",
            "--ioengine=io_uring",
            "--iodepth=128",
            "--direct=1",
            "--runtime=1500ms",
            "--size=8192",
            "--fdatasync=3",
            "--cpus_allowed=0,2",
            "--hipri",
        ] {
            assert!(words.iter().any(|word| word == expected), "{expected} is missing in {words:?}");
        }
        assert!(!words.iter().any(|word| word.starts_with("--number_ios")));
    }
}
