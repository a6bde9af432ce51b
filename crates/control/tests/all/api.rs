//! Round trips of the API over a real socket, and every way in which it refuses.

use crate::common::{Served, WORKERS_MAX, describe};
use control::client::{Client, ClientError, segment};
use control::model::CachePolicy;
use control::model::config::ExportKind;
use control::model::{
    Attached, Disk, Export, Info, MigrationMode, MigrationOnError, Multidevs, NewWorker, Poll, RingInfo, SecurityModel,
    SyncMode, Worker,
};
use disk::User;
use hyper::Method;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

struct Api {
    served: Served,
    client: Client,
}

impl Api {
    fn new() -> Self {
        let served = Served::new();
        let client = Client::new(served.socket()).unwrap();
        Self { served, client }
    }

    fn send(&self, method: Method, target: &str, body: &Value) -> Result<Value, ClientError> {
        self.client.send(method, target, body)
    }

    /// Status, code and field of a refusal.
    #[allow(clippy::needless_pass_by_value, reason = "callers name constants")]
    fn refused(&self, method: Method, target: &str, body: &str) -> (u16, String, Option<String>) {
        let body = (!body.is_empty()).then(|| body.as_bytes().to_vec());
        match self.client.call(method.clone(), target, body) {
            Err(ClientError::Refused { status, code, field, message }) => {
                assert!(!message.is_empty() && !message.contains('\n'), "{message}");
                (status, code, field)
            }
            other => panic!("{method} {target} must be refused: {other:?}"),
        }
    }
}

fn code(status: u16, code: &str) -> (u16, String, Option<String>) {
    (status, code.to_owned(), None)
}

fn field(name: &str) -> (u16, String, Option<String>) {
    (422, "invalid-field".to_owned(), Some(name.to_owned()))
}

#[test]
fn what_there_is_can_be_read() {
    let api = Api::new();
    let info: Info = api.client.get("/v1/info").unwrap();
    assert_eq!((info.exports, info.workers, info.workers_max), (2, 3, WORKERS_MAX));
    let exports: Vec<Export> = api.client.get("/v1/exports").unwrap();
    assert_eq!(exports.iter().map(|export| &*export.name).collect::<Vec<_>>(), ["root", "data"]);
    let export: Export = api.client.get("/v1/exports/root").unwrap();
    assert_eq!(export.rings[0].figures.requests(), 1504);
    assert_eq!(export.frontend.unwrap().pid, 4242);
    let rings: Vec<RingInfo> = api.client.get("/v1/exports/root/rings").unwrap();
    assert_eq!(rings, export.rings);
    let ring: RingInfo = api.client.get("/v1/exports/root/rings/1").unwrap();
    assert_eq!(ring, rings[1]);
    let attached: Attached = api.client.get("/v1/exports/root/rings/1/worker").unwrap();
    assert_eq!(attached.worker, Some(1));
    let all: Vec<Worker> = api.client.get("/v1/workers").unwrap();
    assert_eq!(all.iter().map(|worker| worker.id).collect::<Vec<_>>(), [1, 2, 3]);
    let own: Vec<Worker> = api.client.get("/v1/exports/data/workers").unwrap();
    assert_eq!(own, all[1..2]);
    let one: Worker = api.client.get("/v1/exports/data/workers/2").unwrap();
    assert_eq!(one, all[1]);
}

