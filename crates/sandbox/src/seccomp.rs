//! Which system calls the daemon may make: `--seccomp`.

use crate::syscalls;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What happens when the daemon makes a system call that is not on the list: the words of `--seccomp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// It is made: there is no list.
    None,
    /// The daemon is killed.
    #[default]
    Kill,
    /// It is made, and noted in the kernel's log.
    Log,
    /// The daemon gets SIGSYS.
    Trap,
}

/// `{0}` is no answer to a forbidden system call: use none, kill, log or trap
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct UnknownSeccomp(String);

impl FromStr for Seccomp {
    type Err = UnknownSeccomp;

    fn from_str(text: &str) -> Result<Seccomp, UnknownSeccomp> {
        match text {
            "none" => Ok(Seccomp::None),
            "kill" => Ok(Seccomp::Kill),
            "log" => Ok(Seccomp::Log),
            "trap" => Ok(Seccomp::Trap),
            _ => Err(UnknownSeccomp(text.to_owned())),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Seccomp::None => "none",
            Seccomp::Kill => "kill",
            Seccomp::Log => "log",
            Seccomp::Trap => "trap",
        })
    }
}

/// Why system calls could not be forbidden.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum SeccompError {
    /// system calls cannot be forbidden on this machine: {0}; use --seccomp=none
    Filter(#[from] seccompiler::BackendError),
    /// the kernel refuses to forbid system calls: {0}; use a kernel with CONFIG_SECCOMP_FILTER, or --seccomp=none
    Kernel(#[from] seccompiler::Error),
}

impl Seccomp {
    /// Forbids what is not on the list, for every thread of the process, those that exist included, and for ever.
    ///
    /// # Errors
    /// When the machine or the kernel cannot.
    pub fn apply(self) -> Result<(), SeccompError> {
        let forbidden = match self {
            Seccomp::None => return Ok(()),
            Seccomp::Kill => SeccompAction::KillProcess,
            Seccomp::Log => SeccompAction::Log,
            Seccomp::Trap => SeccompAction::Trap,
        };
        // The kernel remembers which calls are allowed whatever their arguments, so the length of the list costs them
        // nothing (Linux 5.11).
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            syscalls::allowed().map(|number| (number, Vec::new())).collect();
        let ioctls = syscalls::IOCTLS.map(|request| (1, request));
        for (number, arguments) in
            [(libc::SYS_ioctl, ioctls.as_slice()), (libc::SYS_unshare, &[(0, syscalls::UNSHARED)])]
        {
            let mut choices = Vec::new();
            for &(argument, value) in arguments {
                let equal = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
                choices.push(SeccompRule::new(vec![equal])?);
            }
            rules.insert(number, choices);
        }
        let machine = TargetArch::try_from(std::env::consts::ARCH)?;
        let filter: BpfProgram = SeccompFilter::new(rules, forbidden, SeccompAction::Allow, machine)?.try_into()?;
        Ok(seccompiler::apply_filter_all_threads(&filter)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_are_written() {
        for answer in [Seccomp::None, Seccomp::Kill, Seccomp::Log, Seccomp::Trap] {
            assert_eq!(answer.to_string().parse(), Ok(answer));
        }
        let error = "allow".parse::<Seccomp>().expect_err("no answer").to_string();
        assert_eq!(error, "`allow` is no answer to a forbidden system call: use none, kill, log or trap");
    }
}
