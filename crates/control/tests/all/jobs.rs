//! Jobs and snapshots, through the API and on the command line.

use crate::common::{Served, ctl};
use crate::ctl::prints;
use control::client::{Client, ClientError};
use control::ctl::{Args, Command, JobArgs, JobCommand};
use control::model::{CopyFormat, Disk, Job, JobKind, JobState};
use hyper::Method;
use serde_json::{Value, json};
use std::path::Path;

/// A daemon with the disks `db` and `log`, qcow2 images, beside those of its exports.
pub(crate) fn served() -> Served {
    let served = Served::new();
    for name in ["db", "log"] {
        let (status, text) = ctl(&served, &format!("disk add {name} --qcow2 /images/{name}.qcow2"));
        assert_eq!(status, 0, "{text}");
    }
    served
}

pub(crate) type Refusal = (u16, String, Option<String>);

pub(crate) fn refused(client: &Client, method: Method, target: &str, body: &Value) -> Refusal {
    match client.send::<Value>(method, target, body) {
        Err(ClientError::Refused { status, code, field, message }) => {
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            (status, code, field)
        }
        other => panic!("{target} {body} must be refused: {other:?}"),
    }
}

pub(crate) fn code(status: u16, code: &str) -> Refusal {
    (status, code.to_owned(), None)
}

pub(crate) fn field(name: &str) -> Refusal {
    (422, "invalid-field".to_owned(), Some(name.to_owned()))
}

#[test]
fn a_backup_lives_from_post_to_delete() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    let copy = |disk: &str| json!({"disk": disk, "target": format!("/b/{disk}.qcow2")});
    let new = json!({"kind": "backup", "disks": [copy("db"), copy("log")], "limit": "50M"});
    let job: Job = client.send(Method::POST, "/v1/jobs", &new).unwrap();
    assert_eq!((job.id, job.state, job.limit_bytes_per_second), (1, JobState::Running, Some(50 << 20)));
    assert_eq!((job.disks.len(), job.total_bytes, job.disks[1].format), (2, 40 << 30, CopyFormat::Qcow2));
    assert_eq!(client.get::<Vec<Job>>("/v1/jobs").unwrap(), [job]);
    let half: Value = client.get("/v1/jobs/1").unwrap();
    assert_eq!(
        (&half["state"], &half["kind"], &half["done_bytes"]),
        (&json!("running"), &json!("backup"), &json!(20u64 << 30))
    );
    assert_eq!((half.get("error"), half.get("ended"), half["disks"][0].get("dirty_bytes")), (None, None, None));

    let patch = |body: &Value| client.send::<Job>(Method::PATCH, "/v1/jobs/1", body).unwrap().limit_bytes_per_second;
    assert_eq!(patch(&json!({"limit": "1M"})), Some(1 << 20));
    assert_eq!((patch(&json!({})), patch(&json!({"limit": null}))), (Some(1 << 20), None));
    assert_eq!((patch(&json!({"limit": 8192})), patch(&json!({"limit": "none"}))), (Some(8192), None));
    let complete = "/v1/jobs/1/complete";
    assert_eq!(refused(&client, Method::POST, complete, &Value::Null), code(409, "unsupported"));

    assert_eq!(client.get::<Job>("/v1/jobs/1").unwrap().state, JobState::Done);
    assert_eq!(refused(&client, Method::PATCH, "/v1/jobs/1", &json!({"limit": "1M"})), code(409, "job-in-state"));
    client.order(Method::DELETE, "/v1/jobs/1").unwrap();
    for (method, target) in [(Method::GET, "/v1/jobs/1"), (Method::DELETE, "/v1/jobs/1"), (Method::POST, complete)] {
        assert_eq!(refused(&client, method, target, &Value::Null), code(404, "no-such-job"));
    }
    assert_eq!(refused(&client, Method::PATCH, "/v1/jobs/1", &json!({})), code(404, "no-such-job"));
    assert_eq!(refused(&client, Method::GET, "/v1/jobs/one", &Value::Null), code(400, "bad-request"));
}

