//! The command line of virtiofsd 1.14 in front of our own directories: for programs that know how to start virtiofsd.
//!
//! What virtiofsd has and we do not is refused by name. What differs on purpose: byte-range and whole-file locks are
//! real (virtiofsd keeps them in the guest), there are eight request queues instead of one, and a guest that breaks its ring
//! does not end the process.

mod args;
mod compat;
mod convert;
mod pid_file;

pub(crate) use args::Options;
pub(crate) use convert::{Launch, launch};
pub(crate) use pid_file::PidFile;

use crate::log;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::Path;

/// What `--version` says after the name: programs that start virtiofsd compare the first number.
pub(crate) const VERSION: &str = concat!("1.14.0 (vringd ", env!("CARGO_PKG_VERSION"), ")");

/// What we can do beyond the first virtiofsd, in the words of QEMU's docs/interop/vhost-user.json and of virtiofsd.
const FEATURES: [&str; 4] =
    ["migrate-precopy", "posix-acl-negotiation-mode", "security-label-negotiation-mode", "separate-options"];

/// Serve one directory over vhost-user, with the command line of virtiofsd.
#[derive(Debug, Parser)]
#[command(name = "virtiofsd", version = VERSION, args_override_self = true, arg_required_else_help = true)]
#[command(max_term_width = 120)]
pub(crate) struct Program {
    /// The options.
    #[command(flatten)]
    pub(crate) options: Options,
}

/// What virtiofsd logs when it listens, which Kata's Rust runtime waits for.
pub(crate) const LISTENS: &str = "Waiting for vhost-user socket connection...";

/// Options that virtiofsd itself does not have.
const BEYOND: [&str; 2] = ["control", "queues"];

/// Whether the program was called by the name.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    program.and_then(|path| Path::new(path).file_name()).is_some_and(|name| name == "virtiofsd")
}

/// Whether these words behind the program's own name are for virtiofsd: there is no subcommand, and one of its options in that place, as
/// whoever resolves links starts it (Kata's Rust runtime).
pub(crate) fn is_meant(words: &[OsString], own: &clap::Command) -> bool {
    let mut words = words.iter();
    let theirs = Program::command();
    while let Some(word) = words.next() {
        let word = word.to_string_lossy();
        // What both have comes before either.
        let Some(option) = find(own, &word) else {
            return find(&theirs, &word).is_some_and(|option| !BEYOND.contains(&option.get_id().as_str()));
        };
        if option.get_action().takes_values() && !word.contains('=') {
            words.next();
        }
    }
    false
}

/// The option that the word is, alone or with its value.
fn find<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    let long = word.strip_prefix("--").map(|long| long.split_once('=').map_or(long, |(name, _)| name));
    let short = word.strip_prefix('-').and_then(|word| word.chars().next());
    let is_it = |option: &&clap::Arg| match long {
        Some(long) => option.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
        None => short.is_some() && option.get_short() == short,
    };
    command.get_arguments().find(is_it)
}

/// What `RUST_LOG` says of virtiofsd, or else of all: it may be there for whoever has started it.
pub(crate) fn level(filter: &str) -> Option<String> {
    let filter = filter.to_ascii_lowercase();
    let of = |wanted| {
        let parts = filter.split(',').map(|part| match part.split_once('=') {
            Some((target, level)) => (Some(target), level),
            None => (None, part),
        });
        let said = parts.rev().find(|(target, level)| *target == wanted && log::is_filter(level));
        said.map(|(_, level)| level.to_owned())
    };
    of(Some("virtiofsd")).or_else(|| of(None))
}

/// The answer to `--print-capabilities`: one JSON object (QEMU's docs/interop/vhost-user.rst, "Backend program
/// conventions").
pub(crate) fn capabilities() -> String {
    let features: Vec<String> = FEATURES.iter().map(|feature| format!("    \"{feature}\"")).collect();
    format!("{{\n  \"type\": \"fs\",\n  \"features\": [\n{}\n  ]\n}}", features.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn it_is_called_by_its_name() {
        assert!(is_called(Some(&"/usr/libexec/vringd/virtiofsd".into())) && is_called(Some(&"virtiofsd".into())));
        assert!(!is_called(Some(&"/usr/bin/vringd".into())) && !is_called(None));
    }

    #[test]
    fn its_options_say_that_it_is_meant() {
        let own = crate::command();
        let is_meant = |line: &str| {
            let words: Vec<OsString> = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
            is_meant(&words, &own)
        };
        for line in [
            "--socket-path /run/s --shared-dir /srv",
            "--socket-path=/run/s",
            "--fd=3",
            "-o xattr",
            "--print-capabilities",
        ] {
            assert!(is_meant(line), "{line}");
        }
        for line in ["--log-level warn --socket-path /run/s", "--log-format=json --fd 3"] {
            assert!(is_meant(line), "{line}");
        }
        for line in
            ["", "--help", "-V", "--log-level", "--log-level debug dir", "disk --socket-path s", "virtiofsd --fd=3"]
        {
            assert!(!is_meant(line), "{line}");
        }
        for line in ["--sokcet-path s", "-", "--", "--control /run/c disk", "--queues 3", "--log-level=debug ctl"] {
            assert!(!is_meant(line), "{line}");
        }
    }

    #[test]
    fn of_a_filter_for_many_programs_only_what_is_for_this_one_counts() {
        for (filter, said) in [
            ("ERROR", Some("error")),
            ("virtiofsd=trace,warn", Some("trace")),
            ("warn,info", Some("info")),
            ("Off", Some("off")),
            ("virtiofsd=debug", Some("debug")),
            ("warn,virtiofsd=trace,other=off", Some("trace")),
            ("manager=debug", None),
            ("", None),
            ("manager", None),
            ("off", Some("off")),
        ] {
            assert_eq!(level(filter).as_deref(), said, "{filter}");
        }
    }

    #[test]
    fn the_description_for_libvirt_says_what_the_program_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../share/vhost-user/50-vringd.json");
        let described: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let said: Value = serde_json::from_str(&capabilities()).unwrap();
        assert_eq!(described["type"], said["type"]);
        assert_eq!(described["features"], said["features"]);
        let binary = described["binary"].as_str().unwrap();
        assert!(binary.starts_with('/') && binary.ends_with("/virtiofsd"), "{binary}: it is told by its name");
        assert!(described["description"].is_string());
    }
}
