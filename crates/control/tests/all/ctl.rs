//! What `vringd ctl` prints. Expected outputs are in `tests/snapshots/`; `SNAPSHOTS_WRITE=1 cargo test -p control`
//! writes them anew.

use crate::common::{Served, ctl, ctl_words};
use serde_json::Value;
use std::path::Path;

pub(crate) fn matches_snapshot(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("SNAPSHOTS_WRITE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == text, "{name} has changed.\nexpected:\n{expected}\nprinted:\n{text}");
}

/// Runs the words, which succeed, and compares what they print.
pub(crate) fn prints(served: &Served, words: &str, snapshot: &str) {
    let (status, text) = ctl(served, words);
    assert_eq!(status, 0, "{words}: {text}");
    matches_snapshot(snapshot, &text);
}

#[test]
fn tables() {
    let served = Served::new();
    prints(&served, "info", "info.txt");
    prints(&served, "export list", "export-list.txt");
    prints(&served, "export show root", "export-show-root.txt");
    prints(&served, "export show data", "export-show-data.txt");
    prints(&served, "worker list", "worker-list.txt");
    prints(&served, "worker list --export data", "worker-list-data.txt");
    prints(&served, "ring list", "ring-list.txt");
    prints(&served, "ring get root 0", "ring-get.txt");
    prints(&served, "ring get data 0", "ring-get-broken.txt");
    prints(&served, "worker get 1", "worker-get.txt");
}

#[test]
fn json_is_what_the_api_says() {
    let served = Served::new();
    let client = control::client::Client::new(served.socket()).unwrap();
    for (words, target) in [
        ("--json info", "/v1/info"),
        ("export show root --json", "/v1/exports/root"),
        ("worker list --json", "/v1/workers"),
        ("worker get 2 --export data --json", "/v1/exports/data/workers/2"),
        ("ring list root --json", "/v1/exports/root/rings"),
        ("ring get root 1 --json", "/v1/exports/root/rings/1"),
    ] {
        let (status, text) = ctl(&served, words);
        assert_eq!(status, 0, "{words}: {text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), client.get::<Value>(target).unwrap(), "{words}");
    }
    prints(&served, "--json worker get 1", "worker-get.json");
    let (_, all) = ctl(&served, "--json ring list");
    let all: Value = serde_json::from_str(&all).unwrap();
    assert_eq!((all["root"].as_array().unwrap().len(), all["data"].as_array().unwrap().len()), (2, 1));
}

#[test]
fn the_disks_of_a_scsi_device_come_and_go() {
    let served = Served::new();
    for disk in ["system", "store", "spare"] {
        assert_eq!(ctl(&served, &format!("disk add {disk} --image /images/{disk}.img")).0, 0);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scsi.toml");
    let luns = "luns = [{ lun = 0, disk = 'system' }, { lun = '1:7', disk = 'store', serial = 'D7' }]";
    std::fs::write(&file, format!("name = 'vm1'\nkind = 'scsi'\nsocket = '/run/vm1.sock'\n{luns}\n")).unwrap();
    prints(&served, &format!("export add --file {}", file.display()), "export-add-scsi.txt");
    prints(&served, "lun add vm1 2 spare --serial S2", "lun-add.txt");
    prints(&served, "lun list", "lun-list.txt");
    prints(&served, "export show vm1", "export-show-scsi.txt");
    let (_, text) = ctl(&served, "lun list vm1 --json");
    let units: Value = serde_json::from_str(&text).unwrap();
    let client = control::client::Client::new(served.socket()).unwrap();
    assert_eq!(client.get::<Value>("/v1/exports/vm1/luns").unwrap(), units);
    let (_, all) = ctl(&served, "lun list --json");
    assert_eq!(serde_json::from_str::<Value>(&all).unwrap()["vm1"], units);
    assert_eq!(ctl(&served, "lun remove vm1 1:7"), (0, "removed LUN 1:7 of export vm1\n".into()));
    assert_eq!(ctl(&served, "lun remove vm1 0 --json"), (0, String::new()));
    for (words, message) in [
        ("lun remove vm1 9", "export `vm1` has no LUN 9 (no-such-lun)"),
        ("lun add none 1 spare", "there is no export `none`"),
        ("lun add root 1 spare", "export `root` cannot do this: it is no SCSI device"),
        ("lun add vm1 2 spare", "lun: is taken"),
        ("lun add vm1 3 none", "disk: there is no disk `none`: add it first"),
        ("lun list none", "there is no export `none`"),
    ] {
        let (status, text) = ctl(&served, words);
        assert!(status == 1 && text.starts_with(message), "{words}: {text}");
    }
    let (status, text) = ctl(&served, "lun add vm1 16384 spare");
    assert!(status == 2 && text.contains("`16384` is not a LUN: its number, 0 to 16383"), "{text}");
    let (status, text) = ctl(&served, &format!("lun add vm1 3 spare --serial {}", "x".repeat(37)));
    assert!(status == 1 && text.starts_with("serial: must be 1 to 36 printable ASCII"), "{text}");
}

#[test]
fn the_policy_is_shown_followed_changed_and_saved() {
    let served = Served::new();
    assert_eq!(ctl(&served, "worker new --poll fixed=20").0, 0);
    prints(&served, "policy", "policy.txt");
    prints(&served, "policy --follow --count 2", "policy-follow.txt");
    let (status, text) = ctl(&served, "policy --favour latency --json");
    let policy: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &policy["favour"]), (0, &"latency".into()));
    let client = control::client::Client::new(served.socket()).unwrap();
    assert_eq!(client.get::<Value>("/v1/policy").unwrap()["favour"], "latency");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record.json");
    let (status, text) = ctl(&served, &format!("policy --record {}", file.display()));
    assert_eq!((status, text), (0, format!("saved 0 samples and 0 decisions to {}\n", file.display())));
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(saved, client.get::<Value>("/v1/policy/record").unwrap());
    let (status, text) = ctl(&served, "policy --record /nonexistent/record.json");
    assert!(status == 2 && text.starts_with("cannot write /nonexistent/record.json: "), "{text}");
    let (status, text) = ctl(&served, "policy --record /dev/full");
    assert!(status == 1 && text.starts_with("cannot write /dev/full: ") && text.contains("no record"), "{text}");
}

#[test]
fn disks_are_added_used_resized_and_removed() {
    let served = Served::new();
    prints(&served, "disk list", "disk-list.txt");
    prints(&served, "disk add base --image /images/base.img --readonly --direct", "disk-add.txt");
    let (status, text) = ctl(&served, "export add a --socket /run/a.sock --disk base --serial A1 --json");
    let export: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &export["disk"], &export["storage"]["kind"]), (0, &"base".into(), &"file".into()), "{text}");
    assert_eq!(ctl(&served, "export add b --socket /run/b.sock --disk base").0, 0);
    prints(&served, "disk show base", "disk-show.txt");
    prints(&served, "disk resize base 20G", "disk-resize.txt");
    prints(&served, "export show a", "export-show-disk.txt");
    prints(&served, "disk add cluster --image /images/cluster.img --shared", "disk-add-shared.txt");
    let (status, text) = ctl(&served, "export add c --socket /c --disk cluster");
    assert!(
        status == 1 && text.starts_with("disk: disk `cluster` is shared, and only SCSI devices may have it"),
        "{text}"
    );
    let (_, text) = ctl(&served, "disk list");
    let row = text.lines().find(|line| line.starts_with("cluster")).unwrap();
    assert!(row.contains("writable, shared"), "{text}");
    assert_eq!(ctl(&served, "disk remove cluster").0, 0);
    let (_, shown) = ctl(&served, "disk show base --json");
    let client = control::client::Client::new(served.socket()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), client.get::<Value>("/v1/disks/base").unwrap());
    let (status, text) = ctl(&served, "disk add log --volume /v --sync always --json");
    assert_eq!(status, 0, "{text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["storage"]["volume"]["sync"], "always");
    for (words, message) in [
        ("disk remove base", "disk `base` is used by export `a`, export `b`: remove the exports that use it first"),
        ("disk show none", "there is no disk `none` (no-such-disk)"),
        ("disk add root --null 1G", "there is already a disk `root` (disk-exists)"),
        ("export add c --socket /c --disk none", "disk: there is no disk `none`: add it first"),
    ] {
        let (status, text) = ctl(&served, words);
        assert!(status == 1 && text.starts_with(message), "{words}: {text}");
    }
    for (words, message) in [
        (
            "export add c --socket /c --disk base --readonly",
            "--readonly: says how a storage is opened, and the disk is open",
        ),
        ("export add c --socket /c --disk base --threads 2", "--threads: says how"),
        ("export add c --socket /c --disk base --null 1G", "error: the argument '--disk <NAME>' cannot be used with"),
        ("export add --file x.toml --disk base", "--file: describes exports as a whole"),
        ("disk add c --rbd p/i@", "--rbd: `p/i@` is no image: write POOL/IMAGE"),
        ("disk add c", "storage: is missing: give --image, --volume, --qcow2, --rbd, --sg, --memory, --null or --sim"),
        ("disk add c --null 1G --direct", "--direct: has no meaning for storage null"),
        ("disk add c --null 1G --serial X", "error: unexpected argument '--serial'"),
        ("disk add c --null 1000", "storage.size: "),
        ("disk add a/b --null 1G", "name: must be"),
    ] {
        let (status, text) = ctl(&served, words);
        assert!(status == 2 && text.starts_with(message), "{words}: {status} {text}");
    }
    assert_eq!(ctl(&served, "export remove a"), (0, "removed export a\n".into()));
    assert_eq!(ctl(&served, "export remove b").0, 0);
    let reopened = ctl(&served, "disk reopen base");
    assert!(reopened.0 == 0 && reopened.1.contains(" opening "), "{reopened:?}");
    let broken = ctl(&served, "disk break-reservations base");
    assert_eq!(broken, (0, "nobody has reserved disk base any more\n".into()));
    assert_eq!(ctl(&served, "disk remove base"), (0, "removed disk base\n".into()));
    assert_eq!(ctl(&served, "disk remove log --json"), (0, String::new()));
    for export in ["root --force", "data"] {
        assert_eq!(ctl(&served, &format!("export remove {export}")).0, 0);
    }
    assert_eq!(ctl(&served, "disk list"), (0, "no disks\n".into()));
}

