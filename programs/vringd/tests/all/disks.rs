//! Disks apart from exports, as an operator has them: in a configuration, live, through an upgrade and to the end.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory with a configuration, and the daemon that serves it. Killed when dropped.
struct Place {
    dir: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Place {
    /// `{}` in the configuration is the directory.
    fn new(config: &str) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display().to_string();
        std::fs::write(dir.path().join("vringd.toml"), config.replace("{}", &at)).unwrap();
        std::fs::File::create(dir.path().join("base.img")).unwrap().set_len(1 << 20).unwrap();
        Place { dir, daemon: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vringd"));
        command.args(words.split_whitespace()).current_dir(self.dir.path()).env_remove("VRINGD_LOG").output().unwrap()
    }

    fn serve(mut self) -> Place {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vringd"));
        command.args(["--log-level", "error", "serve", "vringd.toml"]).current_dir(self.dir.path());
        self.daemon = Some(command.env_remove("VRINGD_LOG").stderr(Stdio::inherit()).spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while !self.ctl("info").status.success() {
            assert!(Instant::now() < end, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }

    fn ctl(&self, words: &str) -> Output {
        self.run(&format!("ctl --control control.sock {words}"))
    }

    fn json(&self, words: &str) -> Value {
        let output = self.ctl(&format!("{words} --json"));
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, words: &str, part: &str) {
        let output = self.ctl(words);
        let line = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && line.contains(part), "{words}: {line}");
    }

    fn end(&mut self) {
        assert!(self.ctl("shutdown").status.success());
        let status = self.daemon.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

const SHARED: &str = "
control = '{}/control.sock'
workers = 1
[[disk]]
name = 'base'
storage = { kind = 'file', path = '{}/base.img', read_only = true }
[[export]]
name = 'a'
socket = '{}/a.sock'
disk = 'base'
[[export]]
name = 'b'
socket = '{}/b.sock'
disk = 'base'
[[export]]
name = 'own'
socket = '{}/own.sock'
storage = { kind = 'memory', size = '1M' }
";

#[test]
fn a_configuration_is_told_of_and_refused_in_one_line() {
    let output = Place::new(SHARED).run("serve --check vringd.toml");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("disk base: file\nexport a: disk base on "), "{said}");
    let other = "[[disk]]\nname = 'own'\nstorage = { kind = 'null', size = '1M' }\n[[export]]\nname = 'a'";
    for (from, to, part) in [
        ("read_only = true", "read_only = false", "export b: disk: disk `base` is writable and used by export `a`"),
        ("disk = 'base'", "disk = 'bass'", "export a: disk: there is no [[disk]] with the name `bass`"),
        (
            "disk = 'base'\n",
            "disk = 'base'\nstorage = { kind = 'null', size = '1M' }\n",
            "export a: disk: excludes `storage`",
        ),
        ("disk = 'base'\n", "", "export a: storage: is missing"),
        (
            "read_only = true }\n[[export]]\nname = 'a'\nsocket = '{}/a.sock'",
            "migratable = true }\n[[export]]\nname = 'a'\nlisten = 'unix:{}/a.nbd'",
            "export a: listen: is for NBD clients, who do not migrate",
        ),
        ("name = 'base'", "name = 'b s'", "disk b s: name: must be"),
        ("name = 'base'", "name = 'base'\nserial = 'x'", "line 6: disk[0].serial: unknown field"),
        ("kind = 'file'", "kind = 'tape'", "disk[0].storage: invalid field `kind`"),
        ("path = '{}/base.img'", "path = '{}/none.img'", "disk base: storage: "),
        ("path = '{}/base.img'", "path = ''", "disk base: storage.path: is empty"),
        ("[[export]]\nname = 'a'", other, "export own: storage: [[disk]] own is another one with its name"),
    ] {
        let place = Place::new(&SHARED.replacen(from, to, 1));
        let output = place.run("serve vringd.toml");
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(line.starts_with("vringd: vringd.toml") && line.lines().count() == 1, "{line}");
        assert!(line.contains(part), "`{part}` is not in: {line}");
        assert!(!place.path("a.sock").exists());
    }
}

#[test]
fn disks_and_their_users_go_along_in_an_upgrade() {
    let mut place = Place::new(SHARED).serve();
    place.json("disk add live --null 1M");
    place.json("export add w --socket w.sock --disk live");
    place.json("disk add idle --memory 2M --intent-log 1M --dirty-memory 1M");
    place.json("disk resize live 2M");
    let before = place.json("disk list");
    let names: Vec<&str> = before.as_array().unwrap().iter().map(|disk| disk["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["base", "idle", "live", "own"]);
    assert_eq!(before[0]["users"], serde_json::json!([{"export": "a"}, {"export": "b"}]));
    assert_eq!(before[3]["owner"], serde_json::json!({"export": "own"}));

    for upgrades in [1, 2] {
        let info = place.json("upgrade");
        assert_eq!(
            (&info["upgrades"], &info["takeover"]["lost"]),
            (&upgrades.into(), &serde_json::json!([])),
            "{info}"
        );
        assert_eq!(place.json("disk list"), before);
        for (export, disk) in [("a", "base".into()), ("b", "base".into()), ("w", "live".into()), ("own", Value::Null)] {
            assert_eq!(place.json(&format!("export show {export}"))["disk"], disk);
        }
    }
    // The image is locked without a gap, once for both, and until its disk is closed.
    let writable = "disk add other --image base.img";
    place.refused(writable, "base.img");
    place.refused("disk remove base", "disk `base` is used by export `a`, export `b`");
    place.refused("export add x --socket x.sock --disk live", "disk `live` is writable and used by export `w`");
    assert!(place.ctl("export remove a").status.success());
    assert!(place.ctl("export remove b").status.success());
    place.refused(writable, "base.img");
    assert!(place.ctl("disk remove base").status.success());
    place.json(writable);
    place.end();
    assert!(!place.path("own.sock").exists());
}

#[test]
fn all_devices_that_share_a_disk_go_along_in_an_upgrade_and_to_a_mirror() {
    let config = "control = '{}/control.sock'\nworkers = 1\n[[disk]]\nname = 'd'\nshared = true\n\
                  storage = { kind = 'file', path = '{}/base.img' }\n\
                  [[export]]\nname = 'a'\nkind = 'scsi'\nsocket = '{}/a.sock'\nluns = [{ lun = 0, disk = 'd' }]\n\
                  [[export]]\nname = 'b'\nkind = 'scsi'\nsocket = '{}/b.sock'\nluns = [{ lun = 0, disk = 'd' }]\n";
    let mut place = Place::new(config).serve();
    place.refused("export add c --socket c.sock --disk d", "disk `d` is shared, and only SCSI devices may have it");
    assert_eq!(place.json("upgrade")["takeover"]["lost"], serde_json::json!([]));
    let shown = place.json("disk show d");
    assert_eq!(
        (&shown["shared"], &shown["users"]),
        (&true.into(), &serde_json::json!([{"export": "a"}, {"export": "b"}]))
    );
    let of = |place: &Place, export: &str| {
        place.json(&format!("export show {export}"))["luns"][0]["storage"]["target"].as_str().unwrap().to_owned()
    };
    for export in ["a", "b"] {
        assert!(of(&place, export).ends_with("/base.img"));
    }
    assert!(place.ctl("disk mirror d moved.img --complete").status.success());
    for export in ["a", "b"] {
        assert!(of(&place, export).ends_with("/moved.img"), "{export} has what it had");
    }
    place.end();
}

#[test]
fn a_volume_apart_from_exports_is_closed_in_order() {
    let config = "control = '{}/control.sock'\nworkers = 1\n[[disk]]\nname = 'db'\n\
                  storage = { kind = 'volume', path = '{}/db.vol', memory_file = 'none' }\n";
    let place = Place::new(config);
    let made = place.run("volume create --size 16M --log-size 1M db.vol");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut place = place.serve();
    let disk = place.json("disk show db");
    assert_eq!((&disk["storage"]["kind"], &disk["users"]), (&"volume".into(), &serde_json::json!([])));
    assert!(disk["storage"]["volume"]["log_bytes"].as_u64().unwrap() > 0);
    place.json("export add a --socket a.sock --disk db");
    place.json("export sync a");
    assert!(place.ctl("export remove a").status.success());
    let checked = |place: &Place| String::from_utf8(place.run("volume check db.vol").stdout).unwrap();
    assert!(place.ctl("disk remove db").status.success());
    assert!(checked(&place).contains("sound, and closed in order"));
    place.json("disk add db --volume db.vol --memory-file none");
    place.end();
    assert!(checked(&place).contains("sound, and closed in order"));
}

#[test]
fn a_volume_whose_snapshot_is_refused_is_not_written_back_for_it() {
    let config = "control = '{}/control.sock'\nworkers = 1\n[[disk]]\nname = 'db'\n\
                  storage = { kind = 'volume', path = '{}/db.vol', memory_file = 'none' }\n\
                  [[export]]\nname = 'a'\nsocket = '{}/a.sock'\ndisk = 'db'\n";
    let place = Place::new(config);
    let made = place.run("volume create --size 16M --log-size 1M db.vol");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut place = place.serve();
    let sweeps = |place: &Place| place.json("disk show db")["storage"]["volume"]["sweeps"].as_u64().unwrap();
    place.refused("disk snapshot db=db.qcow2", "an external snapshot is made of a qcow2 image");
    assert_eq!(sweeps(&place), 0);
    // A write-back would have been seen, although there was nothing to write.
    place.json("export sync a");
    assert_eq!(sweeps(&place), 1);
    place.end();
}
