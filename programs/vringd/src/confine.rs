//! What the process of `vringd disk` and `vringd serve` gives up before it serves: paths, being root, rights, system calls.
//!
//! Everything that has a path is opened first, and threads are started afterwards: what a thread gives up is not given up
//! by those that run already.

use crate::config::Config;
use crate::confinement::{Confinement, Keep, When};
use crate::failure::Failure;
use crate::failure::field;
use crate::users;
use control::ApiError;
use control::model::config::{ExportKind, NewExport};
use control::model::{FileHandles, MigrationMode};
use control::model::{FileSystem, LandlockInfo, Listen, SandboxInfo, SeccompState, Tls};
use disk::StorageSpec;
use sandbox::{Capabilities, Grant, Identity, Reach, Role, Seccomp, Sockets, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use storage::{Access, Need};

/// A sandbox that is worth its name: everything that can be wrong with it and be known beforehand is right.
pub(crate) struct Plan {
    settings: Confinement,
    identity: Option<Identity>,
    role: Role,
    /// Whether a cluster may be connected to.
    connects: bool,
    /// Why Landlock is not to hold.
    landlock_off: Option<&'static str>,
}

impl Plan {
    /// Reads what `config` asks for, and gives the sockets to whom the process is to become.
    ///
    /// # Errors
    /// [`Failure::Usage`]: what cannot be had, after the field that asked for it.
    pub(crate) fn new(config: &mut Config) -> Result<Plan, Failure> {
        let settings = config.sandbox.clone();
        settings.check().map_err(Failure::Usage)?;
        let identity = settings.user.as_deref().map(users::identity).transpose();
        let identity = identity.map_err(|error| Failure::Usage(format!("sandbox.user: {error}")))?;
        if let Some(identity) = &identity {
            for export in config.exports.iter_mut().filter(|export| export.socket_path().is_some()) {
                export.socket_owner.get_or_insert_with(|| identity.uid.to_string());
                export.socket_group.get_or_insert_with(|| identity.gid.to_string());
            }
        }
        let asked = config.control.is_some() || config.control_fd.is_some();
        let added_later = asked && !config.one_disk;
        let directories = config.exports.iter().any(|export| export.kind == ExportKind::Dir);
        let role = if directories || added_later { Role::Daemon } else { Role::Disks };
        let landlock_off = match settings.landlock.unwrap_or_default() {
            When::Off => Some("it is turned off"),
            When::Auto if added_later && settings.allow.is_empty() => {
                Some("exports may be added from anywhere: name their directories by `allow`")
            }
            When::Auto | When::On => None,
        };
        let connects = settings.allow_rbd || config.storages().any(is_remote);
        Ok(Plan { settings, identity, role, connects, landlock_off })
    }

    /// Whom the process is to become: its user and group.
    pub(crate) fn becomes(&self) -> Option<(u32, u32)> {
        self.identity.as_ref().map(|identity| (identity.uid, identity.gid))
    }

    /// Enters the sandbox. The process has one thread, and has opened what the exports of `config` need.
    ///
    /// # Errors
    /// [`Failure::Usage`]: what cannot be had, after the field that asked for it.
    pub(crate) fn enter(self, config: &Config) -> Result<Held, Failure> {
        sandbox::one_thread().map_err(|error| Failure::Runtime(error.to_string()))?;
        let mut held = self.hold_thread(config)?;
        let seccomp = self.settings.seccomp.unwrap_or_default();
        let streams = self.connects || !self.settings.allow_port.is_empty();
        let sockets = if streams { Sockets::Tcp } else { Sockets::Unix };
        match seccomp.apply_with(self.role, sockets) {
            Ok(()) => held.seccomp = seccomp_out(seccomp),
            Err(error) if self.settings.seccomp.is_some() => return Err(refused("seccomp", error)),
            Err(error) => tracing::warn!("sandbox: {error} to say that this is well known"),
        }
        held.tell();
        Ok(held)
    }

    /// Takes from the thread that calls, and from what it starts, all but system calls, which are the whole process's.
    ///
    /// # Errors
    /// [`Failure::Usage`]: what cannot be had, after the field that asked for it.
    pub(crate) fn hold_thread(&self, config: &Config) -> Result<Held, Failure> {
        sandbox::give_up_new_privileges().map_err(|error| Failure::Runtime(error.to_string()))?;
        let mut held = Held { disks_alone: self.role == Role::Disks, ..Held::default() };
        match self.landlock_off {
            Some(why) => held.landlock_off = Some(why.to_owned()),
            None => self.confine(config, &mut held)?,
        }
        if let Some(identity) = &self.identity {
            identity.assume().map_err(|error| refused("user", error))?;
        }
        let capabilities = match (self.settings.capabilities.unwrap_or_default(), self.role) {
            (Keep::All, _) => None,
            (Keep::Auto, Role::Daemon) => {
                Some(Capabilities::new(true, None).map_err(|error| refused("capabilities", error))?)
            }
            (Keep::Auto | Keep::None, _) => Some(Capabilities::none()),
        };
        if let Some(capabilities) = capabilities {
            capabilities.apply().map_err(|error| refused("capabilities", error))?;
        }
        held.connects = self.connects;
        held.ports = self.settings.allow_port.iter().copied().collect();
        Ok(held)
    }

    /// Confines the thread to the paths of `config`.
    fn confine(&self, config: &Config, held: &mut Held) -> Result<(), Failure> {
        let mut paths = Paths::of(config, &self.settings.allow)?;
        if self.identity.is_some() {
            paths.add_places_of_others();
        }
        let mut reach = paths.reach();
        reach.tcp_ports.clone_from(&self.settings.allow_port);
        reach.connects = self.connects;
        match reach.enforce().map_err(|error| refused("landlock", error))? {
            sandbox::Landlock::Held { abi, complete } => {
                if !complete {
                    tracing::warn!(
                        abi,
                        "sandbox: this kernel knows a part of Landlock: use Linux 6.12 or newer for all of it"
                    );
                }
                held.landlock = Some(Paths { abi, complete, ..paths });
                Ok(())
            }
            sandbox::Landlock::Missing(fix) if self.settings.landlock == Some(When::On) => {
                Err(Failure::Usage(format!("sandbox.landlock: this kernel has none: {fix}, or leave `on` out")))
            }
            sandbox::Landlock::Missing(fix) => {
                tracing::warn!("sandbox: any path its user may open is within reach, without Landlock: {fix}");
                held.landlock_off = Some(format!("this kernel has none: {fix}"));
                Ok(())
            }
        }
    }
}

fn refused(name: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("sandbox.{name}: {error}"))
}