#[test]
fn changes() {
    let served = Served::new();
    prints(&served, "worker new --export root --cpus 1,0 --poll fixed=20 --numa-node 0", "worker-new.txt");
    prints(&served, "ring attach root 1 4", "ring-attach.txt");
    prints(&served, "export resize root 20G", "export-resize.txt");
    prints(&served, "export set root --placement one --execution pool=4 --poll off", "export-set.txt");
    prints(&served, "ring attach root 1 1", "ring-attach-back.txt");
    assert_eq!(ctl(&served, "worker free 4 --export root"), (0, "freed worker 4\n".into()));
    assert_eq!(ctl(&served, "export remove data"), (0, "removed export data\n".into()));
    assert_eq!(ctl(&served, "export remove root --force --json"), (0, String::new()));
    assert_eq!(ctl(&served, "export list"), (0, "no exports\n".into()));
    assert_eq!(ctl(&served, "ring list"), (0, "no rings\n".into()));
    assert_eq!(ctl(&served, "shutdown"), (0, "the daemon is stopping\n".into()));
    assert!(served.fake.is_stopping());
}

#[test]
fn limits_are_set_changed_and_lifted() {
    let served = Served::new();
    assert_eq!(ctl(&served, "group list"), (0, "no groups\n".into()));
    prints(&served, "group add gold --iops 10000 --bytes 1G --burst-bytes 2G", "group-add.txt");
    prints(&served, "limit set root --iops 5000 --burst-requests 100 --group gold", "limit-set.txt");
    prints(&served, "group set gold --iops 20000 --bytes 0", "group-set.txt");
    prints(&served, "limit list", "limit-list.txt");
    let (_, shown) = ctl(&served, "export show root");
    assert!(shown.contains("limits      5000 requests/s, burst 100 requests; group gold\n"), "{shown}");
    assert_eq!(ctl(&served, "group remove gold").0, 1);
    prints(&served, "limit set root --no-group --bytes 100M", "limit-set-bytes.txt");
    prints(&served, "limit lift root", "limit-lift.txt");
    assert_eq!(ctl(&served, "group remove gold"), (0, "removed group gold\n".into()));
    let added = "export add a --socket /a.sock --null 1G --limit-iops 100 --limit-bytes 4M --limit-group gold --json";
    let (status, text) = ctl(&served, added);
    let limits = &serde_json::from_str::<Value>(&text).unwrap()["limits"];
    assert_eq!((status, &limits["iops"], &limits["group"]), (0, &100.into(), &"gold".into()), "{text}");
    for wrong in [
        "limit set root",
        "limit set root --iops many",
        "limit set root --group a --no-group",
        "group set gold",
        "export add b --socket /b.sock --null 1G --limit-burst-requests 5",
        "export add --file x.toml --limit-iops 5",
    ] {
        let (status, text) = ctl(&served, wrong);
        assert_eq!(status, 2, "{wrong}: {text}");
    }
    for (words, message) in [
        ("limit set root --iops 2000000000", "limits.iops: must be 1 to 1000000000, or 0 for no limit, not 2000000000"),
        (
            "limit set root --burst-bytes 1M",
            "limits.burst_bytes: means nothing without a limit: set `bytes_per_second` as well",
        ),
        ("group show none", "there is no group `none`"),
    ] {
        let (status, text) = ctl(&served, words);
        assert!(status == 1 && text.starts_with(message), "{words}: {text}");
    }
}

