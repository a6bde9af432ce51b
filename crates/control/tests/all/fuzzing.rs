//! The fuzz targets' bodies on their seeds and on pseudo-random input.

#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use crate::common::Fake;
use std::collections::BTreeSet;

/// A request in the layout of [`control::fuzzing::api`]: method, path, body.
fn request(method: u8, path: &str, body: &str) -> Vec<u8> {
    let mut bytes = vec![method, path.len() as u8];
    bytes.extend(path.bytes());
    bytes.extend(body.bytes());
    bytes
}

/// Numbers of the methods in that layout.
const GET: u8 = 0;
const POST: u8 = 1;
const PUT: u8 = 2;
const PATCH: u8 = 3;
const DELETE: u8 = 4;

fn api_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let add = r#"{"name":"new","socket":"/run/new.sock","storage":{"kind":"null","size":"1G"},"queues":2}"#;
    let directory = r#"{"name":"dir","kind":"dir","socket":"/run/d.sock","directory":{"path":"/srv","cache":"auto"}}"#;
    let raw = |text: &str| [&[0x80][..], text.as_bytes()].concat();
    vec![
        ("info", request(GET, "/v1/info", "")),
        ("exports", request(GET, "/v1/exports", "")),
        ("export", request(GET, "/v1/exports/root", "")),
        ("escaped_name", request(GET, "/v1/exports/r%6fot%2F..%00", "")),
        ("add_disk", request(POST, "/v1/exports", add)),
        ("add_directory", request(POST, "/v1/exports", directory)),
        ("add_nothing", request(POST, "/v1/exports", "")),
        ("change", request(PATCH, "/v1/exports/root", r#"{"poll":"adaptive=20","execution":"pool=4"}"#)),
        ("remove", request(DELETE, "/v1/exports/data?force=true", "")),
        ("resize", request(PUT, "/v1/exports/root/capacity", r#"{"capacity_bytes":"20G"}"#)),
        ("policy", request(GET, "/v1/policy", "")),
        ("policy_change", request(PATCH, "/v1/policy", r#"{"favour":"latency"}"#)),
        ("policy_record", request(GET, "/v1/policy/record", "")),
        ("disks", request(GET, "/v1/disks", "")),
        ("disk", request(GET, "/v1/disks/root", "")),
        ("disk_add", request(POST, "/v1/disks", r#"{"name":"base","storage":{"kind":"null","size":"1G"}}"#)),
        ("disk_resize", request(PUT, "/v1/disks/root/capacity", r#"{"capacity_bytes":"20G"}"#)),
        ("disk_break_reservations", request(DELETE, "/v1/disks/root/reservations", "")),
        ("disk_remove", request(DELETE, "/v1/disks/base", "")),
        ("bitmaps", request(GET, "/v1/disks/root/bitmaps", "")),
        ("bitmap_add", request(POST, "/v1/disks/root/bitmaps", r#"{"name":"daily","granularity":"64K"}"#)),
        ("bitmap_remove", request(DELETE, "/v1/disks/root/bitmaps/a%2Fb", "")),
        ("use_disk", request(POST, "/v1/exports", r#"{"name":"new","socket":"/run/new.sock","disk":"root"}"#)),
        ("snapshot", request(POST, "/v1/snapshots", r#"{"disks":[{"disk":"root","to":"/b.qcow2"}]}"#)),
        ("jobs", request(GET, "/v1/jobs", "")),
        ("job", request(GET, "/v1/jobs/1", "")),
        (
            "job_backup",
            request(
                POST,
                "/v1/jobs",
                r#"{"kind":"backup","disks":[{"disk":"root","target":"/b.qcow2"}],"limit":"1M"}"#,
            ),
        ),
        (
            "job_incremental",
            request(
                POST,
                "/v1/jobs",
                r#"{"kind":"backup","disks":[{"disk":"root","target":"/1","bitmap":"daily","backing":"/0"}]}"#,
            ),
        ),
        ("job_mirror", request(POST, "/v1/jobs", r#"{"kind":"mirror","disk":"data","target":"/m","format":"raw"}"#)),
        ("job_change", request(PATCH, "/v1/jobs/1", r#"{"limit":null}"#)),
        ("job_complete", request(POST, "/v1/jobs/1/complete", "")),
        ("job_remove", request(DELETE, "/v1/jobs/1", "")),
        ("workers", request(GET, "/v1/workers", "")),
        ("worker_new", request(POST, "/v1/workers", r#"{"cpus":"0-3,7","poll":"off"}"#)),
        ("worker_free", request(DELETE, "/v1/workers/3", "")),
        ("ring", request(GET, "/v1/exports/root/rings/1", "")),
        ("attach", request(PUT, "/v1/exports/root/rings/0/worker", r#"{"worker":1}"#)),
        ("attach_beyond", request(PUT, "/v1/exports/root/rings/65536/worker", r#"{"worker":-1}"#)),
        ("metrics", request(GET, "/metrics", "")),
        ("openapi", request(GET, "/openapi.json", "")),
        ("no_method", request(DELETE, "/v1/info", "")),
        ("no_route", request(5, "/", "")),
        ("huge_body", request(POST | 0x40, "/v1/exports", "")),
        ("deep_body", request(POST, "/v1/exports", &"[".repeat(200))),
        ("raw", raw("GET /v1/info HTTP/1.1\r\nhost: x\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n")),
        ("raw_chunked", raw("POST /v1/exports HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")),
        ("raw_garbage", raw("\u{0}\u{1}GET")),
        ("raw_half", raw("POST /v1/exports HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")),
    ]
}

fn text_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let disk = "name = 'a'\nsocket = '/run/a.sock'\nqueues = 4\nserial = 'x'\nblock_size = 4096\nworkers = 'per-queue'\n\
                storage = { kind = 'file', path = '/a.img', direct = true, execution = 'pool=2' }\n";
    let model = "name = 'b'\nsocket = '/run/b.sock'\nstorage = { kind = 'sim', size = '1G', read_latency = '100us', \
                 distribution = 'normal', latency_spread = 0.5, channels = 4, error_rate = 0.1 }\n";
    let directory = "name = 'c'\nkind = 'dir'\nsocket = '/run/c.sock'\n[directory]\npath = '/srv'\ncache = 'always'\n\
                     attr_timeout = '1s'\nreaddirplus = 'off'\n";
    let stream = "name = 'e'\nkind = 'dir'\nlisten = 'unix:/run/e.sock'\nqueues = 9\n[directory]\npath = '/srv'\n\
                  protocol = '9p'\nsecurity_model = 'mapped-xattr'\nfmode = '0640'\nmultidevs = 'warn'\nmsize = '64K'\n";
    let record = r#"{"version":1,"program":"0.1.0","favour":"balance","workers":[{"id":0,"stretches":[{"before":{"favour":"balance","chosen":"learned","state":{"trying":{"costs":[[],[],[]],"given_up":[false,false,false],"turn":"learned","began":null}},"rest_ns":2000000000,"usual_ns":null,"shifted":0,"rests_until_ns":0,"tried_ns":0,"calm_ns":500000000,"last":null,"judged":null,"next_ns":0},"samples":[{"at_ns":1000000,"requests":1,"waits":1,"cpu_ns":9},{"at_ns":9000000,"requests":99,"waits":99,"cpu_ns":999}],"verdicts":[]}]}]}"#;
    [
        ("size", "10G"),
        ("size_long", "2MiB"),
        ("cpus", "0-3,7"),
        ("execution", "pool=4"),
        ("mode", "0660"),
        ("placement", "per-queue"),
        ("poll", "adaptive=50"),
        ("span", "1500us"),
        ("disk", disk),
        ("model", model),
        ("directory", directory),
        ("stream", stream),
        ("policy_record", record),
        ("use_disk", "name = 'f'\nsocket = '/run/f.sock'\ndisk = 'base'\n"),
        ("new_disk", "name = 'base'\nstorage = { kind = 'file', path = '/a.img', read_only = true }\n"),
        ("new_snapshot", r#"{"disks":[{"disk":"a","to":"/a.old"},{"disk":"b","to":"/b.old"}]}"#),
        ("new_backup", r#"{"kind":"backup","disks":[{"disk":"a","target":"/a.raw","format":"raw"}],"limit":"50M"}"#),
        (
            "new_incremental",
            r#"{"kind":"backup","disks":[{"disk":"a","target":"/a.1","bitmap":"daily","backing":"/a.0"}]}"#,
        ),
        ("new_bitmap", r#"{"name":"daily","granularity":"64K"}"#),
        ("new_mirror", r#"{"kind":"mirror","disk":"a","target":"/a.qcow2","force":true}"#),
        ("new_stream", r#"{"kind":"stream","disk":"a","limit":"1M"}"#),
        ("new_commit", r#"{"kind":"commit","disk":"a"}"#),
        ("new_pull", r#"{"kind":"pull","disks":[{"disk":"a","listen":"unix:/a.nbd","bitmap":"daily"}],"scratch":"/tmp"}"#),
        ("new_luks", "name = 'l'\nstorage = { kind = 'qcow2', path = '/a', luks = { key_file = '/k', allow_discards = true } }\n"),
        ("job_settings", r#"{"limit":"none"}"#),
        ("listen", "tcp:[::1]:5640"),
        ("listen_vsock", "vsock:2:5640"),
        (
            "json",
            r#"{"name":"d","socket":"/d","storage":{"kind":"memory","size":4096,"hugepages":false},"poll":"off"}"#,
        ),
    ]
    .map(|(name, text)| (name, text.as_bytes().to_vec()))
    .into()
}

/// Plays an input, unless it may reach the bug that the fake stands for.
fn play_api(data: &[u8]) -> Option<u16> {
    if data.windows(3).any(|bytes| bytes == b"sim") {
        return None;
    }
    let answer = control::fuzzing::api(Fake::with_content(), data);
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

#[test]
fn api_seeds_hold() {
    let mut answers = BTreeSet::new();
    seeds::hold("control_api", &api_seeds(), |seed| answers.extend(play_api(seed)));
    for status in [200, 201, 204, 400, 404, 405, 413, 422] {
        assert!(answers.contains(&status), "no seed is answered with {status}: {answers:?}");
    }
    assert!(!answers.contains(&500), "{answers:?}");
}

#[test]
fn text_seeds_hold() {
    let mut understood = 0;
    seeds::hold("control_text", &text_seeds(), |seed| understood += usize::from(control::fuzzing::text(seed)));
    assert!(understood >= text_seeds().len(), "only {understood} seeds are understood");
}

/// Seeds with some bytes changed: the same on every machine.
#[test]
fn seeds_that_were_changed_hold() {
    let mut numbers = seeds::Numbers::new();
    let mut next = |bound: usize| numbers.below(bound);
    let (api, text) = (api_seeds(), text_seeds());
    let mut answered = 0;
    for _ in 0..2000 {
        let change = |seed: &[u8], next: &mut dyn FnMut(usize) -> usize| {
            let mut seed = seed.to_vec();
            for _ in 0..=next(4) {
                let at = next(seed.len());
                match next(3) {
                    0 => seed[at] = next(256) as u8,
                    1 => drop(seed.remove(at)),
                    _ => seed.insert(at, b"\"{}[]/%:,0-"[next(11)]),
                }
                if seed.is_empty() {
                    break;
                }
            }
            seed
        };
        let (_, seed) = &api[next(api.len())];
        answered += usize::from(play_api(&change(seed, &mut next)).is_some());
        let (_, seed) = &text[next(text.len())];
        control::fuzzing::text(&change(seed, &mut next));
    }
    assert!(answered >= 1000, "only {answered} requests were answered");
}
