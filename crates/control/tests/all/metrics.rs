//! The text of `/metrics`, read back by a parser.

use crate::common::{Served, describe};
use control::Daemon;
use control::client::Client;
use prometheus_parse::{Scrape, Value};
use std::collections::BTreeMap;

pub(crate) fn text() -> String {
    let served = Served::new();
    let home = "name = 'home'\nkind = 'dir'\nsocket = '/run/home.sock'\nqueues = 1\ndirectory = { path = '/srv' }";
    served.fake.add_export(toml::from_str(home).unwrap()).unwrap();
    let over_9p = "name = 'p9'\nkind = 'dir'\nlisten = 'tcp:0'\ndirectory = { path = '/srv', protocol = '9p' }";
    served.fake.add_export(toml::from_str(over_9p).unwrap()).unwrap();
    served.fake.add_export(describe("vol", "kind = 'volume', path = '/v', sync = 'always'", 1)).unwrap();
    served.fake.add_export(describe("near", "kind = 'rbd', image = 'near'", 1)).unwrap();
    served.fake.add_export(describe("lost", "kind = 'rbd', image = 'lost', on_lost = 'wait'", 1)).unwrap();
    for job in [
        r#"{"kind": "backup", "disks": [{"disk": "root", "target": "/b"}, {"disk": "vol", "target": "/v"}]}"#,
        r#"{"kind": "mirror", "disk": "data", "target": "/m"}"#,
    ] {
        served.fake.job_add(serde_json::from_str(job).unwrap()).unwrap();
    }
    served.fake.job(1).unwrap();
    Client::new(served.socket()).unwrap().text("/metrics").unwrap()
}

pub(crate) fn scrape(text: &str) -> Scrape {
    Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

/// The sample with this name and these labels.
fn value(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let matches = |sample: &&prometheus_parse::Sample| {
        let found: BTreeMap<_, _> = sample.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        sample.metric == name && found == labels
    };
    let found: Vec<_> = scrape.samples.iter().filter(matches).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0].value.clone()
}