#[test]
fn exports_are_added_from_options() {
    let served = Served::new();
    prints(
        &served,
        "export add a --socket /run/a.sock --image /images/a.img --direct --queues 4 --workers per-queue --serial A1",
        "export-add.txt",
    );
    let (status, text) = ctl(&served, "export add b --socket b.sock --null 1G --json");
    assert_eq!(status, 0, "{text}");
    let socket = serde_json::from_str::<Value>(&text).unwrap()["socket"].as_str().unwrap().to_owned();
    assert!(Path::new(&socket).is_absolute() && socket.ends_with("/b.sock"), "{socket}");
    for wrong in [
        "export add",
        "export add c",
        "export add c --socket /s --direct --null 1G",
        "export add c --socket /s --hugepages --image /x",
        "export add c --socket /s --null 1G --memory 1G",
        "export add c --socket /s --null many",
        "export add c --socket /s --null 1G --file x.toml",
        "export add --file x.toml --queues 3",
    ] {
        let (status, text) = ctl(&served, wrong);
        assert_eq!(status, 2, "{wrong}: {text}");
        assert!(text.starts_with("error: ") || text.starts_with("--"), "{wrong}: {text}");
    }
    let none = "storage: is missing: give --image, --volume, --qcow2, --rbd, --sg, --memory, --null or --sim";
    assert_eq!(ctl(&served, "export add c --socket /s"), (2, none.into()));
    let zero = "queues: must be 1 to 256, not 0";
    assert_eq!(ctl(&served, "export add c --socket /s --null 1G --queues 0"), (2, zero.into()));
}

