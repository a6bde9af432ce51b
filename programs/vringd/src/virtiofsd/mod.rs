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

use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

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

/// Whether the program was called as virtiofsd: by its name, or by its own without a subcommand and with an option of virtiofsd's, as
/// whoever resolves links starts it (Kata's Rust runtime).
pub(crate) fn is_called(words: impl IntoIterator<Item = OsString>, own: &clap::Command) -> bool {
    let mut words = words.into_iter();
    let called = words.next().map(PathBuf::from);
    if called.as_deref().and_then(Path::file_name).is_some_and(|name| name == "virtiofsd") {
        return true;
    }
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
    fn it_is_called_by_its_name_or_by_its_options() {
        let own = crate::command();
        let is_called = |line: &str| is_called(line.split(' ').map(OsString::from), &own);
        for line in
            ["/usr/libexec/vringd/virtiofsd", "virtiofsd --version", "vringd --socket-path /run/s --shared-dir /srv"]
        {
            assert!(is_called(line), "{line}");
        }
        for line in
            ["vringd --print-capabilities", "/usr/bin/vringd --socket-path=/run/s", "vringd --fd=3", "vringd -o xattr"]
        {
            assert!(is_called(line), "{line}");
        }
        for line in
            ["vringd", "vringd --help", "vringd -V", "vringd --log-level debug dir", "vringd disk --socket-path s"]
        {
            assert!(!is_called(line), "{line}");
        }
        for line in ["vringd --sokcet-path s", "vringd -", "vringd --", "vringd virtiofsd --fd=3"] {
            assert!(!is_called(line), "{line}");
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