#[test]
fn a_mirror_is_completed_when_it_is_ready() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    let new = json!({"kind": "mirror", "disk": "db", "target": "/m.raw", "format": "raw", "force": true});
    let job: Job = client.send(Method::POST, "/v1/jobs", &new).unwrap();
    assert_eq!((job.disks[0].format, job.disks[0].dirty_bytes), (CopyFormat::Raw, Some(3 << 20)));
    let complete = |client: &Client| client.post::<Job>("/v1/jobs/1/complete");
    let early = complete(&client).unwrap_err().to_string();
    assert_eq!(early, "job 1 is running, not ready: wait until everything is copied (job-in-state)");
    let look = || client.get::<Job>("/v1/jobs/1").unwrap().state;
    assert_eq!((look(), look(), look()), (JobState::Running, JobState::Ready, JobState::Ready));
    assert_eq!(complete(&client).unwrap().state, JobState::Completing);
    let late = client.order(Method::DELETE, "/v1/jobs/1").unwrap_err().to_string();
    assert_eq!(
        late,
        "job 1 is completing, not running: its disk is about to change, wait until it is done (job-in-state)"
    );
    assert_eq!(look(), JobState::Done);

    let second: Job = client.send(Method::POST, "/v1/jobs", &new).unwrap();
    client.order(Method::DELETE, &format!("/v1/jobs/{}", second.id)).unwrap();
    let all: Vec<Job> = client.get("/v1/jobs").unwrap();
    assert_eq!(all.iter().map(|job| job.state).collect::<Vec<_>>(), [JobState::Done, JobState::Cancelled]);
}

#[test]
fn a_bad_field_is_named() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    let job = |body: Value| refused(&client, Method::POST, "/v1/jobs", &body);
    let backup = |disks: Value| job(json!({"kind": "backup", "disks": disks}));
    assert_eq!(job(json!({})), field("kind"));
    assert_eq!(job(json!({"kind": "rebase"})), field("kind"));
    assert_eq!(job(json!({"kind": "commit"})), field("disk"));
    assert_eq!(job(json!({"kind": "backup"})), field("disks"));
    assert_eq!(backup(json!([])), field("disks"));
    assert_eq!(backup(json!([{"disk": "db"}])), field("disks[0].target"));
    assert_eq!(backup(json!([{"disk": "db", "target": "db.qcow2"}])), field("disks[0].target"));
    assert_eq!(backup(json!([{"disk": "", "target": "/db"}])), field("disks[0].disk"));
    assert_eq!(backup(json!([{"disk": "db", "target": "/db", "format": "vmdk"}])), field("disks[0].format"));
    assert_eq!(backup(json!([{"disk": "db", "target": "/db", "colour": 1}])), field("disks[0].colour"));
    assert_eq!(backup(json!([{"disk": "db", "target": "/a"}, {"disk": "db", "target": "/b"}])), field("disks[1].disk"));
    assert_eq!(
        backup(json!([{"disk": "db", "target": "/a"}, {"disk": "log", "target": "/a"}])),
        field("disks[1].target")
    );
    assert_eq!(backup(json!([{"disk": "db", "target": "/there.qcow2"}])), field("disks[0].target"));
    assert_eq!(backup(json!([{"disk": "none", "target": "/a"}])), code(404, "no-such-disk"));
    let mirror = |key: &str, value: Value| {
        let mut new = json!({"kind": "mirror", "disk": "db", "target": "/m"});
        new[key] = value;
        job(new)
    };
    assert_eq!(mirror("disk", json!("a b")), field("disk"));
    assert_eq!(mirror("target", json!("m")), field("target"));
    assert_eq!(mirror("target", json!("/there.qcow2")), field("target"));
    assert_eq!(mirror("limit", json!(100)), field("limit"));
    assert_eq!(mirror("limit", json!("fast")), field("limit"));
    assert_eq!(mirror("disks", json!([])), field("disks"));
    assert_eq!(refused(&client, Method::PATCH, "/v1/jobs/1", &json!({"limit": "fast"})), field("limit"));
    assert_eq!(refused(&client, Method::PATCH, "/v1/jobs/1", &json!({"limit": 1})), field("limit"));
    let snapshot = |disks: Value| refused(&client, Method::POST, "/v1/snapshots", &json!({ "disks": disks }));
    assert_eq!(snapshot(json!([])), field("disks"));
    assert_eq!(snapshot(json!([{"disk": "db"}])), field("disks[0].to"));
    assert_eq!(snapshot(json!([{"disk": "db", "to": "old"}])), field("disks[0].to"));
    assert_eq!(snapshot(json!([{"disk": "db", "to": "/a"}, {"disk": "log", "to": "/a"}])), field("disks[1].to"));
    assert_eq!(snapshot(json!([{"disk": "none", "to": "/a"}])), code(404, "no-such-disk"));
    assert_eq!(snapshot(json!([{"disk": "root", "to": "/a"}])), code(409, "unsupported"));
    assert_eq!(client.get::<Vec<Job>>("/v1/jobs").unwrap(), []);
}