#[test]
fn volumes_are_added_shown_and_changed() {
    let served = Served::new();
    prints(
        &served,
        "export add v --socket /run/v.sock --volume /srv/v.vol --log /dev/log --sync always --dirty-memory 64M",
        "export-add-volume.txt",
    );
    prints(&served, "export show v", "export-show-volume.txt");
    let (status, text) = ctl(&served, "export set v --sync disabled --json");
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &shown["storage"]["volume"]["sync"]), (0, &"disabled".into()), "{text}");
    assert_eq!(ctl(&served, "export sync v"), (0, "v: written back; 0 has been written since\n".into()));
    let (status, text) =
        ctl(&served, "export add n --socket /n.sock --null 1G --intent-log 16M --sync disabled --json");
    let shown: Value = serde_json::from_str(&text).unwrap();
    let volume = &shown["storage"]["volume"];
    assert_eq!((status, &volume["sync"], &volume["log_bytes"]), (0, &"disabled".into(), &(16 << 20).into()), "{text}");
    let (_, text) = ctl(&served, "export show root");
    assert!(!text.contains("dirty memory"), "{text}");

    let (status, text) = ctl(&served, "top --interval 0.1");
    let lines: Vec<&str> = text.lines().collect();
    let place = lines.iter().position(|line| line.starts_with("VOLUME")).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = lines[place + 1].split_whitespace().collect();
    assert_eq!((status, &words[..4]), (0, &["v", "disabled", "0", "-"][..]), "{text}");

    for (words, message) in [
        ("export set root --sync always", "export `root` cannot do this: it has no intent log (unsupported)"),
        ("export sync root", "export `root` cannot do this: it has no intent log (unsupported)"),
    ] {
        assert_eq!(ctl(&served, words), (1, message.into()));
    }
    for (words, message) in [
        (
            "export add c --socket /s --null 1G --sync always",
            "--sync: means nothing without a log: give --intent-log as well",
        ),
        ("export add c --socket /s --null 1G --dirty-memory 4M", "--dirty-memory: means nothing without a log"),
        ("export add c --socket /s --null 1G --intent-log 4K", "storage.intent_log.size: must be 1M to 1T"),
        ("export add c --socket /s --volume /v --dirty-memory 4K", "storage.dirty_memory: must be 1M to 64G, not 4K"),
    ] {
        let (status, text) = ctl(&served, words);
        assert!(status == 2 && text.starts_with(message), "{words}: {text}");
    }
    for wrong in [
        "export add c --socket /s --volume /v --image /i",
        "export add c --socket /s --volume /v --read-only",
        "export add c --socket /s --volume /v --intent-log 4M",
        "export add c --socket /s --image /i --log /l",
        "export add c --socket /s --image /i --sync always",
        "export add c --socket /s --volume /v --direct --no-direct",
        "export set v --sync often",
        "export sync",
    ] {
        let (status, text) = ctl(&served, wrong);
        assert_eq!(status, 2, "{wrong}: {text}");
        assert!(text.starts_with("error: ") || text.contains("has no meaning for storage"), "{wrong}: {text}");
    }
}

