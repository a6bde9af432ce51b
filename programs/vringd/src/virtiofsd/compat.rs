//! The `-o` options of the first virtiofsd (the one in C), which libvirt and others still write.

use super::Options;
use control::model::Span;
use control::model::{CachePolicy, Negotiation};
use sandbox::Mode;
use std::time::Duration;

/// What only `-o` can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compat {
    /// Locks of byte ranges hold between guests.
    pub(crate) posix_lock: bool,
    /// Locks of whole files hold between guests.
    pub(crate) flock: bool,
    /// How long names and attributes are valid in the guest, when the cache policy shall not say so.
    pub(crate) timeout: Option<Span>,
}

impl Default for Compat {
    fn default() -> Self {
        Compat { posix_lock: true, flock: true, timeout: None }
    }
}

impl Options {
    /// These options with what `-o` says put in, in its order.
    ///
    /// # Errors
    /// One line that names the option.
    pub(super) fn with_compat(mut self) -> Result<Options, String> {
        for list in std::mem::take(&mut self.compat_options) {
            // A rule of an xattrmap may hold anything, so whoever writes one with a comma needs --xattrmap.
            for option in list.split(',') {
                self.set_compat(option)?;
            }
        }
        Ok(self)
    }

    fn set_compat(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            Some((name, value)) => self.set_compat_value(name, value),
            None => self.set_compat_flag(option),
        }
    }

    fn set_compat_value(&mut self, name: &str, value: &str) -> Result<(), String> {
        let refuse = |right: &str| Err(format!("-o {name}: `{value}` is not known: use {right}"));
        match name {
            "source" => self.shared_dir = Some(value.into()),
            "xattrmap" => self.xattrmap = Some(value.to_owned()),
            "modcaps" => self.modcaps = Some(value.to_owned()),
            "cache" => {
                self.cache = match value {
                    "none" | "never" => CachePolicy::Never,
                    "metadata" => CachePolicy::Metadata,
                    "auto" => CachePolicy::Auto,
                    "always" => CachePolicy::Always,
                    _ => return refuse("none, metadata, auto or always"),
                }
            }
            "sandbox" => {
                self.sandbox = match value {
                    "namespace" => Mode::Namespace,
                    "chroot" => Mode::Chroot,
                    _ => return refuse("namespace or chroot"),
                }
            }
            "log_level" | "loglevel" => {
                self.log_level = match value {
                    "err" => "error".to_owned(),
                    "warn" | "info" | "debug" => value.to_owned(),
                    _ => return refuse("err, warn, info or debug"),
                }
            }
            "timeout" => {
                let seconds = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let Some(timeout) = seconds else { return refuse("a number of seconds") };
                self.compat.timeout = Some(Span(timeout));
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    fn set_compat_flag(&mut self, option: &str) -> Result<(), String> {
        match option {
            "xattr" => self.xattr = true,
            "no_xattr" => self.xattr = false,
            "readdirplus" => self.no_readdirplus = false,
            "no_readdirplus" => self.no_readdirplus = true,
            "writeback" => self.writeback = true,
            "no_writeback" => self.writeback = false,
            "allow_direct_io" => self.allow_direct_io = true,
            "no_allow_direct_io" => self.allow_direct_io = false,
            "announce_submounts" => self.no_announce_submounts = false,
            "no_announce_submounts" => self.no_announce_submounts = true,
            "killpriv_v2" => self.killpriv_v2 = true,
            "no_killpriv_v2" => self.killpriv_v2 = false,
            "posix_acl" => self.posix_acl = Negotiation::Always,
            "no_posix_acl" => self.posix_acl = Negotiation::Never,
            "security_label" => self.security_label = Negotiation::Always,
            "no_security_label" => self.security_label = Negotiation::Never,
            "posix_lock" => self.compat.posix_lock = true,
            "no_posix_lock" => self.compat.posix_lock = false,
            "flock" => self.compat.flock = true,
            "no_flock" => self.compat.flock = false,
            "debug" => self.compat_debug = true,
            _ => return Err(unknown(option)),
        }
        Ok(())
    }
}

fn unknown(option: &str) -> String {
    // What a person wrote is repeated in one line.
    let option: String = option.chars().take(64).collect();
    format!("-o {option}: is not supported: see --help for the options that replaced -o")
}
