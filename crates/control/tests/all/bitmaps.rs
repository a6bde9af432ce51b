//! Dirty bitmaps and the backups that use them, through the API and on the command line.

use crate::common::{Served, ctl, ctl_words};
use crate::ctl::prints;
use crate::jobs::{code, field, refused, served};
use control::client::{Client, segment};
use control::model::{Bitmap, Job};
use hyper::Method;
use serde_json::{Value, json};

const TARGET: &str = "/v1/disks/db/bitmaps";

fn of_db(client: &Client) -> Vec<Bitmap> {
    client.get(TARGET).unwrap()
}

#[test]
fn a_bitmap_lives_from_post_to_delete() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    assert_eq!(of_db(&client), []);
    let added: Value = client.send(Method::POST, TARGET, &json!({"name": "daily"})).unwrap();
    let expected = json!({
        "name": "daily", "granularity_bytes": 65536, "enabled": true, "consistent": true, "dirty_bytes": 512 << 20,
    });
    assert_eq!(added, expected);
    let odd = "a/b c%";
    let added: Bitmap = client.send(Method::POST, TARGET, &json!({"name": odd, "granularity": "1M"})).unwrap();
    assert_eq!((added.name.as_str(), added.granularity_bytes), (odd, 1 << 20));
    assert_eq!(of_db(&client).iter().map(|bitmap| bitmap.name.as_str()).collect::<Vec<_>>(), ["daily", odd]);
    assert_eq!(client.get::<Vec<Bitmap>>("/v1/disks/log/bitmaps").unwrap(), []);

    let odd = format!("{TARGET}/{}", segment(odd));
    client.order(Method::DELETE, &odd).unwrap();
    assert_eq!(refused(&client, Method::DELETE, &odd, &Value::Null), code(404, "no-such-bitmap"));
    assert_eq!(of_db(&client).len(), 1);
}

#[test]
fn every_refusal_of_a_bitmap_has_its_code_and_field() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    let add = |disk: &str, body: Value| refused(&client, Method::POST, &format!("/v1/disks/{disk}/bitmaps"), &body);
    assert_eq!(add("db", json!({})), field("name"));
    assert_eq!(add("db", json!({"name": ""})), field("name"));
    assert_eq!(add("db", json!({"name": "x".repeat(1024)})), field("name"));
    assert_eq!(add("db", json!({"name": "x", "granularity": 1000})), field("granularity"));
    assert_eq!(add("db", json!({"name": "x", "granularity": "4G"})), field("granularity"));
    assert_eq!(add("db", json!({"name": "x", "granularity": "fine"})), field("granularity"));
    assert_eq!(add("db", json!({"name": "x", "enabled": false})), field("enabled"));
    assert_eq!(add("none", json!({"name": "x"})), code(404, "no-such-disk"));
    assert_eq!(add("root", json!({"name": "x"})), code(409, "unsupported"));
    assert_eq!(of_db(&client), []);
    client.send::<Bitmap>(Method::POST, TARGET, &json!({"name": "x"})).unwrap();
    assert_eq!(add("db", json!({"name": "x"})), code(409, "unsupported"));
    let missing = |method, target: &str| refused(&client, method, target, &Value::Null);
    assert_eq!(missing(Method::GET, "/v1/disks/none/bitmaps"), code(404, "no-such-disk"));
    assert_eq!(missing(Method::DELETE, "/v1/disks/none/bitmaps/x"), code(404, "no-such-disk"));
    assert_eq!(missing(Method::DELETE, "/v1/disks/log/bitmaps/x"), code(404, "no-such-bitmap"));
    assert_eq!(missing(Method::GET, "/v1/disks/db/bitmaps/x"), code(405, "method-not-allowed"));
}