#[test]
fn directories_are_added_from_options() {
    let served = Served::new();
    prints(
        &served,
        "export add-dir home --socket /run/home.sock --cache always --queues 2 --read-only --posix-acl \
         --migration-on-error guest-error --migration-verify-handles /srv/home",
        "export-add-dir.txt",
    );
    prints(&served, "export show home", "export-show-dir.txt");
    let (status, text) = ctl(&served, "export add-dir rel --socket rel.sock srv --json");
    assert_eq!(status, 0, "{text}");
    let path = serde_json::from_str::<Value>(&text).unwrap()["directory"]["path"].as_str().unwrap().to_owned();
    assert!(Path::new(&path).is_absolute() && path.ends_with("/srv"), "{path}");
    for wrong in [
        "export add-dir c",
        "export add-dir c /srv",
        "export add-dir c --socket /s",
        "export add-dir c --socket /s /srv --cache mostly",
        "export add-dir c --socket /s /srv --migration-mode inodes",
        "export add-dir c --socket /s /srv --migration-on-error ignore",
        "export add-dir c --socket /s /srv --no-xattr --posix-acl",
        "export add-dir c --socket /s /srv --image /x.img",
    ] {
        let (status, text) = ctl(&served, wrong);
        assert_eq!(status, 2, "{wrong}: {text}");
        assert!(text.starts_with("error: "), "{wrong}: {text}");
    }
    let many = "queues: must be 1 to 64, not 65";
    assert_eq!(ctl(&served, "export add-dir c --socket /s /srv --queues 65"), (2, many.into()));
}

#[test]
fn disks_over_nbd_are_added_from_options() {
    let served = Served::new();
    let (status, text) = ctl(&served, "export add n --listen tcp::10809 --queues 300 --null 1M");
    assert_eq!(status, 0, "{text}");
    let (_, text) = ctl(&served, "export show n");
    assert!(text.contains("tcp:127.0.0.1:10809"), "{text}");
    for (wrong, line) in [
        ("--listen tcp:1 --serial s", "serial: is for vhost-user: NBD clients see the export's name"),
        ("--listen tcp:1 --queues 1025", "queues: must be 1 to 1024, not 1025"),
        ("--listen tcp:1 --socket-mode 0660", "socket_mode: only goes with a unix socket: leave it out"),
    ] {
        assert_eq!(ctl(&served, &format!("export add c {wrong} --null 1M")), (2, line.into()));
    }
    for wrong in ["--null 1M", "--listen tcp:1 --socket /s --null 1M", "--listen nowhere --null 1M"] {
        let (status, text) = ctl(&served, &format!("export add c {wrong}"));
        assert!(status == 2 && text.starts_with("error: "), "{wrong}: {status} {text}");
    }
}