fn number(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    match value(scrape, name, labels) {
        Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => number,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn counters_of_rings_and_workers_are_there() {
    let scrape = scrape(&text());
    let ring = [("export", "root"), ("ring", "0")];
    let kind = |kind| [ring[0], ring[1], ("kind", kind)];
    assert_eq!(number(&scrape, "vringd_ring_requests_total", &kind("write")), 500.0);
    assert_eq!(number(&scrape, "vringd_ring_requests_total", &kind("get_id")), 1.0);
    assert_eq!(number(&scrape, "vringd_ring_read_bytes_total", &ring), 4_096_000.0);
    assert_eq!(number(&scrape, "vringd_ring_in_flight", &ring), 7.0);
    assert_eq!(number(&scrape, "vringd_ring_notifications_suppressed_total", &ring), 1420.0);
    assert_eq!(number(&scrape, "vringd_ring_broken", &[("export", "data"), ("ring", "0")]), 1.0);
    let worker = [("worker", "1"), ("name", "vringd-w1")];
    assert_eq!(number(&scrape, "vringd_worker_cpu_seconds_total", &worker), 1.25);
    assert_eq!(number(&scrape, "vringd_worker_io_uring_enters_total", &worker), 5100.0);
    assert_eq!(number(&scrape, "vringd_worker_poll_window_seconds", &worker), 12e-6);
    assert_eq!(number(&scrape, "vringd_export_capacity_bytes", &[("export", "root")]), (10u64 << 30) as f64);
    let home = [("export", "home")];
    assert_eq!(number(&scrape, "vringd_directory_nodes", &home), 1200.0);
    assert_eq!(number(&scrape, "vringd_directory_nodes_max", &home), f64::from(1 << 24));
    assert_eq!(number(&scrape, "vringd_directory_descriptors", &home), 300.0);
    assert_eq!(number(&scrape, "vringd_directory_open_files", &home), 12.0);
    assert_eq!(number(&scrape, "vringd_build_info", &[("version", "0.1.0")]), 1.0);
    for (disk, lost) in [("near", 0.0), ("lost", 1.0)] {
        assert_eq!(number(&scrape, "vringd_disk_lost", &[("disk", disk)]), lost, "{disk}");
        assert_eq!(number(&scrape, "vringd_disk_opening", &[("disk", disk)]), 0.0, "{disk}");
    }
}

#[test]
fn directories_over_9p_show_their_clients() {
    let scrape = scrape(&text());
    let p9 = [("export", "p9")];
    assert_eq!(number(&scrape, "vringd_p9_msize_bytes", &p9), 512_000.0);
    assert_eq!(number(&scrape, "vringd_p9_msize_max_bytes", &p9), f64::from(1 << 20));
    assert_eq!(number(&scrape, "vringd_p9_fids", &p9), 130.0);
    assert_eq!(number(&scrape, "vringd_p9_connections", &p9), 2.0);
    assert_eq!(number(&scrape, "vringd_directory_nodes", &p9), 1200.0);
    let others = scrape.samples.iter().filter(|sample| sample.labels.get("export") == Some("home"));
    assert!(others.into_iter().all(|sample| !sample.metric.starts_with("vringd_p9_")));
}

#[test]
fn volumes_show_their_log() {
    let scrape = scrape(&text());
    let vol = [("export", "vol")];
    assert_eq!(number(&scrape, "vringd_volume_commits_total", &vol), 400.0);
    assert_eq!(number(&scrape, "vringd_volume_committed_requests_total", &vol), 3000.0);
    assert_eq!(number(&scrape, "vringd_volume_committed_bytes_total", &vol), 14_745_600.0);
    assert_eq!(number(&scrape, "vringd_volume_company_wait_seconds_count", &vol), 50.0);
    assert_eq!(number(&scrape, "vringd_volume_log_bytes", &vol), f64::from(64 << 20));
    assert_eq!(number(&scrape, "vringd_volume_log_used_bytes", &vol), f64::from(16 << 20));
    assert_eq!(number(&scrape, "vringd_volume_dirty_bytes", &vol), f64::from(3 << 20));
    assert_eq!(number(&scrape, "vringd_volume_written_back_bytes_total", &vol), f64::from(1 << 30));
    assert_eq!(number(&scrape, "vringd_volume_parked", &vol), 2.0);
    for (mode, on) in [("standard", 0.0), ("always", 1.0), ("disabled", 0.0)] {
        assert_eq!(number(&scrape, "vringd_volume_sync", &[("export", "vol"), ("mode", mode)]), on, "{mode}");
    }
    assert_eq!(number(&scrape, "vringd_volume_commit_latency_seconds_count", &vol), 400.0);
    assert_eq!(number(&scrape, "vringd_volume_flush_latency_seconds_count", &vol), 3000.0);
    // Disks without a log have no such series, not series of zeroes.
    assert!(
        !scrape
            .samples
            .iter()
            .any(|sample| sample.metric.contains("_volume_") && sample.labels.get("export") == Some("root"))
    );
}

#[test]
fn jobs_show_how_far_they_are() {
    let scrape = scrape(&text());
    let root = [("id", "1"), ("kind", "backup"), ("disk", "root")];
    assert_eq!(number(&scrape, "vringd_job_done_bytes", &root), (5u64 << 30) as f64);
    assert_eq!(number(&scrape, "vringd_job_total_bytes", &root), (10u64 << 30) as f64);
    let vol = [("id", "1"), ("kind", "backup"), ("disk", "vol")];
    assert_eq!(number(&scrape, "vringd_job_total_bytes", &vol), (20u64 << 30) as f64);
    let data = [("id", "2"), ("kind", "mirror"), ("disk", "data")];
    assert_eq!(number(&scrape, "vringd_job_dirty_bytes", &data), f64::from(3 << 20));
    for (state, on) in [("running", 1.0), ("ready", 0.0), ("failed", 0.0)] {
        let labels = [("id", "2"), ("kind", "mirror"), ("state", state)];
        assert_eq!(number(&scrape, "vringd_job_state", &labels), on, "{state}");
    }
    // Only a mirror has changes to catch up with.
    assert_eq!(scrape.samples.iter().filter(|sample| sample.metric == "vringd_job_dirty_bytes").count(), 1);
}

#[test]
fn latencies_are_histograms_in_seconds() {
    let scrape = scrape(&text());
    let labels = [("export", "root"), ("ring", "0")];
    let Value::Histogram(buckets) = value(&scrape, "vringd_ring_latency_served_seconds", &labels) else {
        panic!("the served latency is no histogram");
    };
    let counts: Vec<_> = buckets.iter().map(|bucket| (bucket.less_than, bucket.count)).collect();
    assert_eq!(counts.len(), 23);
    assert!(counts.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{counts:?}");
    assert_eq!((counts[4], counts[5], counts[7]), ((20e-6, 0.0), (50e-6, 1400.0), (200e-6, 1504.0)));
    assert_eq!(counts[22], (f64::INFINITY, 1504.0));
    assert_eq!(number(&scrape, "vringd_ring_latency_served_seconds_count", &labels), 1504.0);
    assert!((number(&scrape, "vringd_ring_latency_served_seconds_sum", &labels) - 1504.0 * 40e-6).abs() < 1e-9);
}

#[test]
fn every_figure_is_explained_once() {
    let text = text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let names = |keyword: &str| -> Vec<&str> {
        let prefix = format!("# {keyword} ");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split(' ').next()).collect()
    };
    let (help, kinds, units) = (names("HELP"), names("TYPE"), names("UNIT"));
    assert_eq!(help, kinds);
    assert!(help.len() > 30, "{help:?}");
    for name in &help {
        assert_eq!(help.iter().filter(|other| *other == name).count(), 1, "{name}");
        assert_eq!(units.contains(name), name.ends_with("_seconds") || name.ends_with("_bytes"), "{name}");
    }
}