#[test]
fn snapshots_are_typed() {
    let served = served();
    prints(&served, "disk snapshot log=/s/log.qcow2 db=/s/db.qcow2", "disk-snapshot.txt");
    let (status, text) = ctl(&served, "disk snapshot db=old.qcow2 --json");
    assert_eq!((status, serde_json::from_str::<Vec<Disk>>(&text).unwrap()[0].name.as_str()), (0, "db"), "{text}");
    for (words, status, message) in [
        ("disk snapshot", 2, "error: the following required arguments were not provided:\n  <DISK=PATH>"),
        (
            "disk snapshot db",
            2,
            "error: invalid value 'db' for '<DISK=PATH>...': must be the name of a disk, `=` and a path",
        ),
        ("disk snapshot db=/a db=/b", 2, "disks[1].disk: `db` is in the list already"),
        ("disk snapshot db=a log=a", 2, "disks[1].to: "),
        ("disk snapshot a/b=/a", 2, "disks[0].disk: must be 1 to 64 letters"),
        ("disk snapshot none=/a", 1, "there is no disk `none` (no-such-disk)"),
        (
            "disk snapshot root=/a",
            1,
            "disk `root` cannot do this: its storage is file, and only qcow2 images have snapshots (unsupported)",
        ),
    ] {
        let (found, text) = ctl(&served, words);
        assert!(found == status && text.starts_with(message), "{words}: {found} {text}");
    }
}

#[test]
fn backups_are_typed() {
    let served = served();
    assert_eq!(ctl(&served, "jobs"), (0, "no jobs\n".into()));
    prints(&served, "disk backup db=/b/db.qcow2 log=/b/log.qcow2", "job-backup.txt");
    prints(&served, "disk backup db=/b/db.raw --format raw --limit 100M --force --detach", "job-backup-detach.txt");
    prints(&served, "job show 2", "job-show.txt");
    prints(&served, "job limit 2 50M", "job-limit.txt");
    let (status, text) = ctl(&served, "job limit 2 none --json");
    assert_eq!((status, serde_json::from_str::<Job>(&text).unwrap().limit_bytes_per_second), (0, None), "{text}");
    assert_eq!(ctl(&served, "job cancel 2"), (0, "cancelled job 2\n".into()));
    assert_eq!(ctl(&served, "job wait 2"), (1, "job 2 was cancelled".into()));

    prints(&served, "jobs", "job-list.txt");
    let full = "job 3 failed: cannot write /b/full.qcow2: No space left on device";
    assert_eq!(ctl(&served, "disk backup db=/b/full.qcow2"), (1, full.into()));
    assert_eq!(ctl(&served, "job wait 3"), (1, full.into()));
    prints(&served, "job show 3", "job-show-failed.txt");
    prints(&served, "jobs", "job-list-failed.txt");
    assert_eq!(ctl(&served, "job list"), ctl(&served, "job"));
    assert_eq!(ctl(&served, "job cancel 3"), (0, "forgot job 3\n".into()));
    assert_eq!(ctl(&served, "job cancel 2 --json"), (0, String::new()));

    let (status, text) = ctl(&served, "disk backup db=db.qcow2 --json");
    let job: Job = serde_json::from_str(&text).unwrap();
    assert_eq!((status, job.state, job.bytes_per_second), (0, JobState::Done, 0), "{text}");
    assert!(job.disks[0].target.is_absolute() && job.disks[0].target.ends_with("db.qcow2"), "{text}");
    assert_ne!(job.disks[0].target, Path::new("/db.qcow2"));
    let client = Client::new(served.socket()).unwrap();
    let (_, text) = ctl(&served, "jobs --json");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), client.get::<Value>("/v1/jobs").unwrap());
    let (_, text) = ctl(&served, "job show 1 --json");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), client.get::<Value>("/v1/jobs/1").unwrap());
}