#[test]
fn an_incremental_backup_follows_a_full_one() {
    let served = served();
    let client = Client::new(served.socket()).unwrap();
    let backup = |copy: Value| json!({"kind": "backup", "disks": [copy]});
    let full = backup(json!({"disk": "db", "target": "/b/db.0", "bitmap": "daily"}));
    let job: Value = client.send(Method::POST, "/v1/jobs", &full).unwrap();
    assert_eq!((&job["disks"][0]["bitmap"], &job["disks"][0]["incremental"]), (&json!("daily"), &json!(false)));
    let next = backup(json!({"disk": "db", "target": "/b/db.1", "bitmap": "daily", "backing": "/b/db.0"}));
    let job: Job = client.send(Method::POST, "/v1/jobs", &next).unwrap();
    assert_eq!((job.disks[0].incremental, job.total_bytes), (true, 512 << 20));
    let plain = backup(json!({"disk": "db", "target": "/b/plain"}));
    let job: Value = client.send(Method::POST, "/v1/jobs", &plain).unwrap();
    assert_eq!((job["disks"][0].get("bitmap"), &job["disks"][0]["incremental"]), (None, &json!(false)));

    let job = |copy: Value| refused(&client, Method::POST, "/v1/jobs", &backup(copy));
    let with = |key: &str, value: Value| {
        let mut copy = json!({"disk": "db", "target": "/b/db.2", "bitmap": "daily", "backing": "/b/db.1"});
        copy[key] = value;
        job(copy)
    };
    assert_eq!(with("bitmap", json!("")), field("disks[0].bitmap"));
    assert_eq!(with("bitmap", json!(7)), field("disks[0].bitmap"));
    assert_eq!(with("bitmap", Value::Null), field("disks[0].backing"));
    assert_eq!(with("bitmap", json!("weekly")), field("disks[0].backing"));
    assert_eq!(with("backing", json!("db.1")), field("disks[0].backing"));
    assert_eq!(with("backing", json!("/b/db.2")), field("disks[0].backing"));
    assert_eq!(with("format", json!("raw")), field("disks[0].backing"));
    assert_eq!(job(json!({"disk": "root", "target": "/b/root.0", "bitmap": "daily"})), code(409, "unsupported"));
    let mirror = json!({"kind": "mirror", "disk": "db", "target": "/m", "bitmap": "daily"});
    assert_eq!(refused(&client, Method::POST, "/v1/jobs", &mirror), field("bitmap"));
}

#[test]
fn bitmaps_are_typed() {
    let served = served();
    assert_eq!(ctl(&served, "disk bitmap list db"), (0, "no bitmaps\n".into()));
    assert_eq!(ctl(&served, "disk bitmap list db --json"), (0, "[]\n".into()));
    prints(&served, "disk bitmap add db daily", "bitmap-add.txt");
    let (status, text) = ctl(&served, "disk bitmap add db torn --granularity 1M --json");
    let torn: Bitmap = serde_json::from_str(&text).unwrap();
    assert_eq!((status, torn.granularity_bytes, torn.consistent), (0, 1 << 20, false), "{text}");
    prints(&served, "disk bitmap list db", "bitmap-list.txt");
    let client = Client::new(served.socket()).unwrap();
    let (_, text) = ctl(&served, "disk bitmap list db --json");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), client.get::<Value>(TARGET).unwrap());
    assert_eq!(ctl(&served, "disk bitmap remove db torn"), (0, "removed bitmap torn of disk db\n".into()));
    let odd = ["disk", "bitmap", "add", "db", "../a b", "--json"];
    assert_eq!(ctl_words(&served.socket(), &odd).0, 0);
    assert_eq!(of_db(&client).len(), 2);
    let odd = ["disk", "bitmap", "remove", "db", "../a b", "--json"];
    assert_eq!(ctl_words(&served.socket(), &odd), (0, String::new()));
    assert_eq!(of_db(&client).len(), 1);
}

#[test]
fn incremental_backups_are_typed() {
    let served = served();
    prints(&served, "disk backup db=/b/db.0 log=/b/log.0 --bitmap daily", "job-backup-full.txt");
    prints(
        &served,
        "disk backup db=/b/db.1 log=/b/log.1 --bitmap daily --backing db=/b/db.0 --backing log=/b/log.0",
        "job-backup-incremental.txt",
    );
    prints(&served, "job show 2", "job-show-incremental.txt");
    assert_eq!(ctl(&served, "disk bitmap remove log daily").0, 0);
    prints(&served, "disk backup db=/b/db.2 log=/b/log.2 --bitmap daily --backing db=/b/db.1", "job-backup-both.txt");
    prints(&served, "job show 3", "job-show-both.txt");
    prints(&served, "jobs", "job-list-incremental.txt");

    let (status, text) = ctl(&served, "disk backup db=db.3 --bitmap daily --backing db=db.2 --detach --json");
    let job: Job = serde_json::from_str(&text).unwrap();
    assert_eq!((status, job.disks[0].bitmap.as_deref(), job.disks[0].incremental), (0, Some("daily"), true), "{text}");
    let client = Client::new(served.socket()).unwrap();
    let (_, text) = ctl(&served, "job show 3 --json");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), client.get::<Value>("/v1/jobs/3").unwrap());
}