#[test]
fn directories_over_9p_are_added_from_options() {
    let served = Served::new();
    prints(
        &served,
        "export add-dir p9 --protocol 9p --listen tcp::5640 --queues 1 --msize 512K --multidevs forbid \
         --security-model mapped-xattr --fmode 0640 --dmode 0750 /srv/p9",
        "export-add-dir-9p.txt",
    );
    prints(&served, "export show p9", "export-show-dir-9p.txt");
    let (status, text) = ctl(&served, "top --interval 0.1");
    assert_eq!(status, 0, "{text}");
    let line = text.lines().find(|line| line.starts_with("p9 ") && line.contains("9P2000.L")).unwrap_or_default();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["p9", "9P2000.L", "500K", "2", "130", "12", "1"],
        "{text}"
    );
    for wrong in [
        "export add-dir c --protocol 9p /srv",
        "export add-dir c --protocol 9p --socket /s --listen tcp:1 /srv",
        "export add-dir c --protocol nfs --socket /s /srv",
        "export add-dir c --protocol 9p --listen nowhere /srv",
        "export add-dir c --protocol 9p --socket /s --multidevs allow /srv",
        "export add-dir c --protocol 9p --socket /s --security-model mapped /srv",
        "export add-dir c --protocol 9p --socket /s --msize big /srv",
        "export add-dir c --protocol 9p --socket /s --fmode 0999 /srv",
    ] {
        let (status, text) = ctl(&served, wrong);
        assert_eq!(status, 2, "{wrong}: {text}");
        assert!(text.starts_with("error: "), "{wrong}: {text}");
    }
    for (wrong, line) in [
        ("--socket /s --msize 512K", "directory.msize: is for 9p: set `protocol` to 9p, or leave it out"),
        ("--listen tcp:1", "listen: is for disks and for directories over 9p (`protocol = \"9p\"`): give `socket`"),
        ("--protocol 9p --socket /s --cache always", "directory.cache: means nothing for 9p: leave it out"),
        ("--protocol 9p --socket /s --msize 2M", "directory.msize: must be 4K to 1M, not 2M"),
        (
            "--protocol 9p --socket /s --fmode 0600",
            "directory.fmode: only goes with `security_model` mapped-xattr or mapped-file: leave it out",
        ),
        ("--protocol 9p --listen tcp:1 --queue-size 64", "queue_size: is for vhost-user: a stream has no descriptors"),
    ] {
        assert_eq!(ctl(&served, &format!("export add-dir c {wrong} /srv")), (2, line.into()));
    }
}