#[test]
fn an_export_lives_from_post_to_delete() {
    let api = Api::new();
    let new = describe("scratch", "kind = 'null', size = '1T'", 4);
    let export: Export = api.client.send(Method::POST, "/v1/exports", &new).unwrap();
    assert_eq!((export.storage.unwrap().capacity_bytes, export.queues_max), (1 << 40, 4));
    let resized = api.send(Method::PUT, "/v1/exports/scratch/capacity", &json!({"capacity_bytes": "2T"})).unwrap();
    assert_eq!(resized["storage"]["capacity_bytes"], json!(2u64 << 40));
    let change = json!({"poll": "fixed=7", "execution": "pool=2", "placement": 3});
    let changed: Export = api.client.send(Method::PATCH, "/v1/exports/scratch", &change).unwrap();
    assert_eq!(changed.poll, Poll::Fixed(7));
    let execution = changed.storage.unwrap().execution.to_string();
    assert_eq!((changed.placement.to_string(), execution), ("3".into(), "pool=2".into()));
    api.client.order(Method::DELETE, "/v1/exports/scratch").unwrap();
    assert_eq!(api.refused(Method::GET, "/v1/exports/scratch", ""), code(404, "no-such-export"));
    api.client.order(Method::DELETE, "/v1/exports/root?force=true").unwrap();
    assert_eq!(api.client.get::<Vec<Export>>("/v1/exports").unwrap().len(), 1);
}

#[test]
fn a_disk_lives_from_post_to_delete() {
    let api = Api::new();
    let base = json!({"name": "base", "storage": {"kind": "file", "path": "/images/base.img", "read_only": true}});
    let disk: Disk = api.client.send(Method::POST, "/v1/disks", &base).unwrap();
    assert_eq!((disk.owner, disk.users, disk.storage.read_only, disk.shared), (None, vec![], true, false));
    assert_eq!(api.refused(Method::POST, "/v1/disks", &base.to_string()), code(409, "disk-exists"));
    for name in ["a", "b"] {
        let new = json!({"name": name, "socket": format!("/run/{name}.sock"), "disk": "base"});
        let export: Export = api.client.send(Method::POST, "/v1/exports", &new).unwrap();
        assert_eq!((export.disk.as_deref(), export.storage.unwrap().kind.as_str()), (Some("base"), "file"));
    }
    let shown: Value = api.client.get("/v1/disks/base").unwrap();
    assert_eq!((&shown["users"], &shown["owner"]), (&json!([{"export": "a"}, {"export": "b"}]), &Value::Null));
    let all: Vec<Disk> = api.client.get("/v1/disks").unwrap();
    let own = User::Export("root".into());
    assert_eq!(
        (all.len(), &all[1].name, &all[1].owner, &all[1].users),
        (3, &"root".to_owned(), &Some(own.clone()), &vec![own])
    );

    let resize = json!({"capacity_bytes": "40G"});
    let resized: Disk = api.client.send(Method::PUT, "/v1/disks/base/capacity", &resize).unwrap();
    assert_eq!(resized.storage.capacity_bytes, 40 << 30);
    for name in ["a", "b"] {
        let export: Export = api.client.get(&format!("/v1/exports/{name}")).unwrap();
        assert_eq!(export.storage.unwrap().capacity_bytes, 40 << 30);
    }
    assert_eq!(api.refused(Method::DELETE, "/v1/disks/base", ""), code(409, "disk-in-use"));
    api.client.order(Method::DELETE, "/v1/exports/a").unwrap();
    api.client.order(Method::DELETE, "/v1/exports/b").unwrap();
    api.client.order(Method::DELETE, "/v1/disks/base").unwrap();
    assert_eq!(api.refused(Method::GET, "/v1/disks/base", ""), code(404, "no-such-disk"));
    assert_eq!(api.refused(Method::DELETE, "/v1/disks/base", ""), code(404, "no-such-disk"));
}