fn seccomp_out(seccomp: Seccomp) -> SeccompState {
    match seccomp {
        Seccomp::None => SeccompState::None,
        Seccomp::Kill => SeccompState::Kill,
        Seccomp::Trap => SeccompState::Trap,
        Seccomp::Log => SeccompState::Log,
    }
}

/// The paths within reach besides the system's, without symbolic links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Paths {
    abi: u32,
    complete: bool,
    /// Images, and whether they are written.
    images: BTreeSet<(PathBuf, bool)>,
    /// Directories in which sockets are made, and sockets and memory files removed.
    sockets: BTreeSet<PathBuf>,
    /// Directories in which memory files are made while the process runs.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    memories: BTreeSet<PathBuf>,
    /// Directories in which everything may be done.
    trees: BTreeSet<PathBuf>,
    /// Directories whose programs may be run, of which one may take this one's place.
    programs: BTreeSet<PathBuf>,
}

impl Paths {
    fn of(config: &Config, allow: &[PathBuf]) -> Result<Paths, Failure> {
        let system = system();
        let programs = system.rules().iter().filter(|(_, grant)| *grant == Grant::Run);
        let programs = programs.filter_map(|(path, _)| resolve(path));
        let mut paths = Paths { programs: programs.collect(), ..Paths::default() };
        for path in allow {
            let found = path.canonicalize().ok().filter(|path| path.is_dir());
            let refuse = || refused("allow", format_args!("{} is no directory: name one that exists", path.display()));
            paths.trees.insert(found.ok_or_else(refuse)?);
        }
        let sockets = config.exports.iter().filter_map(NewExport::socket_path);
        paths.sockets.extend(sockets.chain(config.control.as_deref()).filter_map(parent));
        for Need { path, access, .. } in config.storages().flat_map(StorageSpec::needs) {
            // What does not exist has been refused before, or is about to be.
            match access {
                Access::Read | Access::Write => {
                    paths.images.extend(resolve(&path).map(|path| (path, access == Access::Write)));
                }
                Access::Make => paths.sockets.extend(path.canonicalize()),
                Access::MakeLater => paths.memories.extend(path.canonicalize()),
            }
        }
        let kept = config.disks.iter().filter_map(|disk| resolve(disk.reservations.as_deref()?));
        paths.images.extend(kept.map(|path| (path, true)));
        for tls in config.exports.iter().filter_map(|export| export.tls.as_ref()) {
            // They are looked at again, as they may be renewed.
            paths.images.extend(resolve(&tls.certificates).map(|path| (path, false)));
        }
        for export in &config.exports {
            paths.trees.extend(export.directory.as_ref().and_then(|directory| resolve(&directory.path)));
        }
        Ok(paths)
    }

