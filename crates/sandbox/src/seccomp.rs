//! Which system calls the daemon may make: `--seccomp`.

use crate::Role;
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

/// Which sockets a daemon may make while it serves. One that serves a single directory makes none whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sockets {
    /// Unix sockets.
    #[default]
    Unix,
    /// Stream sockets of IPv4 and IPv6 as well: exports may be added that listen there, or storage is reached that way.
    Tcp,
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
    /// Forbids what is not on the list of `role`, for every thread of the process, those that exist included, and for ever.
    /// It gives up new privileges as well.
    ///
    /// # Errors
    /// When the machine or the kernel cannot.
    pub fn apply(self, role: Role) -> Result<(), SeccompError> {
        self.apply_with(role, Sockets::Unix)
    }

    /// As [`Seccomp::apply`], for a daemon that may make these sockets.
    ///
    /// # Errors
    /// When the machine or the kernel cannot.
    pub fn apply_with(self, role: Role, sockets: Sockets) -> Result<(), SeccompError> {
        let forbidden = match self {
            Seccomp::None => return Ok(()),
            Seccomp::Kill => SeccompAction::KillProcess,
            Seccomp::Log => SeccompAction::Log,
            Seccomp::Trap => SeccompAction::Trap,
        };
        // The strictest answer of all filters counts. The one that forbids comes last, since it need not allow others.
        let answer = |errno: i32| match self {
            Seccomp::Log => SeccompAction::Log,
            _ => SeccompAction::Errno(errno.unsigned_abs()),
        };
        install(refused(sockets)?, SeccompAction::Allow, answer(libc::EPERM))?;
        // The C library does with `clone` then, whose arguments a filter can see. To log every thread would help nobody.
        if self != Seccomp::Log {
            let clone3 = BTreeMap::from([(number(libc::SYS_clone3), Vec::new())]);
            install(clone3, SeccompAction::Allow, answer(libc::ENOSYS))?;
        }
        install(allowed(role)?, forbidden, SeccompAction::Allow)
    }
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn install(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> Result<(), SeccompError> {
    let machine = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter: BpfProgram = SeccompFilter::new(rules, otherwise, matching, machine)?.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

/// The kernel remembers which calls are allowed whatever their arguments, so the length of the list costs them nothing
/// (Linux 5.11).
fn allowed(role: Role) -> Result<Rules, SeccompError> {
    let mut rules: Rules = syscalls::allowed(role).map(|number| (number, Vec::new())).collect();
    let ioctls = syscalls::ioctls(role).map(|request| when(1, SeccompCmpOp::Eq, request)).collect::<Result<_, _>>()?;
    rules.insert(number(libc::SYS_ioctl), ioctls);
    if role.directories() {
        let own = when(0, SeccompCmpOp::Eq, syscalls::UNSHARED)?;
        rules.insert(number(libc::SYS_unshare), vec![own]);
    }
    Ok(rules)
}

/// What a library may try and can do without: an error is the better answer. Sockets of other kinds, and namespaces, in
/// which a process without rights would have some.
fn refused(sockets: Sockets) -> Result<Rules, SeccompError> {
    let other = when(0, SeccompCmpOp::Ne, word(libc::AF_UNIX))?;
    let namespaces = (0..u32::BITS).map(|bit| 1_u64 << bit).filter(|flag| syscalls::NAMESPACES & flag != 0);
    let namespaces = namespaces.map(|flag| when(0, SeccompCmpOp::MaskedEq(flag), flag)).collect::<Result<_, _>>()?;
    Ok(BTreeMap::from([
        (number(libc::SYS_socket), other_sockets(sockets)?),
        (number(libc::SYS_socketpair), vec![other]),
        (number(libc::SYS_clone), namespaces),
    ]))
}

/// The calls of socket(2) that are refused: a call that any of these rules is true for.
fn other_sockets(sockets: Sockets) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let families: &[i32] = match sockets {
        Sockets::Unix => &[libc::AF_UNIX],
        Sockets::Tcp => &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6],
    };
    let unlike = |family: &i32| compare(0, SeccompCmpOp::Ne, word(*family));
    let mut rules = vec![SeccompRule::new(families.iter().map(unlike).collect::<Result<_, _>>()?)?];
    if sockets == Sockets::Tcp {
        // Not a stream: the flags of a type are above these bits.
        let types = (0..=SOCKET_TYPES).filter(|kind| *kind != word(libc::SOCK_STREAM));
        for kind in types {
            let conditions = vec![unlike(&libc::AF_UNIX)?, compare(1, SeccompCmpOp::MaskedEq(SOCKET_TYPES), kind)?];
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

/// The bits of the second argument of socket(2) that are its type (`linux/net.h`, SOCK_TYPE_MASK).
const SOCKET_TYPES: u64 = 0xf;

fn word(constant: i32) -> u64 {
    u64::from(constant.unsigned_abs())
}

/// An argument that compares.
fn when(argument: u8, compares: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![compare(argument, compares, value)?])
}

fn compare(argument: u8, compares: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compares, value)
}

/// As wide as a register, which is narrower on some machines.
#[allow(clippy::useless_conversion)]
fn number(call: libc::c_long) -> i64 {
    i64::from(call)
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