#[test]
fn a_disk_is_refused_with_the_field_at_fault() {
    let api = Api::new();
    let disk = |name: &str, storage: &Value| json!({"name": name, "storage": storage}).to_string();
    let empty = json!({"kind": "null", "size": "1G"});
    for (body, fault) in [
        (disk("a b", &empty), "name"),
        (disk("a", &json!({"kind": "tape"})), "storage.kind"),
        (disk("a", &json!({"kind": "null", "size": 7})), "storage.size"),
        (disk("a", &json!({"kind": "file", "path": "a.img"})), "storage.path"),
        (json!({"name": "a"}).to_string(), "storage"),
        (json!({"name": "a", "storage": null, "serial": "1"}).to_string(), "serial"),
    ] {
        assert_eq!(api.refused(Method::POST, "/v1/disks", &body), field(fault), "{body}");
    }
    let export = |more: &Value| {
        let mut new = json!({"name": "a", "socket": "/run/a.sock"});
        new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        new.to_string()
    };
    assert_eq!(api.refused(Method::POST, "/v1/exports", &export(&json!({"disk": "none"}))), field("disk"));
    assert_eq!(api.refused(Method::POST, "/v1/exports", &export(&json!({"disk": ""}))), field("disk"));
    let both = export(&json!({"disk": "none", "storage": {"kind": "null", "size": "1G"}}));
    assert_eq!(api.refused(Method::POST, "/v1/exports", &both), field("disk"));
    let directory = export(&json!({"disk": "none", "kind": "dir", "directory": {"path": "/srv"}}));
    assert_eq!(api.refused(Method::POST, "/v1/exports", &directory), field("disk"));

    // A second writer.
    let shared = json!({"name": "sh", "storage": empty, "shared": true});
    assert_eq!(api.send(Method::POST, "/v1/disks", &shared).unwrap()["shared"], true);
    assert_eq!(api.refused(Method::POST, "/v1/exports", &export(&json!({"disk": "sh"}))), field("disk"));
    let moves = json!({"kind": "file", "path": "/d.img", "migratable": true});
    let moves = json!({"name": "mv", "storage": moves, "shared": true}).to_string();
    assert_eq!(api.refused(Method::POST, "/v1/disks", &moves), field("shared"));
    api.send(Method::POST, "/v1/disks", &json!({"name": "rw", "storage": empty})).unwrap();
    api.send(Method::POST, "/v1/exports", &json!({"name": "w1", "socket": "/run/w1", "disk": "rw"})).unwrap();
    let second = json!({"name": "w2", "socket": "/run/w2", "disk": "rw"}).to_string();
    assert_eq!(api.refused(Method::POST, "/v1/exports", &second), field("disk"));
    let resize = r#"{"capacity_bytes":"2G"}"#;
    assert_eq!(api.refused(Method::PUT, "/v1/disks/data/capacity", resize), code(409, "unsupported"));
    assert_eq!(api.refused(Method::PUT, "/v1/disks/none/capacity", resize), code(404, "no-such-disk"));
}