    /// Who serves looks for the place of a memory file anew, and that of root is not his.
    fn add_places_of_others(&mut self) {
        if self.memories.contains(Path::new(::volume::MEMORY_DIRECTORY)) {
            self.memories.extend(Path::new(::volume::MEMORY_DIRECTORY_OF_OTHERS).canonicalize());
        }
    }

    fn reach(&self) -> Reach {
        let mut reach = system();
        // Who wants to hear that the daemon is ready may have a name there.
        reach.abstract_sockets = std::env::var_os("NOTIFY_SOCKET").is_some_and(|name| !Path::new(&name).is_absolute());
        for (path, write) in &self.images {
            reach.allow(path, if *write { Grant::Image } else { Grant::Read });
        }
        for path in &self.sockets {
            reach.allow(path, Grant::Sockets);
        }
        for path in &self.memories {
            reach.allow(path, Grant::Files);
        }
        for path in &self.trees {
            reach.allow(path, Grant::All);
        }
        reach
    }

    fn in_trees(&self, path: &Path) -> bool {
        self.trees.iter().any(|tree| path.starts_with(tree))
    }

    fn admit(&self, name: &str, path: &Path, is_read: bool) -> Result<(), ApiError> {
        let is_it = |(held, written): &(PathBuf, bool), found: &Path| held == found && (*written || is_read);
        match resolve(path) {
            Some(found) if !(self.images.iter().any(|image| is_it(image, &found)) || self.in_trees(&found)) => {
                Err(out_of_reach(name, path))
            }
            _ => Ok(()),
        }
    }

    fn shown(&self) -> LandlockInfo {
        let images = self.images.iter().map(|(path, _)| path);
        let paths: BTreeSet<_> = images.chain(&self.sockets).chain(&self.memories).chain(&self.trees).collect();
        let paths = paths.into_iter().map(|path| path.display().to_string()).collect();
        LandlockInfo { abi: self.abi, complete: self.complete, paths }
    }
}

/// Whether a storage is on other machines.
fn is_remote(storage: &StorageSpec) -> bool {
    matches!(storage, StorageSpec::Rbd(_))
}

/// What this daemon reads and runs whatever it serves.
fn system() -> Reach {
    Reach::of_system(std::env::current_exe().ok().as_deref())
}

fn out_of_reach(name: &str, path: &Path) -> ApiError {
    let directory = path.parent().unwrap_or(path).display();
    let path = path.display();
    field(name, format_args!("{path} is out of this daemon's reach: start it with --allow {directory}"))
}

/// What a path means, of which the last component may be missing. Nothing when more is missing.
fn resolve(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| Some(parent(path)?.join(path.file_name()?)))
}

/// The directory of a path.
fn parent(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()?.parent()?.canonicalize().ok()
}

/// What holds the process, as far as the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The list of system calls that this program has set.
    seccomp: SeccompState,
    /// What the process sees of the host's files.
    file_system: FileSystem,
    /// Why Landlock does not hold.
    landlock_off: Option<String>,
    landlock: Option<Paths>,
    /// The list of system calls has none for directories.
    disks_alone: bool,
    /// The list of system calls has none to start a program.
    #[serde(default)]
    no_programs: bool,
    /// TCP ports at which exports may listen that are added now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    ports: BTreeSet<u16>,
    /// It may connect by TCP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    connects: bool,
}

impl Held {
    /// What holds a process that serves one directory.
    pub(crate) fn around_directory(seccomp: Seccomp, file_system: FileSystem, role: Role) -> Held {
        let landlock_off = Some("the sandbox of one directory is made without".to_owned());
        let no_programs = role == Role::Directory;
        Held { seccomp: seccomp_out(seccomp), file_system, landlock_off, no_programs, ..Held::default() }
    }

