//! Reads what the kernel has for sandboxes.

use super::{Facts, Namespaces};
use crate::config::Config;
use control::model::SandboxInfo;
use control::model::config::ExportKind;
use std::process::{Command, Stdio};

/// Around what `config` serves. `held` was seen by a thread that entered it.
pub(in crate::doctor) fn read(config: &Config, held: Option<Result<SandboxInfo, String>>) -> Facts {
    let root = rustix::process::geteuid().is_root();
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    Facts {
        held,
        actions: actions.split_whitespace().map(str::to_owned).collect(),
        seccomp: config.sandbox.seccomp,
        stays_root: root && config.sandbox.user.is_none(),
        added_later: (config.control.is_some() || config.control_fd.is_some()) && !config.one_disk,
        directories: config.exports.iter().filter(|export| export.kind == ExportKind::Dir).count(),
        exports: config.exports.len(),
        namespaces: if root { Namespaces::default() } else { namespaces() },
    }
}

fn namespaces() -> Namespaces {
    let number = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok();
    Namespaces {
        tried: try_namespaces(),
        most: number("user/max_user_namespaces"),
        cloned: number("kernel/unprivileged_userns_clone"),
        restricted: number("kernel/apparmor_restrict_unprivileged_userns"),
    }
}

/// Tries those that `vringd dir` makes, in a process of another program: only a process of one thread can make them, and this one has more.
/// `None` where util-linux is not there.
fn try_namespaces() -> Option<Result<(), String>> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--pid", "--fork", "--mount", "--net", "true"]).stdin(Stdio::null());
    let output = unshare.output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let refused = || Err(said.lines().next().unwrap_or("unshare(1) has failed").to_owned());
    Some(if output.status.success() { Ok(()) } else { refused() })
}
