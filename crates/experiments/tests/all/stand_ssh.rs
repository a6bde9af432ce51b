//! A guest of the person, reached by ssh: given its device, mounted, measured, and left as it was.
//!
//! The guest is this machine and its ssh is a script, as is the part of `mount` that knows virtio-fs: what is tried is what a
//! stand does to a guest, not ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::stand_support::{Bench, configuration, experiment, fio};
use experiments::experiment::{DropCaches, Medium, Place, ServerKind};
use experiments::stand::{SshSite, Stand, Trouble};
use guest::lab::Lab;

/// Names the directory of the scripts, in the process that has them in its path.
const SCRIPTS: &str = "VRINGD_TEST_SSH";

/// As ssh does: what is behind the target are the words of a command for the other side's shell.
const SSH: &str = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec sh -c \"$*\"\n";
/// Mounts the directory that the test says is served.
const MOUNT: &str = "#!/bin/sh\nif [ \"$2\" = virtiofs ]; then exec /bin/mount --bind \"$(cat \"$VRINGD_TEST_SSH/served\")\" \
                     \"$4\"; fi\nexec /bin/mount \"$@\"\n";

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the test `name` again in a process that finds the scripts first.
fn with_scripts(name: &str, test: fn(&Path)) {
    if let Some(scripts) = env::var_os(SCRIPTS) {
        return test(&PathBuf::from(scripts));
    }
    let scripts = tempfile::tempdir().unwrap();
    script(&scripts.path().join("ssh"), SSH);
    script(&scripts.path().join("mount"), MOUNT);
    // The guest has what a guest needs to have: a machine without fio lacks nothing else.
    let lab = Lab::locate().unwrap().search_path().unwrap();
    let path = format!("{}:{}", scripts.path().display(), lab.to_str().unwrap());
    let mut inner = Command::new(env::current_exe().unwrap());
    inner
        .args(["--exact", &format!("stand_ssh::{name}"), "--nocapture"])
        .env(SCRIPTS, scripts.path())
        .env("PATH", path);
    assert!(inner.status().unwrap().success());
}

fn mountpoints() -> Vec<String> {
    let entries = fs::read_dir("/run").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("vringd-bench-{}-", std::process::id()))).collect()
}

#[test]
fn a_guest_behind_ssh_is_left_as_it_was() {
    with_scripts("a_guest_behind_ssh_is_left_as_it_was", |scripts| {
        let mut bench = Bench::new();
        let attached = scripts.join("attached");
        bench.site.ssh = Some(SshSite {
            target: "somebody@somewhere".into(),
            attach: format!("test -S {{socket}} && echo {{tag}} >{}", attached.display()),
            detach: Some(format!("grep -q {{tag}} {0} && rm {0}", attached.display())),
        });
        let configuration = configuration(Place::Ssh, ServerKind::VringdDir, &[], (Medium::Disk, 1, 8));
        let mut experiment = experiment(&configuration);
        // This machine's caches are others' too.
        experiment.drop_caches = DropCaches::None;
        let served = bench.site.data.join("vringd-bench-data/1x8MiB/files");
        fs::write(scripts.join("served"), served.to_str().unwrap()).unwrap();
        for politely in [true, false] {
            let mut stand = Stand::start(&bench.site, &experiment, &configuration).unwrap();
            assert!(attached.exists());
            assert_eq!(mountpoints().len(), 1);
            let read = fio("read", 1, &[("rw", "randread"), ("bs", "4k"), ("ioengine", "psync")]);
            let figures = stand.measure(&read).unwrap();
            assert!(figures.requests > 0 && figures.guest_cpu_s.unwrap() > 0.0, "{figures:?}");
            if politely {
                stand.end().unwrap();
            } else {
                drop(stand);
            }
            assert!(!attached.exists());
            assert_eq!(mountpoints(), Vec::<String>::new());
            bench.assert_nothing_left();
        }
    });
}

#[test]
fn a_guest_that_cannot_be_mounted_in_is_left_as_it_was() {
    with_scripts("a_guest_that_cannot_be_mounted_in_is_left_as_it_was", |scripts| {
        let mut bench = Bench::new();
        let attached = scripts.join("attached");
        bench.site.ssh = Some(SshSite {
            target: "somebody@somewhere".into(),
            attach: format!("touch {}", attached.display()),
            detach: Some(format!("rm {}", attached.display())),
        });
        let mut configuration = configuration(Place::Ssh, ServerKind::VringdDir, &[], (Medium::Disk, 1, 1));
        fs::write(scripts.join("served"), "/nonexistent").unwrap();
        let trouble = Stand::start(&bench.site, &experiment(&configuration), &configuration).map(|_| ()).unwrap_err();
        let Trouble::Failed(reason) = trouble else { panic!("{trouble:?}") };
        assert!(reason.starts_with("the guest cannot use its device: mount"), "{reason}");
        // A window that guest, frontend or server lacks is a combination that is not supported.
        configuration.guest.mount = "dax=always".into();
        let trouble = Stand::start(&bench.site, &experiment(&configuration), &configuration).map(|_| ()).unwrap_err();
        assert!(matches!(trouble, Trouble::Unsupported(_)), "{trouble:?}");
        assert!(!attached.exists());
        assert_eq!(mountpoints(), Vec::<String>::new());
        bench.assert_nothing_left();
    });
}