    /// Why no other program can take this one's place, if that is so.
    pub(crate) fn keeps_its_program(&self) -> Option<&'static str> {
        if self.file_system != FileSystem::Host {
            return Some(
                "it is isolated from the paths of other programs (only `--sandbox none` is not): restart it instead",
            );
        }
        self.no_programs.then_some("it was made for one session, and may start no program: restart it instead")
    }

    /// With what the kernel says now.
    ///
    /// # Errors
    /// [`ApiError::Failed`] when it does not answer.
    pub(crate) fn shown(&self) -> Result<SandboxInfo, ApiError> {
        let failed = |error| ApiError::Failed { message: format!("cannot ask what holds the daemon: {error}") };
        let State { no_new_privs, capabilities, seccomp, uid, gid } = State::of_thread().map_err(failed)?;
        let seccomp = match (seccomp, self.seccomp) {
            (false, _) => SeccompState::None,
            (true, SeccompState::None) => SeccompState::Foreign,
            (true, own) => own,
        };
        Ok(SandboxInfo {
            no_new_privs,
            capabilities,
            seccomp,
            file_system: self.file_system,
            landlock: self.landlock.as_ref().map(Paths::shown),
            landlock_off: self.landlock_off.clone(),
            uid,
            gid,
        })
    }

    /// Says at the start what holds.
    fn tell(&self) {
        let Ok(shown) = self.shown() else { return };
        let capabilities = if shown.capabilities.is_empty() { "none".to_owned() } else { shown.capabilities.join(" ") };
        let landlock = match (shown.landlock, shown.landlock_off) {
            (Some(held), _) => format!("ABI {}: {}", held.abi, held.paths.join(" ")),
            (None, why) => format!("off: {}", why.unwrap_or_default()),
        };
        let user = format!("{}:{}", shown.uid, shown.gid);
        tracing::info!(user, capabilities, seccomp = ?shown.seccomp, landlock, "sandbox");
    }

    /// Refuses a program that this process could not run.
    ///
    /// # Errors
    /// A line with the fix.
    pub(crate) fn runs(&self, program: &Path) -> Result<(), String> {
        let Some(paths) = &self.landlock else { return Ok(()) };
        let Some(found) = resolve(program) else { return Ok(()) };
        if paths.in_trees(&found) || paths.programs.iter().any(|directory| found.starts_with(directory)) {
            return Ok(());
        }
        let (program, directory) = (program.display(), program.parent().unwrap_or(program).display());
        Err(format!(
            "{program} is out of this daemon's reach: put it beside the program that runs, or start the daemon with \
             --allow {directory}"
        ))
    }

    /// Refuses a storage that would make files where this process could not, as a volume its memory file.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_made(&self, storage: &StorageSpec) -> Result<(), ApiError> {
        let Some(paths) = &self.landlock else { return Ok(()) };
        for file in storage.needs().iter().filter(|file| file.access.makes_files()) {
            // What does not exist is for the one who opens it to say.
            let Ok(directory) = file.path.canonicalize() else { continue };
            if !(paths.in_trees(&directory) || paths.memories.contains(&directory)) {
                let directory = directory.display();
                let message = format!(
                    "{directory} is out of this daemon's reach: start it with --allow {directory}, or name a file on \
                     tmpfs that is within reach"
                );
                return Err(field(file.field, message));
            }
        }
        Ok(())
    }

    /// Refuses a file that this process could not make.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_new(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        let Some(paths) = &self.landlock else { return Ok(()) };
        // What does not exist is for the one who makes it to say.
        match resolve(path) {
            Some(found) if !paths.in_trees(&found) => Err(out_of_reach(name, path)),
            _ => Ok(()),
        }
    }

    /// Refuses a directory in which this process could make no file.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_directory(&self, name: &str, directory: &Path) -> Result<(), ApiError> {
        let (Some(paths), Ok(found)) = (&self.landlock, directory.canonicalize()) else { return Ok(()) };
        if paths.in_trees(&found) {
            return Ok(());
        }
        let directory = directory.display();
        Err(field(name, format_args!("{directory} is out of this daemon's reach: start it with --allow {directory}")))
    }

    /// Refuses certificates that this process could not read.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_certificates(&self, tls: &Tls) -> Result<(), ApiError> {
        let (Some(paths), Some(found)) = (&self.landlock, resolve(&tls.certificates)) else { return Ok(()) };
        if paths.images.iter().any(|(held, _)| found == *held) || paths.in_trees(&found) {
            return Ok(());
        }
        let directory = found.display();
        let message = format_args!("{directory} is out of this daemon's reach: start it with --allow {directory}");
        Err(field(Tls::CERTIFICATES, message))
    }

    /// Refuses an address at which this process could not listen any more.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_address(&self, new: &NewExport) -> Result<(), ApiError> {
        let Some((address, option)) = new.listen.as_ref().and_then(|address| Some((address, self.hides(address)?)))
        else {
            return Ok(());
        };
        let message = format_args!(
            "{address} is out of this daemon's reach: name the export in the file that it starts with, or start it \
             with {option}"
        );
        Err(field("listen", message))
    }

    /// The option without which this process cannot listen at a port any more.
    fn hides(&self, address: &Listen) -> Option<String> {
        let calls = self.seccomp != SeccompState::None;
        match address {
            Listen::Tcp(tcp) if (calls || self.landlock.is_some()) && !self.ports.contains(&tcp.port()) => {
                Some(format!("--allow-port {}", tcp.port()))
            }
            Listen::Vsock { .. } if calls => Some("--seccomp none".to_owned()),
            _ => None,
        }
    }

    /// As [`admit_address`](Self::admit_address), of an address that only a running daemon is told, with the directory of a unix socket.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_listen(&self, name: &str, address: &Listen) -> Result<(), ApiError> {
        if let Some(option) = self.hides(address) {
            let message = format_args!("{address} is out of this daemon's reach: start it with {option}");
            return Err(field(name, message));
        }
        address.path().map_or(Ok(()), |socket| self.admit_socket(name, socket))
    }

    /// Refuses a socket that this process could not make.
    fn admit_socket(&self, name: &str, socket: &Path) -> Result<(), ApiError> {
        let (Some(paths), Some(directory)) = (&self.landlock, parent(socket)) else { return Ok(()) };
        if paths.sockets.iter().any(|held| directory.starts_with(held)) || paths.in_trees(&directory) {
            return Ok(());
        }
        Err(out_of_reach(name, socket))
    }

    /// Refuses a storage on other machines, from where this process reaches none.
    fn admit_remote(&self, storage: &StorageSpec) -> Result<(), ApiError> {
        let is_cut_off = self.seccomp != SeccompState::None || self.landlock.is_some();
        if is_remote(storage) && is_cut_off && !self.connects {
            let message = "is reached by TCP, which this daemon has given up: start it with --allow-rbd, or name the disk in the \
                           file that it starts with";
            return Err(field("storage", format_args!("{} {message}", storage.kind())));
        }
        Ok(())
    }

    /// Refuses a storage whose files this process could not open.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the path that is out of reach.
    pub(crate) fn admit_storage(&self, storage: &StorageSpec) -> Result<(), ApiError> {
        self.admit_remote(storage)?;
        let Some(paths) = &self.landlock else { return Ok(()) };
        for file in storage.needs().iter().filter(|file| !file.access.makes_files()) {
            paths.admit(file.field, &file.path, file.access == Access::Read)?;
        }
        Ok(())
    }

    /// Refuses a file that this process could not write, or make where there is none.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the fix.
    pub(crate) fn admit_written(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        match &self.landlock {
            Some(paths) if path.exists() => paths.admit(name, path, false),
            _ => self.admit_new(name, path),
        }
    }

    /// Refuses an export that this process could not serve from where it is, and makes the best of others.
    ///
    /// # Errors
    /// [`ApiError::InvalidField`] with the path that is out of reach, [`ApiError::Unsupported`] for a directory.
    pub(crate) fn admit(&self, new: &mut NewExport) -> Result<(), ApiError> {
        if self.disks_alone && self.seccomp != SeccompState::None && new.kind == ExportKind::Dir {
            let message =
                "this daemon was started for disks alone: start `vringd dir`, or `vringd serve` with a control \
                           socket or a directory in its file"
                    .to_owned();
            return Err(ApiError::Unsupported { export: new.name.clone(), message });
        }
        if let Some(storage) = &new.storage {
            self.admit_remote(storage)?;
        }
        let Some(paths) = &self.landlock else { return Ok(()) };
        if let Some(socket) = new.socket_path() {
            self.admit_socket(new.socket_field(), socket)?;
        }
        if let Some(tls) = &new.tls {
            self.admit_certificates(tls)?;
        }
        if let Some(storage) = &new.storage {
            self.admit_storage(storage)?;
        }
        if let Some(directory) = &mut new.directory
            && let Some(found) = resolve(&directory.path)
        {
            if !paths.in_trees(&found) {
                return Err(out_of_reach("directory.path", &directory.path));
            }
            // The kernel cannot tell where a file is that is opened by its handle, and refuses.
            match directory.inode_file_handles {
                FileHandles::Mandatory => {
                    let message = "mandatory does not go with Landlock: use `never`, or start the daemon with \
                                   --landlock off";
                    return Err(field("directory.inode_file_handles", message));
                }
                FileHandles::Prefer => directory.inode_file_handles = FileHandles::Never,
                FileHandles::Never => {}
            }
            if directory.migration_mode == MigrationMode::FileHandles {
                let message = "file-handles does not go with Landlock: use `find-paths`, or start the daemon with \
                               --landlock off";
                return Err(field("directory.migration_mode", message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "confine_tests.rs"]
mod tests;