#[test]
fn mirrors_are_typed() {
    let served = served();
    prints(&served, "disk mirror db /m/db.qcow2", "job-mirror.txt");
    prints(&served, "job show 1", "job-show-mirror.txt");
    let (status, text) = ctl(&served, "job wait 1 --json");
    assert_eq!((status, serde_json::from_str::<Job>(&text).unwrap().state), (0, JobState::Ready), "{text}");
    prints(&served, "job complete 1", "job-complete.txt");
    assert_eq!(ctl(&served, "disk mirror log /m/log.raw --format raw --complete --limit 1G"), {
        (0, "job 2: log lives on in /m/log.raw: name that where the disk is described\n".into())
    });
    let (status, text) = ctl(&served, "disk mirror db /m/2.qcow2 --detach --json");
    assert_eq!((status, serde_json::from_str::<Job>(&text).unwrap().state), (0, JobState::Running), "{text}");
    let early = "job 3 is running, not ready: wait until everything is copied (job-in-state)";
    assert_eq!(ctl(&served, "job complete 3"), (1, early.into()));
    assert_eq!(ctl(&served, "job wait 3").0, 0);
    let (status, text) = ctl(&served, "job complete 3 --detach --json");
    assert_eq!((status, serde_json::from_str::<Job>(&text).unwrap().state), (0, JobState::Completing), "{text}");
    assert_eq!(
        ctl(&served, "job wait 3"),
        (0, "job 3: db lives on in /m/2.qcow2: name that where the disk is described\n".into())
    );
    let full = "job 4 failed: cannot write /m/full.qcow2: No space left on device";
    assert_eq!(ctl(&served, "disk mirror db /m/full.qcow2 --complete"), (1, full.into()));
}

#[test]
fn chains_are_shortened() {
    let served = served();
    assert_eq!(ctl(&served, "disk stream db --limit 1G"), (0, "job 1: db stands alone: 10G in 1m 15s\n".into()));
    assert_eq!(ctl(&served, "disk commit db"), (0, "job 2: committed db: 10G in 1m 15s\n".into()));
    let (status, text) = ctl(&served, "disk commit db --detach --json");
    let job: Job = serde_json::from_str(&text).unwrap();
    assert_eq!((status, job.kind, job.state), (0, JobKind::Commit, JobState::Running), "{text}");
    assert_eq!(ctl(&served, "job wait 3"), (0, "job 3: committed db: 10G in 1m 15s\n".into()));
    let early =
        "job 1 cannot do this: a stream ends by itself, only a mirror, a commit or a pull is completed (unsupported)";
    assert_eq!(ctl(&served, "job complete 1"), (1, early.into()));
    let raw = "disk `data` cannot do this: its storage is memory, and only qcow2 images have a chain (unsupported)";
    assert_eq!(ctl(&served, "disk stream data"), (1, raw.into()));
}

#[test]
fn pulls_are_typed() {
    let served = served();
    prints(&served, "disk pull db=unix:/run/db.sock log=tcp:10809 --scratch /scratch", "job-pull.txt");
    prints(&served, "job show 1", "job-show-pull.txt");
    let (status, text) = ctl(&served, "job limit 1 1M");
    assert!(status == 1 && text.starts_with("job 1 cannot do this: a pull keeps what guests write over"), "{text}");
    prints(&served, "job complete 1", "job-complete-pull.txt");
    prints(&served, "disk pull db=unix:/run/db.sock --bitmap daily", "job-pull-full.txt");
    assert_eq!(ctl(&served, "job cancel 2"), (0, "cancelled job 2\n".into()));
    let (status, text) = ctl(&served, "disk pull db=unix:db.sock --bitmap daily --json");
    let job: Job = serde_json::from_str(&text).unwrap();
    assert_eq!((status, job.state, job.disks[0].incremental), (0, JobState::Ready, true), "{text}");
    let target = job.disks[0].target.display().to_string();
    assert!(target.starts_with("unix:/") && target.ends_with("/db.sock"), "{target}");
    for (words, status, message) in [
        ("disk pull", 2, "error: the following required arguments were not provided:\n  <DISK=ADDRESS>"),
        ("disk pull db", 2, "error: invalid value 'db' for '<DISK=ADDRESS>...': must be the name of a disk"),
        ("disk pull db=/a", 2, "error: invalid value 'db=/a' for '<DISK=ADDRESS>...': `/a` is not an address"),
        ("disk pull db=fd:3", 2, "disks[0].listen: must be an address of its own"),
        ("disk pull db=unix:/a log=unix:/a", 2, "disks[1].listen: unix:/a is that of `db` already"),
        ("disk pull none=unix:/a", 1, "there is no disk `none` (no-such-disk)"),
        ("disk pull db=unix:/a --limit 1M", 2, "error: unexpected argument '--limit'"),
    ] {
        let (found, text) = ctl(&served, words);
        assert!(found == status && text.starts_with(message), "{words}: {found} {text}");
    }
    let client = Client::new(served.socket()).unwrap();
    let pull = |body: Value| refused(&client, Method::POST, "/v1/jobs", &body);
    assert_eq!(pull(json!({"kind": "pull", "disks": []})), field("disks"));
    assert_eq!(pull(json!({"kind": "pull", "disks": [{"disk": "db"}]})), field("disks[0].listen"));
    assert_eq!(pull(json!({"kind": "pull", "disks": [{"disk": "db", "listen": "here"}]})), field("disks[0].listen"));
    assert_eq!(
        pull(json!({"kind": "pull", "disks": [{"disk": "db", "listen": "tcp:0"}], "scratch": "x"})),
        field("scratch")
    );
}

