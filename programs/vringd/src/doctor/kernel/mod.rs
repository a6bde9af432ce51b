//! The kernel: io_uring, without which nothing is served, and what workers do without on older ones.

pub(super) mod read;

use super::finding::{About, Area, Finding, Level};
use engine::Abilities;

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// `uname -r`.
    pub(super) release: String,
    /// What a worker would have, tried with the rights that the daemon would keep.
    pub(super) uring: Result<Abilities, Refusal>,
    /// `kernel.io_uring_disabled` (Documentation/admin-guide/sysctl/kernel.rst): 0 for all, 1 for a group, 2 for nobody.
    pub(super) disabled: Option<u32>,
    /// `kernel.io_uring_group`, -1 for none.
    pub(super) group: Option<i64>,
    /// Whoever started this process filters its system calls.
    pub(super) filtered: bool,
}

/// Why there is no io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The kernel's number, where it is the kernel's answer.
    pub(super) errno: Option<i32>,
    pub(super) words: String,
}

/// What is wrong with it.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let machine = About::machine(Area::Kernel);
    let release = &facts.release;
    let abilities = match &facts.uring {
        Ok(abilities) => abilities,
        Err(refusal) => return vec![refused(facts, refusal)],
    };
    let mut found = vec![if abilities.watches {
        machine.good("io-uring", format_args!("Linux {release}: io_uring is allowed, and can all that workers need"))
    } else {
        let seen = format!("Linux {release}: io_uring has no multishot polls");
        let cost = "no queue is served: workers never hear of a guest's kick";
        machine.costs(Level::Fails, "io-uring", seen, cost).fix("use Linux 5.13 or newer")
    }];
    let more = [
        (
            abilities.deferred,
            "deferred",
            ("completions wait until a worker asks", "completions interrupt workers (no IORING_SETUP_DEFER_TASKRUN)"),
            "more processor time for each request",
            "use Linux 6.1 or newer",
        ),
        (
            abilities.registers_files,
            "registered-files",
            ("files are registered with io_uring", "files cannot be registered with io_uring"),
            "each request looks its file up",
            "use Linux 5.19 or newer",
        ),
        (
            abilities.messages,
            "messages",
            ("io_uring notifies guests", "guests are notified by other system calls (no IORING_OP_MSG_RING)"),
            "a system call more for each batch of answers",
            "use Linux 5.18 or newer",
        ),
        (
            abilities.gathers,
            "gathered",
            (
                "a worker may sleep until several completions are there",
                "each completion wakes its worker (no IORING_FEAT_MIN_TIMEOUT)",
            ),
            "more wake-ups where many requests are in flight",
            "use Linux 6.12 or newer",
        ),
    ];
    found.extend(more.into_iter().map(|(has, check, (good, bad), cost, fix)| match has {
        true => machine.good(check, good),
        false => machine.costs(Level::Slow, check, bad, cost).fix(fix),
    }));
    found
}

fn refused(facts: &Facts, refusal: &Refusal) -> Finding {
    let seen = format!("Linux {}: io_uring is refused: {}", facts.release, refusal.words);
    let cost = "`vringd serve` does not start: no worker can";
    let finding =
        |cause: &str| About::machine(Area::Kernel).costs(Level::Fails, "io-uring", format!("{seen}{cause}"), cost);
    match (refusal.errno, facts.disabled) {
        (Some(number::EPERM), Some(1)) => {
            let group = facts.group.unwrap_or(-1);
            finding(&format!(" (kernel.io_uring_disabled is 1, kernel.io_uring_group is {group})"))
                .fix("sysctl kernel.io_uring_disabled=0    # or start the daemon in that group, or with --capabilities all")
        }
        (Some(number::EPERM), Some(disabled @ 2..)) => {
            finding(&format!(" (kernel.io_uring_disabled is {disabled})")).fix("sysctl kernel.io_uring_disabled=0")
        }
        (Some(number::EPERM | number::ENOSYS | number::EACCES), _) if facts.filtered => {
            finding(" (a seccomp filter of whoever started this, as of a container)")
                .fix("--security-opt seccomp=unconfined    # of docker and podman, or a profile that allows io_uring_setup, _enter and _register")
        }
        (Some(number::ENOSYS), _) => finding("").fix("use Linux 5.13 or newer, built with CONFIG_IO_URING"),
        (Some(number::ENOMEM), _) => {
            finding(" (RLIMIT_MEMLOCK counts io_urings of the whole user)").fix("ulimit -l unlimited    # LimitMEMLOCK=infinity in a unit")
        }
        (Some(number::EMFILE), _) => finding("").fix("ulimit -Hn 1048576    # LimitNOFILE=1048576 in a unit"),
        _ => finding(""),
    }
}

/// The kernel's numbers, as patterns.
mod number {
    use rustix::io::Errno;

    pub(super) const EPERM: i32 = Errno::PERM.raw_os_error();
    pub(super) const EACCES: i32 = Errno::ACCESS.raw_os_error();
    pub(super) const ENOSYS: i32 = Errno::NOSYS.raw_os_error();
    pub(super) const ENOMEM: i32 = Errno::NOMEM.raw_os_error();
    pub(super) const EMFILE: i32 = Errno::MFILE.raw_os_error();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    const ALL: Abilities =
        Abilities { watches: true, deferred: true, registers_files: true, messages: true, gathers: true };

    fn facts(uring: Result<Abilities, Errno>) -> Facts {
        let uring = uring.map_err(|errno| Refusal { errno: Some(errno.raw_os_error()), words: errno.to_string() });
        Facts { release: "6.1".into(), uring, disabled: Some(0), group: Some(-1), filtered: false }
    }

    fn only(facts: &Facts) -> Finding {
        let found = findings(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }

    #[test]
    fn a_kernel_with_everything_is_good() {
        assert!(findings(&facts(Ok(ALL))).iter().all(|finding| finding.level == Level::Good));
    }

    #[test]
    fn what_is_lacking_is_named_with_the_kernel_that_has_it() {
        let found = findings(&facts(Ok(Abilities { gathers: false, deferred: false, ..ALL })));
        let slow: Vec<_> = found.iter().filter(|finding| finding.level == Level::Slow).collect();
        assert_eq!(slow.iter().map(|finding| finding.check).collect::<Vec<_>>(), ["deferred", "gathered"]);
        assert_eq!(slow[1].fix.as_deref(), Some("use Linux 6.12 or newer"));
        assert_eq!(findings(&facts(Ok(Abilities { watches: false, ..ALL })))[0].level, Level::Fails);
    }

    #[test]
    fn a_refusal_is_told_by_its_cause() {
        let fix = |errno, disabled, filtered| {
            let found = only(&Facts { disabled, filtered, ..facts(Err(errno)) });
            assert_eq!(found.level, Level::Fails);
            found.fix.unwrap_or_default()
        };
        assert!(fix(Errno::PERM, Some(2), false).starts_with("sysctl kernel.io_uring_disabled=0"));
        assert!(fix(Errno::PERM, Some(1), false).contains("--capabilities all"));
        assert!(fix(Errno::PERM, Some(0), true).contains("seccomp"));
        assert!(fix(Errno::NOSYS, None, true).contains("seccomp"));
        assert!(fix(Errno::NOSYS, None, false).contains("CONFIG_IO_URING"));
        assert!(fix(Errno::NOMEM, Some(0), false).contains("LimitMEMLOCK"));
        assert!(fix(Errno::MFILE, Some(0), false).contains("LimitNOFILE"));
        assert_eq!(fix(Errno::INVAL, Some(0), false), "");
    }
}