#[test]
fn what_is_typed_is_what_is_asked_for() {
    use clap::Parser;
    use control::ctl::BackupArgs;
    use control::model::NewJob;
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        backup: BackupArgs,
    }
    let words = ["", "db=/1", "log=/l", "--bitmap", "daily", "--backing", "db=prev/0", "--format", "qcow2"];
    let NewJob::Backup(new) = Line::parse_from(words).backup.job().unwrap() else { panic!("a mirror") };
    let [db, log] = new.disks.as_slice() else { panic!("{new:?}") };
    let backing = db.backing.as_deref().unwrap();
    assert!(backing.is_absolute() && backing.ends_with("prev/0"), "{backing:?}");
    assert_eq!((db.bitmap.as_deref(), log.bitmap.as_deref(), &log.backing), (Some("daily"), Some("daily"), &None));
}

/// Runs each command, which fails with this status and a line that begins so.
fn fail(served: &Served, commands: &[(&str, u8, &str)]) {
    for (words, status, message) in commands {
        let (found, text) = ctl(served, words);
        assert!(found == *status && text.starts_with(message), "{words}: {found} {text}");
    }
}

#[test]
fn every_refusal_is_a_line() {
    let served = served();
    assert_eq!(ctl(&served, "disk bitmap add db daily").0, 0);
    assert_eq!(ctl(&served, "disk bitmap add db torn").0, 0);
    fail(
        &served,
        &[
            ("disk bitmap", 2, ""),
            ("disk bitmap list", 2, "error: the following required arguments were not provided:\n  <DISK>"),
            ("disk bitmap add db", 2, "error: the following required arguments were not provided:\n  <NAME>"),
            ("disk bitmap remove db", 2, "error: the following required arguments were not provided:\n  <NAME>"),
            ("disk bitmap clear db", 2, "error: unrecognized subcommand 'clear'"),
            ("disk bitmap add db x --granularity fine", 2, "error: invalid value 'fine' for '--granularity <SIZE>'"),
            ("disk bitmap add db x --granularity 100", 2, "granularity: must be a power of two, 512 to 2G, not 100"),
            ("disk bitmap list none", 1, "there is no disk `none` (no-such-disk)"),
            ("disk bitmap add none x", 1, "there is no disk `none` (no-such-disk)"),
            ("disk bitmap remove none x", 1, "there is no disk `none` (no-such-disk)"),
            ("disk bitmap remove db x", 1, "disk `db` has no bitmap `x` (no-such-bitmap)"),
            ("disk bitmap add db daily", 1, "disk `db` cannot do this: it has a bitmap `daily` already (unsupported)"),
            (
                "disk bitmap add root x",
                1,
                "disk `root` cannot do this: its storage is file, and only qcow2 images have bitmaps (unsupported)",
            ),
        ],
    );
    let long = format!("disk bitmap add db {}", "x".repeat(1024));
    assert_eq!(ctl(&served, &long), (2, "name: must be 1 to 1023 bytes, not 1024".into()));
    let nameless = ["disk", "backup", "db=/1", "--bitmap", ""];
    let message = "disks[0].bitmap: must be 1 to 1023 bytes, not 0";
    assert_eq!(ctl_words(&served.socket(), &nameless), (2, message.into()));
    fail(
        &served,
        &[
            (
                "disk backup db=/1 --backing db=/0",
                2,
                "error: the following required arguments were not provided:\n  --bitmap <NAME>",
            ),
            (
                "disk backup db=/1 --bitmap daily --backing /0",
                2,
                "error: invalid value '/0' for '--backing <DISK=PATH>'",
            ),
            (
                "disk backup db=/1 --bitmap daily --backing log=/0",
                2,
                "--backing: `log` is not backed up by this command: name one of its disks",
            ),
            ("disk backup db=/1 --bitmap daily --backing db=/0 --backing db=/00", 2, "--backing: `db` has one already"),
            (
                "disk backup db=/1 --bitmap daily --backing db=/1",
                2,
                "disks[0].backing: /1 is the target of `db`: give the backup before this one",
            ),
            (
                "disk backup db=/1 --bitmap daily --backing db=/0 --format raw",
                2,
                "disks[0].backing: is for qcow2 copies, a raw one names no backing file: set `format` to qcow2",
            ),
            (
                "disk backup db=/1 --bitmap weekly --backing db=/0",
                1,
                "disks[0].backing: is for what was written since, and this is a full backup (invalid-field)",
            ),
            (
                "disk backup db=/1 --bitmap torn",
                1,
                "disks[0].bitmap: is not consistent: remove it and begin again with a full backup (invalid-field)",
            ),
            ("disk mirror db /1 --bitmap daily", 2, "error: unexpected argument '--bitmap'"),
        ],
    );
}