#[test]
fn a_group_lives_from_post_to_delete() {
    let api = Api::new();
    let group =
        api.send(Method::POST, "/v1/groups", &json!({"name": "gold", "iops": 10_000, "burst_requests": 0})).unwrap();
    assert_eq!(group, json!({"name": "gold", "iops": 10_000, "exports": []}));
    let twin = r#"{"name":"gold"}"#;
    assert_eq!(api.refused(Method::POST, "/v1/groups", twin), code(409, "group-exists"));
    assert_eq!(api.refused(Method::POST, "/v1/groups", r#"{"name":"a b"}"#), field("name"));
    assert_eq!(
        api.refused(Method::POST, "/v1/groups", r#"{"name":"x","bytes_per_second":7}"#),
        field("bytes_per_second")
    );
    let change = json!({"limits": {"group": "gold", "bytes_per_second": "10M"}});
    let export: Export = api.client.send(Method::PATCH, "/v1/exports/root", &change).unwrap();
    assert_eq!(export.limits.group.as_deref(), Some("gold"));
    assert_eq!(api.client.get::<Value>("/v1/groups/gold").unwrap()["exports"], json!(["root"]));
    assert_eq!(api.refused(Method::DELETE, "/v1/groups/gold", ""), code(409, "group-in-use"));
    let changed = api.send(Method::PATCH, "/v1/groups/gold", &json!({"iops": 0, "bytes_per_second": "1G"})).unwrap();
    assert_eq!((&changed["iops"], &changed["bytes_per_second"]), (&Value::Null, &json!("1G")));
    let lifted: Export = api
        .client
        .send(Method::PATCH, "/v1/exports/root", &json!({"limits": {"group": "", "bytes_per_second": 0}}))
        .unwrap();
    assert!(lifted.limits.is_none());
    api.client.order(Method::DELETE, "/v1/groups/gold").unwrap();
    assert_eq!(api.refused(Method::GET, "/v1/groups/gold", ""), code(404, "no-such-group"));
    assert_eq!(
        api.refused(Method::PATCH, "/v1/exports/root", r#"{"limits":{"iops":2000000000}}"#),
        field("limits.iops")
    );
}

#[test]
fn a_volume_lives_from_post_to_delete() {
    let api = Api::new();
    let new = json!({
        "name": "vol", "socket": "/run/vol.sock", "queues": 2,
        "storage": {"kind": "volume", "path": "/v", "log": "/dev/log", "dirty_memory": "32M", "execution": "pool=8"},
    });
    let export: Export = api.client.send(Method::POST, "/v1/exports", &new).unwrap();
    let storage = export.storage.unwrap();
    let volume = storage.volume.unwrap();
    assert_eq!((storage.kind.as_str(), storage.direct), ("volume", true));
    assert_eq!(
        (volume.sync, volume.log.as_deref(), volume.dirty_bytes_max),
        (SyncMode::Standard, Some("/dev/log"), 32 << 20)
    );
    let changed = api.send(Method::PATCH, "/v1/exports/vol", &json!({"sync": "disabled"})).unwrap();
    assert_eq!(changed["storage"]["volume"]["sync"], "disabled");
    let synced: Export = api.client.post("/v1/exports/vol/sync").unwrap();
    let volume = synced.storage.unwrap().volume.unwrap();
    assert_eq!((volume.dirty_bytes, volume.log_used_bytes, volume.sweeps), (0, 0, 13));
    let root = "/v1/exports/root";
    assert_eq!(api.refused(Method::PATCH, root, r#"{"sync":"always"}"#), code(409, "unsupported"));
    assert_eq!(api.refused(Method::POST, &format!("{root}/sync"), ""), code(409, "unsupported"));
    assert_eq!(api.refused(Method::POST, "/v1/exports/none/sync", ""), code(404, "no-such-export"));
    assert_eq!(api.refused(Method::PATCH, "/v1/exports/vol", r#"{"sync":"often"}"#), field("sync"));
    api.client.order(Method::DELETE, "/v1/exports/vol").unwrap();
}

#[test]
fn a_bad_field_of_a_volume_is_named() {
    let api = Api::new();
    let add = |storage: Value| {
        let new = json!({"name": "x", "socket": "/x.sock", "storage": storage});
        api.refused(Method::POST, "/v1/exports", &new.to_string())
    };
    let volume = |key: &str, value: Value| {
        let mut storage = json!({"kind": "volume", "path": "/v"});
        storage[key] = value;
        add(storage)
    };
    assert_eq!(add(json!({"kind": "volume"})), field("storage.path"));
    assert_eq!(volume("path", json!("v")), field("storage.path"));
    assert_eq!(volume("path", json!("")), field("storage.path"));
    assert_eq!(volume("log", json!("l")), field("storage.log"));
    assert_eq!(volume("sync", json!("often")), field("storage.sync"));
    assert_eq!(volume("dirty_memory", json!(1)), field("storage.dirty_memory"));
    assert_eq!(volume("size", json!("1G")), field("storage.size"));
    let log = |log: Value| add(json!({"kind": "null", "size": "1G", "intent_log": log}));
    assert_eq!(log(json!({})), field("storage.intent_log.size"));
    assert_eq!(log(json!({"size": 4096})), field("storage.intent_log.size"));
    assert_eq!(log(json!({"size": "1M", "colour": 1})), field("storage.intent_log.colour"));
    assert_eq!(log(json!("1M")), field("storage.intent_log"));
    let file = json!({"kind": "memory", "path": "/dev/shm/x", "intent_log": {"size": "1M"}});
    assert_eq!(add(file), field("storage.intent_log"));
}

#[test]
fn a_directory_lives_from_post_to_delete() {
    let api = Api::new();
    let new = json!({
        "name": "home", "kind": "dir", "socket": "/run/home.sock", "queues": 2,
        "directory": {
            "path": "/srv/home", "cache": "metadata", "execution": "pool=4", "read_only": true,
            "migration_on_error": "guest-error", "migration_verify_handles": true,
        },
    });
    let export: Export = api.client.send(Method::POST, "/v1/exports", &new).unwrap();
    assert_eq!((export.kind, export.queues_max, export.rings.len()), (ExportKind::Dir, 2, 3));
    assert!(export.storage.is_none());
    let directory = export.directory.unwrap();
    assert_eq!((directory.path.as_str(), directory.tag.as_deref()), ("/srv/home", Some("home")));
    assert_eq!((directory.cache, directory.read_only), (Some(CachePolicy::Metadata), true));
    assert_eq!((directory.security_model, directory.p9), (SecurityModel::Passthrough, None));
    assert_eq!(directory.migration_mode, Some(MigrationMode::FindPaths));
    assert_eq!(directory.migration_on_error, Some(MigrationOnError::GuestError));
    assert!(directory.migration_verify_handles);
    let change = json!({"execution": "uring", "placement": "one"});
    let changed: Export = api.client.send(Method::PATCH, "/v1/exports/home", &change).unwrap();
    assert_eq!(changed.directory.unwrap().execution.to_string(), "uring");
    let resize = r#"{"capacity_bytes":1024}"#;
    assert_eq!(api.refused(Method::PUT, "/v1/exports/home/capacity", resize), code(409, "unsupported"));
    api.client.order(Method::DELETE, "/v1/exports/home").unwrap();
    assert_eq!(api.refused(Method::GET, "/v1/exports/home", ""), code(404, "no-such-export"));
}

#[test]
fn a_directory_over_9p_lives_from_post_to_delete() {
    let api = Api::new();
    let new = json!({
        "name": "home", "kind": "dir", "listen": "tcp::5640", "queues": 2,
        "directory": {
            "path": "/srv/home", "protocol": "9p", "msize": "128K", "multidevs": "forbid", "security_model": "mapped-xattr",
            "fmode": "0640", "dmode": "0750", "execution": "pool=4",
        },
    });
    let export: Export = api.client.send(Method::POST, "/v1/exports", &new).unwrap();
    assert_eq!((export.kind, export.queues_max, export.rings.len()), (ExportKind::Dir, 2, 2));
    assert_eq!(export.socket, "tcp:127.0.0.1:5640");
    let directory = export.directory.unwrap();
    assert_eq!((directory.protocol.as_deref(), directory.cache), (Some("9P2000.L"), None));
    assert_eq!((directory.migration_mode, directory.migration_on_error), (None, None));
    assert_eq!(directory.security_model, SecurityModel::MappedXattr);
    let p9 = directory.p9.unwrap();
    assert_eq!((p9.msize_max, p9.multidevs, p9.connections), (128 << 10, Multidevs::Forbid, 2));
    api.client.order(Method::DELETE, "/v1/exports/home").unwrap();
}

#[test]
fn a_bad_field_of_9p_is_named() {
    let api = Api::new();
    let add = |change: Value| {
        let mut new = json!({"name": "x", "kind": "dir", "directory": {"path": "/srv", "protocol": "9p"}});
        for (key, value) in change.as_object().unwrap() {
            new[key] = value.clone();
        }
        api.refused(Method::POST, "/v1/exports", &new.to_string())
    };
    let with = |key: &str, value: Value| {
        let mut directory = json!({"path": "/srv", "protocol": "9p"});
        directory[key] = value;
        add(json!({ "socket": "/x.sock", "directory": directory }))
    };
    assert_eq!(add(json!({})), field("socket"));
    assert_eq!(add(json!({"listen": "tcp"})), field("listen"));
    assert_eq!(add(json!({"listen": 5640})), field("listen"));
    assert_eq!(add(json!({"listen": "unix:p9.sock"})), field("listen"));
    assert_eq!(add(json!({"listen": "tcp:1", "socket": "/x.sock"})), field("listen"));
    // A client must not be able to name the daemon's own descriptors.
    assert_eq!(add(json!({"listen": "fd:5"})), field("listen"));
    assert_eq!(add(json!({"listen": "tcp:1", "queues": 1025})), field("queues"));
    assert_eq!(add(json!({"listen": "tcp:1", "socket_mode": "0660"})), field("socket_mode"));
    assert_eq!(add(json!({"listen": "tcp:1", "directory": {"path": "/srv"}})), field("listen"));
    assert_eq!(with("protocol", json!("9p2000")), field("directory.protocol"));
    assert_eq!(with("security_model", json!("mapped")), field("directory.security_model"));
    assert_eq!(with("multidevs", json!("allow")), field("directory.multidevs"));
    assert_eq!(with("msize", json!("1G")), field("directory.msize"));
    assert_eq!(with("fmode", json!("0600")), field("directory.fmode"));
    assert_eq!(with("cache", json!("never")), field("directory.cache"));
    assert_eq!(with("migration_mode", json!("file-handles")), field("directory.migration_mode"));
}

#[test]
fn a_bad_field_of_a_directory_is_named() {
    let api = Api::new();
    let add = |change: Value| {
        let mut new = json!({"name": "x", "kind": "dir", "socket": "/x.sock"});
        for (key, value) in change.as_object().unwrap() {
            new[key] = value.clone();
        }
        api.refused(Method::POST, "/v1/exports", &new.to_string())
    };
    let with = |key: &str, value: Value| {
        let mut directory = json!({"path": "/srv"});
        directory[key] = value;
        add(json!({ "directory": directory }))
    };
    assert_eq!(add(json!({})), field("directory"));
    assert_eq!(add(json!({"directory": {}})), field("directory.path"));
    assert_eq!(add(json!({"directory": {"path": "srv"}})), field("directory.path"));
    assert_eq!(add(json!({"directory": {"path": "/srv"}, "queues": 65})), field("queues"));
    assert_eq!(add(json!({"directory": {"path": "/srv"}, "serial": "x"})), field("serial"));
    assert_eq!(add(json!({"directory": {"path": "/srv"}, "kind": "disk"})), field("directory"));
    assert_eq!(add(json!({"kind": "floppy"})), field("kind"));
    assert_eq!(with("cache", json!("mostly")), field("directory.cache"));
    assert_eq!(with("colour", json!(1)), field("directory.colour"));
    assert_eq!(with("delay", json!("1m")), field("directory.delay"));
    assert_eq!(with("descriptors_max", json!(1)), field("directory.descriptors_max"));
    assert_eq!(with("translate_uid", json!("map:0:1:1")), field("directory.translate_uid"));
}

#[test]
fn a_worker_lives_from_new_to_free_and_takes_rings_meanwhile() {
    let api = Api::new();
    let new = NewWorker { cpus: "1".parse().ok(), poll: Some(Poll::Off), numa_node: Some(0), cgroup: None };
    let worker: Worker = api.client.send(Method::POST, "/v1/exports/root/workers", &new).unwrap();
    assert_eq!((worker.id, worker.poll), (4, Poll::Off));
    let target = "/v1/exports/root/rings/0/worker";
    let ring: RingInfo = api.client.send(Method::PUT, target, &json!({"worker": 4})).unwrap();
    assert_eq!(ring.worker, Some(4));
    assert_eq!(api.refused(Method::DELETE, "/v1/workers/4", ""), code(409, "busy"));
    api.send(Method::PUT, target, &json!({"worker": 1})).unwrap();
    api.client.order(Method::DELETE, "/v1/workers/4").unwrap();
    assert_eq!(api.refused(Method::GET, "/v1/workers/4", ""), code(404, "no-such-worker"));
}

#[test]
fn every_refusal_has_its_status_and_code() {
    let api = Api::new();
    let refused = |method: Method, target: &str, body: &str| api.refused(method, target, body);
    let null = r#"{"name":"root","socket":"/s","storage":{"kind":"null","size":512}}"#;
    assert_eq!(refused(Method::POST, "/v1/exports", null), code(409, "export-exists"));
    assert_eq!(refused(Method::DELETE, "/v1/exports/root", ""), code(409, "connected"));
    assert_eq!(refused(Method::DELETE, "/v1/exports/none", ""), code(404, "no-such-export"));
    assert_eq!(refused(Method::DELETE, "/v1/workers/1", ""), code(409, "busy"));
    assert_eq!(refused(Method::DELETE, "/v1/workers/99", ""), code(404, "no-such-worker"));
    assert_eq!(refused(Method::GET, "/v1/exports/root/workers/1", ""), code(404, "no-such-worker"));
    assert_eq!(refused(Method::GET, "/v1/exports/none/workers", ""), code(404, "no-such-export"));
    assert_eq!(refused(Method::GET, "/v1/exports/root/rings/2", ""), code(404, "no-such-ring"));
    let attach = |ring: u32, worker: u32| {
        let target = format!("/v1/exports/root/rings/{ring}/worker");
        refused(Method::PUT, &target, &format!(r#"{{"worker":{worker}}}"#))
    };
    assert_eq!(attach(9, 1), code(404, "no-such-ring"));
    assert_eq!(attach(0, 2), code(404, "no-such-worker"), "worker 2 is private to another export");
    assert_eq!(attach(0, 3), code(409, "worker-dead"));
    let resize = r#"{"capacity_bytes":1024}"#;
    assert_eq!(refused(Method::PUT, "/v1/exports/data/capacity", resize), code(409, "unsupported"));
    api.send(Method::POST, "/v1/workers", &json!({})).unwrap();
    assert_eq!(refused(Method::POST, "/v1/workers", "{}"), code(409, "too-many-workers"));
    let sim = null.replace("null", "sim").replace("root", "x");
    assert_eq!(refused(Method::POST, "/v1/exports", &sim), code(500, "failed"), "a panic in the daemon");
    api.client.order(Method::POST, "/v1/shutdown").unwrap();
    assert!(api.served.fake.is_stopping());
    assert_eq!(refused(Method::POST, "/v1/shutdown", ""), code(503, "stopping"));
}

#[test]
fn messages_carry_what_the_reader_needs() {
    let api = Api::new();
    let message = |method, target: &str, body: Option<&str>| {
        let body = body.map(|body| body.as_bytes().to_vec());
        api.client.call(method, target, body).unwrap_err().to_string()
    };
    assert_eq!(
        message(Method::DELETE, "/v1/workers/1", None),
        "worker 1 still serves ring 0 of `root`, ring 1 of `root`: attach to another worker first (busy)"
    );
    assert_eq!(
        message(Method::GET, "/v1/exports/root/rings/2", None),
        "export `root` has no ring 2: its rings are 0 to 1 (no-such-ring)"
    );
    api.send(Method::POST, "/v1/workers", &json!({})).unwrap();
    let too_many = message(Method::POST, "/v1/workers", Some("{}"));
    assert!(too_many.contains("already runs 4 workers"), "{too_many}");
}

#[test]
fn a_bad_field_is_named() {
    let api = Api::new();
    let add = |change: Value| {
        let mut new = json!({"name": "x", "socket": "/x.sock", "storage": {"kind": "file", "path": "/x.img"}});
        for (key, value) in change.as_object().unwrap() {
            new[key] = value.clone();
        }
        api.refused(Method::POST, "/v1/exports", &new.to_string())
    };
    assert_eq!(add(json!({"queues": 0})), field("queues"));
    assert_eq!(add(json!({"queues": "many"})), field("queues"));
    assert_eq!(add(json!({"poll": "sometimes"})), field("poll"));
    assert_eq!(add(json!({"colour": 1})), field("colour"));
    assert_eq!(add(json!({"socket": "x.sock"})), field("socket"));
    assert_eq!(add(json!({"socket": null})), field("socket"));
    assert_eq!(add(json!({"socket": null, "socket_fd": 7})), field("socket_fd"));
    assert_eq!(add(json!({"socket_mode": "rw"})), field("socket_mode"));
    assert_eq!(add(json!({"workers": -1})), field("workers"));
    assert_eq!(add(json!({"storage": {"kind": "file", "path": "x.img"}})), field("storage.path"));
    assert_eq!(add(json!({"storage": {"kind": "file"}})), field("storage.path"));
    assert_eq!(add(json!({"storage": {"kind": "file", "path": "/missing.img"}})), field("storage.path"));
    assert_eq!(add(json!({"storage": {"kind": "null", "size": 1}})), field("storage.size"));
    assert_eq!(add(json!({"storage": {"kind": "null", "size": 512, "direct": true}})), field("storage.direct"));
    assert_eq!(add(json!({"storage": {"kind": "floppy"}})), field("storage.kind"));
    assert_eq!(add(json!({"storage": {"size": 512}})), field("storage.kind"));
    assert_eq!(add(json!({"storage": {"kind": "null", "size": "huge"}})), field("storage.size"));
    assert_eq!(add(json!({"storage": "null"})), field("storage"));
    assert_eq!(api.refused(Method::POST, "/v1/exports", "{}"), field("name"));
    assert_eq!(api.refused(Method::POST, "/v1/exports", "[]"), field("body"));
    assert_eq!(api.refused(Method::POST, "/v1/workers", r#"{"cpus":"3-1"}"#), field("cpus"));
    assert_eq!(api.refused(Method::POST, "/v1/workers", r#"{"numa_node":-1}"#), field("numa_node"));
    let target = "/v1/exports/root/rings/0/worker";
    assert_eq!(api.refused(Method::PUT, target, r#"{"worker":"one"}"#), field("worker"));
    assert_eq!(api.refused(Method::PUT, target, "{}"), field("worker"));
    assert_eq!(api.refused(Method::PATCH, "/v1/exports/root", r#"{"size":1}"#), field("size"));
}

#[test]
fn malformed_requests_are_refused() {
    let api = Api::new();
    for body in ["{", "{} {}", "nonsense", "\u{0}"] {
        assert_eq!(api.refused(Method::POST, "/v1/workers", body), code(400, "bad-request"), "{body}");
    }
    assert_eq!(api.refused(Method::POST, "/v1/workers", ""), code(400, "bad-request"));
    assert_eq!(api.refused(Method::GET, "/v1/workers/one", ""), code(400, "bad-request"));
    assert_eq!(api.refused(Method::GET, "/v1/exports/root/rings/65536", ""), code(400, "bad-request"));
    assert_eq!(api.refused(Method::DELETE, "/v1/exports/root?force=maybe", ""), code(400, "bad-request"));
    assert_eq!(api.refused(Method::DELETE, "/v1/exports/root?farce=true", ""), code(400, "bad-request"));
    let deep = "[".repeat(10_000);
    assert_eq!(api.refused(Method::POST, "/v1/workers", &deep).0, 422, "a list is no worker, however deep");
    let large = " ".repeat(70_000);
    assert_eq!(api.refused(Method::POST, "/v1/workers", &large), code(413, "too-large"));
    assert_eq!(api.refused(Method::GET, "/v2/info", ""), code(404, "no-such-route"));
    assert_eq!(api.refused(Method::DELETE, "/v1/info", ""), code(405, "method-not-allowed"));
    let strange = format!("/v1/exports/{}", segment("../../x y%/ü"));
    assert_eq!(api.refused(Method::GET, &strange, ""), code(404, "no-such-export"));
    api.client.get::<Info>("/v1/info").unwrap();
}

#[test]
fn what_is_not_http_disturbs_nobody() {
    let api = Api::new();
    let mut silent = UnixStream::connect(api.served.socket()).unwrap();
    let mut noisy = UnixStream::connect(api.served.socket()).unwrap();
    noisy.write_all(&[0xff; 4096]).unwrap();
    let mut answer = Vec::new();
    let _ = noisy.read_to_end(&mut answer);
    silent.write_all(b"GET /v1/inf").unwrap();
    api.client.get::<Info>("/v1/info").unwrap();
}

#[test]
fn the_document_is_served() {
    let api = Api::new();
    assert_eq!(api.client.text("/openapi.json").unwrap(), control::openapi_json());
}
