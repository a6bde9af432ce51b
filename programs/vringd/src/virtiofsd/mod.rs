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

use clap::Parser;

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

/// Whether the program was called as virtiofsd.
pub(crate) fn is_called() -> bool {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    called.as_deref().and_then(std::path::Path::file_name).is_some_and(|name| name == "virtiofsd")
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
