//! The units for systemd: well formed, and about this program.

use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "/usr/bin/vringd";

fn units() -> Vec<(PathBuf, String)> {
    read("dist/systemd")
}

fn read(directory: &str) -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory);
    let paths = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let mut units: Vec<_> = paths.map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect();
    units.sort();
    units
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Every value of a directive, in all units.
fn values<'a>(units: &'a [(PathBuf, String)], directive: &str) -> Vec<(&'a str, &'a str)> {
    let of = |(path, text): &'a (PathBuf, String)| {
        text.lines()
            .filter_map(|line| Some((name(path), line.strip_prefix(directive)?.strip_prefix('=')?)))
            .collect::<Vec<_>>()
    };
    units.iter().flat_map(of).collect()
}

#[test]
fn each_line_is_a_section_a_directive_or_a_remark() {
    let units = units();
    assert_eq!(
        units.iter().map(|(path, _)| name(path)).collect::<Vec<_>>(),
        ["vringd.service", "vringd.socket", "vringd@.service", "vringd@.socket"]
    );
    for (path, text) in &units {
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let section = line.starts_with('[') && line.ends_with(']');
            let directive = line.split_once('=').is_some_and(|(key, value)| {
                key.chars().all(|c| c.is_ascii_alphanumeric()) && !value.is_empty() && value.trim() == value
            });
            assert!(section || directive, "{}: {line}", path.display());
        }
    }
}

#[test]
fn what_they_start_is_what_the_program_has() {
    let units = units();
    for (unit, command) in values(&units, "ExecStart").into_iter().chain(values(&units, "ExecStartPre")) {
        let words: Vec<_> = command.split(' ').collect();
        assert_eq!(words[0], PROGRAM, "{unit}");
        // Each option is one of the command's own, for either kind of export where that is left open.
        let subcommands = if words[1] == "$VRINGD_ARGS" { &["disk", "dir"][..] } else { &words[1..2] };
        for subcommand in subcommands {
            let help = Command::new(env!("CARGO_BIN_EXE_vringd")).args([subcommand, "--help"]).output().unwrap();
            let help = String::from_utf8(help.stdout).unwrap();
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(
                    help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
                    "{unit}: {option}"
                );
            }
        }
    }
    // Both daemons say when they are ready and that they live, and nobody starts again what cannot start.
    assert_eq!(values(&units, "Type"), [("vringd.service", "notify"), ("vringd@.service", "notify")]);
    assert_eq!(values(&units, "WatchdogSec").len(), 2);
    assert!(values(&units, "RestartPreventExitStatus").iter().all(|(_, status)| *status == "2"));
    // The names by which sockets are told apart.
    assert_eq!(values(&units, "FileDescriptorName"), [("vringd.socket", "control"), ("vringd@.socket", "%i")]);
}

/// By systemd's own judgement, where it is there to ask.
#[test]
fn systemd_accepts_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    let scrape = read("share/prometheus").into_iter().filter(|(path, _)| name(path).starts_with("vringd-metrics"));
    let scrape = scrape.filter(|(path, _)| path.extension().is_some_and(|extension| extension != "sh"));
    for (path, text) in units().into_iter().chain(scrape) {
        // A template is verified as one of its instances, and the program must be there.
        let text = text.replace(PROGRAM, env!("CARGO_BIN_EXE_vringd"));
        std::fs::write(directory.path().join(name(&path)), &text).unwrap();
        let file = directory.path().join(name(&path).replace("@.", "@root."));
        std::fs::write(&file, text).unwrap();
        files.push(file);
    }
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&files).output();
    let Ok(verify) = verify else {
        eprintln!("systemd-analyze is not there: systemd was not asked");
        return;
    };
    let said = String::from_utf8_lossy(&verify.stderr);
    // It looks at the units that ours name as well, and has its own about those.
    let ours: Vec<_> = said.lines().filter(|line| line.contains("vringd")).collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// The configuration that is installed serves nothing, and all its examples are right.
#[test]
fn the_installed_configuration_is_one() {
    let text = include_str!("../../../../dist/config.toml");
    let example = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
    let whole: Vec<_> = text.lines().map(|line| example(line).unwrap_or_else(|| line.to_owned())).collect();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mut image = Command::new(env!("CARGO_BIN_EXE_vringd"));
    image.args(["image", "create", "--size", "1M"]).arg(at("vm1.qcow2"));
    let whole = whole.join("\n").replace("/var/lib/libvirt/images", directory.path().to_str().unwrap());
    let whole = whole.replace("/run/vringd", directory.path().to_str().unwrap());
    assert!(image.status().unwrap().success());
    for (name, text, wanted) in [("config.toml", text, ""), ("whole.toml", &whole, "export vm1: qcow2")] {
        std::fs::write(at(name), text).unwrap();
        let check =
            Command::new(env!("CARGO_BIN_EXE_vringd")).args(["serve", "--check"]).arg(at(name)).output().unwrap();
        let said = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert!(check.status.success() && said.contains(wanted), "{said}");
    }
}
