//! The sandbox that a daemon of this configuration would get, and why not a stricter one.

pub(super) mod read;

use super::finding::{About, Area, Finding, Level};
use control::model::SandboxInfo;

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// What holds a thread that entered all but the list of system calls; or the refusal. `None`: it did not come back.
    pub(super) held: Option<Result<SandboxInfo, String>>,
    /// Actions that the kernel has for system calls (`/proc/sys/kernel/seccomp/actions_avail`); none without CONFIG_SECCOMP_FILTER.
    pub(super) actions: Vec<String>,
    /// What is to become of a forbidden system call, if the configuration says it.
    pub(super) seccomp: Option<::sandbox::Seccomp>,
    /// Root starts it, and it is to become nobody else.
    pub(super) stays_root: bool,
    /// Exports may be added while it runs.
    pub(super) added_later: bool,
    /// Directories beside other exports: all share one sandbox.
    pub(super) directories: usize,
    pub(super) exports: usize,
    /// What a user without rights meets who makes namespaces, which `vringd dir` does.
    pub(super) namespaces: Namespaces,
}

/// User namespaces.
#[derive(Clone, Debug, Default)]
pub(super) struct Namespaces {
    /// They were tried, by unshare(1): whether they can be had. Root needs none.
    pub(super) tried: Option<Result<(), String>>,
    /// `user.max_user_namespaces`.
    pub(super) most: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, of Debian's older kernels: 0 for root alone.
    pub(super) cloned: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`: 1 for programs with a profile alone.
    pub(super) restricted: Option<u64>,
}

/// What is wrong with it.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let machine = About::machine(Area::Sandbox);
    let mut found = Vec::new();
    match &facts.held {
        Some(Ok(held)) => {
            found.push(paths(facts, held));
            found.push(rights(facts, held));
        }
        None => {}
        Some(Err(refusal)) => {
            let cost = "`vringd serve` does not start: a sandbox that was asked for and cannot be had is an error";
            found.push(machine.costs(Level::Fails, "sandbox", refusal, cost));
        }
    }
    found.push(calls(facts));
    if facts.directories > 0 && facts.exports > 1 {
        let seen = format!(
            "{} of {} exports are directories, and share the daemon's sandbox",
            facts.directories, facts.exports
        );
        let cost = "whoever breaks into the daemon by one export reaches the files of all";
        found.push(
            machine
                .costs(Level::Note, "shared", seen, cost)
                .fix("vringd dir --socket SOCKET DIR    # a daemon of its own for each"),
        );
    }
    found.extend(namespaces(&facts.namespaces));
    found
}

fn paths(facts: &Facts, held: &SandboxInfo) -> Finding {
    let machine = About::machine(Area::Sandbox);
    match (&held.landlock, held.landlock_off.as_deref().unwrap_or_default()) {
        (Some(landlock), _) if landlock.complete => {
            machine.good("landlock", format_args!("Landlock (ABI {}) confines it to what it serves", landlock.abi))
        }
        (Some(landlock), _) => {
            let seen = format!("this kernel knows a part of Landlock (ABI {})", landlock.abi);
            let cost =
                "what it does not know stays allowed: TCP before Linux 6.7, signals and abstract sockets before 6.12";
            machine.costs(Level::Note, "landlock", seen, cost).fix("use Linux 6.12 or newer")
        }
        (None, why) if facts.added_later && why.contains("`allow`") => {
            let seen = format!("no Landlock: {why}");
            let cost = "any file that its user may open is within reach of whoever breaks into it";
            machine
                .costs(Level::Note, "landlock", seen, cost)
                .fix("allow = [\"/var/lib/libvirt/images\", \"/run/vringd\"]    # in [sandbox]: where all that is added lies")
        }
        (None, why) => {
            let level = if why == "it is turned off" { Level::Note } else { Level::Degraded };
            let fix = why.rsplit(": ").next().unwrap_or(why).to_owned();
            let fix = if level == Level::Note { "landlock = \"auto\"    # in [sandbox]".to_owned() } else { fix };
            let cost = "any file that its user may open is within reach of whoever breaks into it";
            machine.costs(level, "landlock", format_args!("no Landlock: {why}"), cost).fix(fix)
        }
    }
}

fn rights(facts: &Facts, held: &SandboxInfo) -> Finding {
    let machine = About::machine(Area::Sandbox);
    let keeps = if held.capabilities.is_empty() { "no capability".to_owned() } else { held.capabilities.join(" ") };
    let seen = format!("it serves as user {}:{} with {keeps}", held.uid, held.gid);
    if facts.stays_root {
        let cost = "whoever breaks into it talks to every service that trusts root over a unix socket";
        return machine.costs(Level::Note, "user", seen, cost).fix("user = \"USER\"    # in [sandbox], or --user");
    }
    machine.good("user", seen)
}

fn calls(facts: &Facts) -> Finding {
    use ::sandbox::Seccomp;

    let machine = About::machine(Area::Sandbox);
    let wanted = facts.seccomp.unwrap_or_default();
    let needs: &[&str] = match wanted {
        Seccomp::None => {
            let cost = "whoever breaks into it may make any system call";
            let found = machine.costs(Level::Note, "seccomp", "system calls are not filtered: `seccomp` is none", cost);
            return found.fix("seccomp = \"kill\"    # in [sandbox]");
        }
        Seccomp::Kill => &["kill_process", "errno"],
        Seccomp::Trap => &["trap", "errno"],
        Seccomp::Log => &["log"],
    };
    let missing: Vec<_> =
        needs.iter().copied().filter(|need| !facts.actions.iter().any(|action| action == need)).collect();
    if missing.is_empty() {
        return machine.good("seccomp", format_args!("system calls are filtered ({wanted})"));
    }
    let seen = format!("this kernel cannot filter system calls as `{wanted}` has it: no {}", missing.join(", "));
    let fix = "use a kernel with CONFIG_SECCOMP_FILTER, or seccomp = \"none\"";
    match facts.seccomp {
        Some(_) => machine.costs(Level::Fails, "seccomp", seen, "`vringd serve` does not start: it was asked for"),
        None => machine.costs(Level::Degraded, "seccomp", seen, "whoever breaks into it may make any system call"),
    }
    .fix(fix)
}

fn namespaces(facts: &Namespaces) -> Option<Finding> {
    let machine = About::machine(Area::Sandbox);
    let refused = match facts.tried.as_ref()? {
        Ok(()) => {
            return Some(
                machine.good("namespaces", "user namespaces can be made: `vringd dir` isolates itself without root"),
            );
        }
        Err(refused) => refused,
    };
    let cost = "`vringd dir` without root needs `--sandbox none`: names are confined by the tree alone";
    let found = |why: &str| {
        machine.costs(Level::Note, "namespaces", format!("user namespaces cannot be made: {refused}{why}"), cost)
    };
    Some(match (facts.most, facts.cloned, facts.restricted) {
        (Some(0), ..) => found(" (user.max_user_namespaces is 0)").fix("sysctl user.max_user_namespaces=15000"),
        (_, Some(0), _) => {
            found(" (kernel.unprivileged_userns_clone is 0)").fix("sysctl kernel.unprivileged_userns_clone=1")
        }
        (_, _, Some(1..)) => found(" (kernel.apparmor_restrict_unprivileged_userns is set)")
            .fix("sysctl kernel.apparmor_restrict_unprivileged_userns=0    # or an AppArmor profile with `userns,`"),
        _ => found(""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::model::LandlockInfo;

    fn facts() -> Facts {
        let landlock = Some(LandlockInfo { abi: 6, complete: true, paths: Vec::new() });
        let held = SandboxInfo { landlock, uid: 1000, ..SandboxInfo::default() };
        Facts {
            held: Some(Ok(held)),
            actions: ["kill_process", "trap", "errno", "log"].map(str::to_owned).to_vec(),
            seccomp: None,
            stays_root: false,
            added_later: false,
            directories: 0,
            exports: 1,
            namespaces: Namespaces::default(),
        }
    }

    fn of(facts: &Facts, check: &str) -> Finding {
        findings(facts).into_iter().find(|finding| finding.check == check).unwrap()
    }

    fn off(why: &str, added_later: bool) -> Facts {
        let held = SandboxInfo { landlock_off: Some(why.to_owned()), ..SandboxInfo::default() };
        Facts { held: Some(Ok(held)), added_later, ..facts() }
    }

    #[test]
    fn a_whole_sandbox_is_good() {
        assert!(findings(&facts()).iter().all(|finding| finding.level == Level::Good));
    }

    #[test]
    fn why_there_is_no_landlock_decides_what_to_do() {
        let named = off("exports may be added from anywhere: name their directories by `allow`", true);
        assert!(of(&named, "landlock").fix.unwrap().contains("allow = ["));
        let missing = of(&off("this kernel has none: add landlock to the kernel's lsm= parameter", false), "landlock");
        assert_eq!(
            (missing.level, missing.fix.as_deref()),
            (Level::Degraded, Some("add landlock to the kernel's lsm= parameter"))
        );
        assert_eq!(of(&off("it is turned off", false), "landlock").level, Level::Note);
        let refused = Facts { held: Some(Err("sandbox.landlock: this kernel has none".into())), ..facts() };
        assert_eq!(of(&refused, "sandbox").level, Level::Fails);
    }

    #[test]
    fn a_list_that_was_asked_for_and_cannot_be_had_fails() {
        let without = Facts { actions: Vec::new(), ..facts() };
        assert_eq!(of(&without, "seccomp").level, Level::Degraded);
        let asked = Facts { seccomp: Some(::sandbox::Seccomp::Kill), ..without.clone() };
        assert_eq!(of(&asked, "seccomp").level, Level::Fails);
        let none = Facts { seccomp: Some(::sandbox::Seccomp::None), ..without };
        assert_eq!(of(&none, "seccomp").level, Level::Note);
    }

    #[test]
    fn what_forbids_namespaces_is_named() {
        let fix = |namespaces| of(&Facts { namespaces, ..facts() }, "namespaces").fix.unwrap_or_default();
        let refused = Namespaces { tried: Some(Err("no".into())), most: Some(9), ..Namespaces::default() };
        assert!(fix(Namespaces { most: Some(0), ..refused.clone() }).contains("max_user_namespaces"));
        assert!(fix(Namespaces { cloned: Some(0), ..refused.clone() }).contains("unprivileged_userns_clone"));
        assert!(fix(Namespaces { restricted: Some(1), ..refused.clone() }).contains("apparmor"));
        assert_eq!(fix(refused), "");
        assert!(findings(&facts()).iter().all(|finding| finding.check != "namespaces"), "root needs none");
    }

    #[test]
    fn a_root_that_stays_and_directories_together_are_noted() {
        assert_eq!(of(&Facts { stays_root: true, ..facts() }, "user").level, Level::Note);
        assert_eq!(of(&Facts { directories: 1, exports: 2, ..facts() }, "shared").level, Level::Note);
    }
}
