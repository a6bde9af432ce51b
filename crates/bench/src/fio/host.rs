//! fio as a contender: on the raw image, with no VM and no vhost-user between. By io_uring, or, for synchronous writes, by as
//! many processes as requests in flight, each with `pwrite` and `fdatasync`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::job::{self, Options};
use super::output;
use crate::frontend::{Report, Spec};
use crate::stats::{Latency, ratio};

/// What fio shall do besides the load itself.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Whether to go around the page cache (O_DIRECT).
    pub(crate) direct: bool,
    /// Further fio options, as given.
    pub(crate) extra: Vec<String>,
    /// CPUs to run on; anywhere when empty.
    pub(crate) cpus: Vec<usize>,
}

/// The arguments that put `spec` on `image`.
fn arguments(spec: &Spec, image: &Path, host: &Host) -> Vec<String> {
    let mut options = Options::new();
    let mut option = |name: &str, value: String| _ = options.insert(name.to_owned(), value);
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
    option("direct", u8::from(host.direct).to_string());
    option("randseed", spec.seed.to_string());
    // As the frontend: offsets are drawn, not dealt; and the page cache stays as the last run left it.
    option("norandommap", "1".into());
    option("invalidate", "0".into());
    option("offset", spec.offset_bytes.to_string());
    option("size", spec.size_bytes.map_or_else(String::new, |size| size.to_string()));
    if spec.flush_every != 0 {
        option("fdatasync", spec.flush_every.to_string());
    }
    option("number_ios", spec.ops.map_or_else(String::new, |ops| ops.to_string()));
    let cpus: Vec<String> = host.cpus.iter().map(ToString::to_string).collect();
    option("cpus_allowed", cpus.join(","));
    let mut words = vec!["--output-format=json".to_owned()];
    words.extend(job::arguments(&options, &image.to_string_lossy(), (spec.time, spec.ramp)));
    words.extend(host.extra.iter().cloned());
    words
}

/// Runs fio and reads its figures.
pub(crate) fn run(spec: &Spec, image: &Path, host: &Host) -> Result<Report> {
    let output = Command::new("fio").args(arguments(spec, image, host)).output();
    let output = output.context("cannot start fio; is it installed?")?;
    if !output.status.success() {
        bail!("fio failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut report = output::parse(&String::from_utf8_lossy(&output.stdout))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::Rw;
    use std::time::Duration;

    const SAMPLE: &str = include_str!("../../tests/data/fio-3.33-randrw.json");

    fn host() -> Host {
        Host { direct: true, extra: vec!["--hipri".into()], cpus: vec![0, 2] }
    }

    #[test]
    fn synchronous_writers_are_processes() {
        let spec = Spec { rw: Rw::RandWrite, sync: true, depth: 8, queues: 2, ..Spec::default() };
        let words = arguments(&spec, Path::new("/a"), &host());
        for expected in ["--ioengine=psync", "--fdatasync=1", "--numjobs=16"] {
            assert!(words.iter().any(|word| word == expected), "{expected} is missing in {words:?}");
        }
        assert!(!words.iter().any(|word| word.starts_with("--iodepth")));

        let mut report = output::parse(SAMPLE).unwrap();
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
        let words = arguments(&spec, Path::new("/a:b"), &host());
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
