//! Namespaces of the daemon's own: processes, mounts, networks, and users where root did not start it.

use crate::error::SandboxError;
use crate::fork::{self, Forked};
use crate::{Entered, IdMapping, Sandbox, mounts};
use rustix::process::{Gid, Pid, Uid, WaitOptions};
use rustix::thread::UnshareFlags;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

/// Enters new namespaces, in a child.
pub(crate) fn enter(sandbox: &Sandbox) -> Result<Entered, SandboxError> {
    fork::hear_of_children();
    let namespaces = UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWNET;
    if rustix::process::geteuid().is_root() {
        unshare(namespaces, "start the daemon with CAP_SYS_ADMIN, or use --sandbox=chroot or --sandbox=none")?;
    } else {
        let mapper = Mapper::start(sandbox)?;
        let answer = unshare(
            namespaces | UnshareFlags::NEWUSER,
            "allow user namespaces (sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns), \
             or use --sandbox=none",
        );
        mapper.finish(answer.is_ok())?;
        answer?;
        become_root();
    }
    fork::go_on_in_child()?;
    let proc_self_fd = mounts::enter(&sandbox.shared_dir)?;
    Ok(Entered { root: mounts::open_directory(Path::new("/"))?, proc_self_fd })
}

fn unshare(namespaces: UnshareFlags, fix: &'static str) -> Result<(), SandboxError> {
    // SAFETY: the process has one thread, and no descriptor or memory is unshared.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }.map_err(SandboxError::kernel("make namespaces", fix))
}

/// Root of the user namespace, where it has one: files can then be created as any id that it has. Without, the daemon keeps
/// its id and has the rights of root nevertheless.
fn become_root() {
    if let Err(error) = rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT) {
        tracing::debug!(%error, "the user namespace has no root user");
    }
    if let Err(error) = rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT) {
        tracing::debug!(%error, "the user namespace has no root group");
    }
}

/// The process that gives the user namespace its ids. Ranges of ids are given by programs that act for the user outside of
/// the namespace, so it has to be started before and has to wait until the namespace exists.
struct Mapper {
    process: Pid,
    /// One byte: the namespace exists. Closed without: there will be none.
    go: File,
    /// What went wrong, in words; nothing when all is well.
    report: File,
}

impl Mapper {
    fn start(sandbox: &Sandbox) -> Result<Mapper, SandboxError> {
        let pipe = || {
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .map_err(SandboxError::kernel("make a pipe", "let the daemon have more open files"))
        };
        let (go_reader, go) = pipe()?;
        let (report, report_writer) = pipe()?;
        let daemon = rustix::process::getpid();
        match fork::fork()? {
            Forked::Parent(process) => Ok(Mapper { process, go: go.into(), report: report.into() }),
            Forked::Child => {
                drop((go, report));
                let mut word = [0];
                if File::from(go_reader).read_exact(&mut word).is_ok()
                    && let Err(problem) = set_ids(daemon, sandbox)
                {
                    // Without a reader there is nobody left to tell.
                    let _ = File::from(report_writer).write_all(problem.as_bytes());
                }
                fork::leave(0)
            }
        }
    }

    fn finish(mut self, exists: bool) -> Result<(), SandboxError> {
        let mut problem = String::new();
        if exists && self.go.write_all(&[1]).is_err() {
            problem.push_str("the process that sets them has died");
        }
        drop(self.go);
        if self.report.read_to_string(&mut problem).is_err() {
            problem.push_str("no answer");
        }
        // It has closed the pipe, so it is ending; its status says no more than the pipe did.
        let _ = rustix::process::waitpid(Some(self.process), WaitOptions::empty());
        if problem.is_empty() { Ok(()) } else { Err(SandboxError::IdMap(problem)) }
    }
}

fn set_ids(daemon: Pid, sandbox: &Sandbox) -> Result<(), String> {
    let pid = daemon.as_raw_nonzero();
    let own = rustix::process::geteuid().as_raw();
    set_map("newuidmap", &format!("/proc/{pid}/uid_map"), pid.get(), own, &sandbox.uid_map, None)?;
    let own = rustix::process::getegid().as_raw();
    let deny = format!("/proc/{pid}/setgroups");
    set_map("newgidmap", &format!("/proc/{pid}/gid_map"), pid.get(), own, &sandbox.gid_map, Some(&deny))
}

/// The own id alone is for everybody to give, all else for `program`, which knows who was given what.
fn set_map(
    program: &str,
    file: &str,
    pid: i32,
    own: u32,
    map: &[IdMapping],
    deny_groups: Option<&str>,
) -> Result<(), String> {
    let only_own = [IdMapping { inside: own, outside: own, count: 1 }];
    let map = if map.is_empty() { &only_own } else { map };
    if let &[IdMapping { inside, outside, count: 1 }] = map
        && outside == own
    {
        if let Some(path) = deny_groups {
            // The kernel's condition: who may drop groups could read what a group is shut out of.
            fs::write(path, "deny").map_err(|error| format!("{path}: {error}"))?;
        }
        return fs::write(file, format!("{inside} {outside} 1")).map_err(|error| format!("{file}: {error}"));
    }
    let mut command = Command::new(program);
    command.arg(pid.to_string());
    for mapping in map {
        command.args([mapping.inside, mapping.outside, mapping.count].map(|number| number.to_string()));
    }
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let mut problem = String::from_utf8_lossy(&output.stderr).trim().replace('\n', ", ");
    if problem.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(problem, "{program}: {}", output.status);
    }
    Err(problem)
}