#[test]
fn exports_are_added_from_files() {
    let served = Served::new();
    let file = |name: &str, text: &str| {
        let path = served.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let add = |path: &str| ctl(&served, &format!("export add --file {path}"));
    let one = file("one.toml", "name = 'one'\nsocket = '/one.sock'\nstorage = { kind = 'null', size = '1G' }\n");
    assert_eq!(add(&one).0, 0);
    let two = "[[export]]\nname = 'two'\nsocket = '/2.sock'\nstorage = { kind = 'null', size = '1G' }\n\
               [[export]]\nname = 'three'\nsocket = '/3.sock'\nstorage = { kind = 'memory', size = '1M' }\n";
    let two = file("two.toml", two);
    let (status, text) = add(&two);
    assert_eq!((status, text.lines().count()), (0, 3), "{text}");
    let json = file("j.json", r#"{"name":"j","socket":"/j.sock","storage":{"kind":"null","size":"1G"}}"#);
    assert_eq!(add(&json).0, 0);

    let (status, text) = add(&file("typo.toml", "name = 'x'\nsoket = '/x.sock'\n"));
    assert_eq!(status, 2);
    assert!(text.contains("typo.toml: ") && text.contains("unknown field `soket`"), "{text}");
    let (status, text) =
        add(&file("q.toml", &std::fs::read_to_string(&one).unwrap().replace("name", "queues = 0\nname")));
    assert_eq!(status, 2);
    assert!(text.ends_with("q.toml: export `one`: queues: must be 1 to 256, not 0"), "{text}");
    let (status, text) = add("/nowhere/x.toml");
    assert_eq!(status, 2);
    assert!(text.starts_with("cannot read /nowhere/x.toml: "), "{text}");
    let half = std::fs::read_to_string(&two).unwrap().replacen("two", "four", 1);
    let (status, text) = add(&file("half.toml", &half));
    assert_eq!(status, 1);
    assert!(text.starts_with("three was refused after 1 of 2 exports were added: "), "{text}");
}

#[test]
fn the_daemons_refusals_are_one_line_and_status_1() {
    let served = Served::new();
    for (words, code) in [
        ("export show none", "(no-such-export)"),
        ("export remove root", "(connected)"),
        ("export resize data 2G", "(unsupported)"),
        ("worker free 1", "(busy)"),
        ("worker free 1 --export root", "(no-such-worker)"),
        ("ring attach root 7 1", "(no-such-ring)"),
        ("ring attach root 0 3", "(worker-dead)"),
        ("export add root --socket /s --null 1G", "(export-exists)"),
    ] {
        let (status, text) = ctl(&served, words);
        assert_eq!(status, 1, "{words}: {text}");
        assert!(text.ends_with(code) && !text.contains('\n'), "{words}: {text}");
    }
    let (status, text) = ctl_words(&served.socket(), &["export", "show", "../info?x=1"]);
    assert_eq!((status, text.as_str()), (1, "there is no export `../info?x=1` (no-such-export)"));
}

#[test]
fn wrong_words_are_status_2() {
    let served = Served::new();
    for words in
        ["", "dance", "export set root", "export set root --poll often", "export resize root big", "top --interval 0"]
    {
        let (status, text) = ctl(&served, words);
        assert_eq!(status, 2, "{words}: {text}");
    }
    let (_, text) = ctl(&served, "export set root --poll often");
    assert!(text.contains("`often` is not a poll window: off, fixed=US"), "{text}");
}

#[test]
fn an_absent_daemon_is_one_line_with_the_fix_and_status_2() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    for words in [&["info"][..], &["top"], &["export", "remove", "x"], &["metrics"]] {
        let (status, text) = ctl_words(&socket, words);
        assert_eq!(status, 2, "{words:?}: {text}");
        let start = format!("no daemon answers on control socket {} (", socket.display());
        assert!(text.starts_with(&start) && !text.contains('\n'), "{text}");
        assert!(text.ends_with("start vringd, or name its socket with --control"), "{text}");
    }
}

#[test]
fn something_else_on_the_socket_is_said_so() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let other = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
        // Who hangs up with a request unread takes the answer back.
        let _ = stream.read(&mut [0; 4096]);
    });
    let (status, text) = ctl_words(&socket, &["info"]);
    other.join().unwrap();
    assert_eq!(status, 2);
    assert!(text.contains("is not a vringd of this version") && !text.contains('\n'), "{text}");
}

#[test]
fn metrics_are_passed_through() {
    let served = Served::new();
    let (status, text) = ctl(&served, "metrics");
    assert_eq!(status, 0);
    assert!(text.ends_with("# EOF\n") && text.contains("vringd_ring_kicks_total"), "{text}");
}

#[test]
fn top_shows_rates_once_when_nobody_watches() {
    let served = Served::new();
    let (status, text) = ctl(&served, "top --interval 0.2");
    assert_eq!(status, 0, "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("EXPORT") && lines[0].contains("IOPS"), "{text}");
    let words: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(words[..4], ["root", "0", "running", "1"], "{text}");
    // The fake does 100 requests between two looks.
    let iops: f64 = words[4].parse().unwrap();
    assert!(iops > 0.0 && iops <= 500.0, "{text}");
    assert_eq!(words[10], "35.0", "the median of this interval, not of all time: {text}");

    let (status, text) = ctl(&served, "top --interval 0.1 --count 2 --json");
    assert_eq!((status, text.lines().count()), (0, 2), "{text}");
    for line in text.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let requests = sample["rings"][0]["requests_per_second"].as_f64().unwrap();
        let interval = sample["interval_seconds"].as_f64().unwrap();
        assert!((requests * interval - 100.0).abs() < 1e-6, "{line}");
        assert_eq!(sample["workers"].as_array().unwrap().len(), 3);
    }
}