#[test]
fn every_refusal_is_a_line() {
    let served = served();
    assert_eq!(ctl(&served, "disk backup db=/b/db.qcow2").0, 0);
    for (words, status, message) in [
        ("disk backup", 2, "error: the following required arguments were not provided:\n  <DISK=TARGET>"),
        ("disk backup db=", 2, "error: invalid value 'db=' for '<DISK=TARGET>...': must be the name of a disk"),
        ("disk backup db=/a --format vmdk", 2, "error: invalid value 'vmdk' for '--format <FORMAT>'"),
        ("disk backup db=/a --limit fast", 2, "error: invalid value 'fast' for '--limit <SIZE>': `fast` is not a size"),
        ("disk backup db=/a --limit 100", 2, "limit: must be 4096 to 1125899906842624 bytes a second, or 0"),
        ("disk backup db=/a db=/b", 2, "disks[1].disk: `db` is in the list already"),
        (
            "disk backup db=/a log=/a",
            2,
            "disks[1].target: /a is that of `db` already: give each disk a file of its own",
        ),
        ("disk backup none=/a", 1, "there is no disk `none` (no-such-disk)"),
        ("disk backup db=/there.qcow2", 1, "disks[0].target: /there.qcow2 exists: give another path, or force"),
        ("disk mirror db", 2, "error: the following required arguments were not provided:\n  <TARGET>"),
        ("disk mirror a/b /m", 2, "disk: must be 1 to 64 letters"),
        ("disk mirror db /m --complete --detach", 2, "error: the argument '--complete' cannot be used with '--detach'"),
        ("disk mirror db /there.qcow2", 1, "target: /there.qcow2 exists"),
        ("job show 9", 1, "there is no job 9 (no-such-job)"),
        ("job wait 9", 1, "there is no job 9 (no-such-job)"),
        ("job cancel 9", 1, "there is no job 9 (no-such-job)"),
        ("job complete 9", 1, "there is no job 9 (no-such-job)"),
        ("job limit 9 none", 1, "there is no job 9 (no-such-job)"),
        (
            "job complete 1",
            1,
            "job 1 cannot do this: a backup ends by itself, only a mirror, a commit or a pull is completed (unsupported)",
        ),
        ("job limit 1 1M", 1, "job 1 is done, not running: it has ended (job-in-state)"),
        ("job limit 1 100", 1, "limit: must be 4096 to"),
        ("job limit 1 fast", 2, "error: invalid value 'fast' for '<SIZE|none>': `fast` is not a size"),
        ("job limit 1", 2, "error: the following required arguments were not provided"),
        ("job show one", 2, "error: invalid value 'one' for '<ID>'"),
        ("job dance", 2, "error: unrecognized subcommand 'dance'"),
    ] {
        let (found, text) = ctl(&served, words);
        assert!(found == status && text.starts_with(message), "{words}: {found} {text}");
    }
}

#[test]
fn programs_get_a_job_that_failed() {
    let served = served();
    assert_eq!(ctl(&served, "disk backup db=/b/full.qcow2 --detach").0, 0);
    let wait = JobArgs { command: Some(JobCommand::Wait { id: 1 }) };
    let args = Args { control: served.socket(), json: true, command: Command::Job(wait) };
    let mut out = Vec::new();
    let error = control::ctl::perform(&args, &mut out, false).unwrap_err();
    assert!(error.exit_status() == 1 && error.to_string().starts_with("job 1 failed: "), "{error}");
    assert_eq!(serde_json::from_slice::<Job>(&out).unwrap().state, JobState::Failed);
}
