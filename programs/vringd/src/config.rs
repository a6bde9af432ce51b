//! What a daemon shall serve, from a file or as one export.

use crate::confinement::Confinement;
use crate::directory;
use crate::failure::Failure;
use crate::service::Sockets;
use crate::units::of_unit;
use control::model::config::ExportKind;
use control::model::{
    Favour, FieldError, Listen, NO_NBD, NewDisk, NewExport, NewGroup, PolicyMode, Poll, Protocol, Span, check_alike,
};
use disk::{Role, StorageSpec, User, may_use};
use export::{ExportError, port_number};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most workers that a daemon starts unless told otherwise.
const WORKERS_MAX_DEFAULT: usize = 64;
/// Most workers that may be asked for: each is a thread with its own io_uring.
const WORKERS_MAX: usize = 1024;
/// Most shared workers that a daemon starts unless told otherwise.
const SHARED_DEFAULT_MAX: usize = 8;

/// Longest configuration, in bytes: ten thousand exports and more.
const BYTES_MAX: u64 = 16 << 20;

/// After how long a request that is not answered is said to be stuck, unless told otherwise: when guests, whose drivers wait
/// this long for a disk, begin to complain.
const STUCK_AFTER_DEFAULT: Duration = Duration::from_secs(30);

/// A daemon's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Where it was read from, to say so in refusals.
    #[serde(skip)]
    pub(crate) source: Option<PathBuf>,
    /// Path of the control socket; none when left out.
    pub(crate) control: Option<PathBuf>,
    /// Descriptor of a control socket that was made for us.
    #[serde(skip)]
    pub(crate) control_fd: Option<RawFd>,
    /// After how long a request that is not answered is named in the log; 30s when left out, never when 0s.
    #[serde(default = "stuck_after_default")]
    pub(crate) stuck_after: Span,
    /// Number of shared workers; one a CPU up to 8 when left out.
    #[serde(default = "shared_default")]
    pub(crate) workers: usize,
    /// Largest number of workers, shared and private; 64 when left out.
    #[serde(default = "workers_max_default")]
    pub(crate) workers_max: usize,
    /// Poll window of the shared workers; adaptive when left out.
    #[serde(default)]
    pub(crate) poll: Poll,
    /// What is preferred where short answers and free processors cannot both be had; balance when left out.
    #[serde(default)]
    pub(crate) favour: Favour,
    /// Whether the daemon chooses by itself how workers wait and which ring they have; auto when left out.
    #[serde(default)]
    pub(crate) policy: PolicyMode,
    /// What the process gives up.
    #[serde(default)]
    pub(crate) sandbox: Confinement,
    /// It is `vringd disk`: what it serves is known when it starts.
    #[serde(skip)]
    pub(crate) one_disk: bool,
    /// Groups of exports that share limits.
    #[serde(default, rename = "group")]
    pub(crate) groups: Vec<NewGroup>,
    /// Disks apart from exports.
    #[serde(default, rename = "disk")]
    pub(crate) disks: Vec<NewDisk>,
    /// The exports.
    #[serde(default, rename = "export")]
    pub(crate) exports: Vec<NewExport>,
}

fn shared_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(SHARED_DEFAULT_MAX)
}

fn workers_max_default() -> usize {
    WORKERS_MAX_DEFAULT
}

pub(crate) fn stuck_after_default() -> Span {
    Span(STUCK_AFTER_DEFAULT)
}

impl Config {
    /// Reads and checks a file. Every refusal names the file, the field and the fix.
    pub(crate) fn read(path: &Path) -> Result<Config, Failure> {
        let shown = path.display();
        let text = text(path).map_err(|error| Failure::Usage(format!("{shown}: {error}")))?;
        let malformed = |place: &str, error: &toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let message = error.message().trim().replace('\n', " ");
            Failure::Usage(format!("{shown}, line {line}: {place}{message}"))
        };
        let document = toml::de::Deserializer::parse(&text).map_err(|error| malformed("", &error))?;
        let mut config: Config = serde_path_to_error::deserialize(document).map_err(|error| {
            let path = error.path().to_string();
            malformed(&if path == "." { String::new() } else { format!("{path}: ") }, error.inner())
        })?;
        config.take_sockets(Sockets::inherited()?, false)?;
        config.check().map_err(|message| Failure::Usage(format!("{shown}: {message}")))?;
        config.source = Some(path.to_owned());
        Ok(config)
    }

    /// A daemon of one export.
    ///
    /// # Errors
    /// What the export says that cannot be.
    pub(crate) fn of_one(
        export: NewExport,
        control: Option<PathBuf>,
        poll: Poll,
        sockets: Sockets,
    ) -> Result<Config, Failure> {
        Self::of_one_with(export, Vec::new(), control, poll, sockets)
    }

    /// A daemon of one export, with the disks that it names.
    ///
    /// # Errors
    /// As of [`of_one`](Self::of_one).
    pub(crate) fn of_one_with(
        export: NewExport,
        disks: Vec<NewDisk>,
        control: Option<PathBuf>,
        poll: Poll,
        sockets: Sockets,
    ) -> Result<Config, Failure> {
        let most = WORKERS_MAX_DEFAULT.max(usize::from(export.queues()) + SHARED_DEFAULT_MAX).min(WORKERS_MAX);
        let mut config = Config { control, workers_max: most, poll, disks, exports: vec![export], ..Config::nothing() };
        config.take_sockets(sockets, true)?;
        config.check().map_err(Failure::Usage)?;
        Ok(config)
    }

    /// One that serves nothing, with every field at its default.
    pub(crate) fn nothing() -> Config {
        Config {
            source: None,
            control: None,
            control_fd: None,
            stuck_after: stuck_after_default(),
            workers: shared_default(),
            workers_max: WORKERS_MAX_DEFAULT,
            poll: Poll::default(),
            favour: Favour::default(),
            policy: PolicyMode::default(),
            sandbox: Confinement::default(),
            one_disk: false,
            groups: Vec::new(),
            disks: Vec::new(),
            exports: Vec::new(),
        }
    }

    /// Takes the sockets that the service manager has made, in place of the paths for them.
    fn take_sockets(&mut self, sockets: Sockets, alone: bool) -> Result<(), Failure> {
        self.control_fd = sockets.give(&mut self.exports, alone)?;
        if self.control_fd.is_some() {
            self.control = None;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.sandbox.check()?;
        if !(1..=WORKERS_MAX).contains(&self.workers_max) {
            return Err(format!("workers_max: must be 1 to {WORKERS_MAX}, not {}", self.workers_max));
        }
        if self.workers > self.workers_max {
            let (workers, most) = (self.workers, self.workers_max);
            return Err(format!("workers: {workers} shared workers are more than workers_max, {most}"));
        }
        let mut groups = HashSet::new();
        for group in &self.groups {
            group.check().map_err(|error| format!("group {}: {error}", group.name))?;
            if !groups.insert(group.name.as_str()) {
                return Err(format!("group {}: name: is used twice: give each group its own", group.name));
            }
        }
        let (mut names, mut sockets, mut addresses) = (HashSet::new(), HashSet::new(), HashSet::new());
        sockets.extend(self.control.as_deref());
        let mut ports: Vec<SocketAddr> = Vec::new();
        for (number, export) in self.exports.iter().enumerate() {
            let place = if export.name.is_empty() { format!("number {}", number + 1) } else { export.name.clone() };
            export.check().map_err(|error| format!("export {place}: {error}"))?;
            // Before there is a socket, which whoever waits for it takes for a server.
            let readable = export.directory.as_ref().map_or(Ok(()), directory::check);
            readable.map_err(|error| format!("export {place}: {error}"))?;
            if let Some(group) =
                export.limits.group.as_deref().filter(|group| !group.is_empty() && !groups.contains(group))
            {
                return Err(format!("export {place}: limits.group: there is no [[group]] with the name `{group}`"));
            }
            if !names.insert(export.name.as_str()) {
                return Err(format!("export {place}: name: is used twice: give each export its own"));
            }
            if let Some(socket) = export.socket_path()
                && !sockets.insert(socket)
            {
                let field = export.socket_field();
                return Err(format!("export {place}: {field}: {} is used twice", socket.display()));
            }
            // Any free port is another one each time.
            let one = |address: &&Listen| match address {
                Listen::Tcp(tcp) => tcp.port() != 0,
                Listen::Vsock { .. } | Listen::Fd(_) => true,
                // Said by its path already.
                Listen::Unix(_) => false,
            };
            if let Some(address) = export.listen.as_ref().filter(one)
                && !addresses.insert(address.to_string())
            {
                return Err(format!("export {place}: listen: {address} is used twice"));
            }
            if let Some(Listen::Tcp(address)) = &export.listen {
                if let Some(other) = ports.iter().find(|other| overlap(other, address)) {
                    return Err(format!(
                        "export {place}: listen: tcp:{address} is also tcp:{other} of another export: give each its own port"
                    ));
                }
                ports.push(*address);
            }
        }
        self.check_disks()
    }

    /// Checks the disks, and that the exports may use them as they ask to.
    fn check_disks(&self) -> Result<(), String> {
        let mut disks: BTreeMap<&str, (&NewDisk, Vec<User>)> = BTreeMap::new();
        for (number, disk) in self.disks.iter().enumerate() {
            let place = if disk.name.is_empty() { format!("number {}", number + 1) } else { disk.name.clone() };
            disk.check().map_err(|error| format!("disk {place}: {error}"))?;
            if disks.insert(&disk.name, (disk, Vec::new())).is_some() {
                return Err(format!("disk {place}: name: is used twice: give each disk its own"));
            }
            let is_same = |other: &&NewDisk| disk.reservations.is_some() && other.reservations == disk.reservations;
            if let Some(other) = self.disks[..number].iter().find(is_same) {
                let other = &other.name;
                return Err(format!(
                    "disk {place}: reservations: disk {other} has the same file: give each disk its own"
                ));
            }
        }
        for export in &self.exports {
            let NewExport { name, disk, storage, listen, luns, .. } = export;
            if storage.is_some() && disks.contains_key(name.as_str()) {
                return Err(format!(
                    "export {name}: storage: [[disk]] {name} is another one with its name: rename one of the two, or \
                     put `disk = \"{name}\"` in place of `storage`"
                ));
            }
            let whole = disk.iter().map(|disk| ("disk".to_owned(), disk, Role::Whole));
            let units =
                luns.iter().enumerate().map(|(number, unit)| (format!("luns[{number}].disk"), &unit.disk, Role::Unit));
            for (field, wanted, role) in whole.chain(units) {
                let missing = || format!("export {name}: {field}: there is no [[disk]] with the name `{wanted}`");
                let (disk, users) = disks.get_mut(wanted.as_str()).ok_or_else(missing)?;
                let user = User::Export(name.clone());
                may_use(wanted, disk.sharing(), users, (&user, role))
                    .map_err(|error| format!("export {name}: {field}: {error}"))?;
                users.push(user);
            }
            for (number, unit) in luns.iter().enumerate() {
                self.check_alike(export, &unit.disk)
                    .map_err(|error| format!("export {name}: {}", of_unit(number, error)))?;
            }
            let Some((disk, _)) = disk.as_ref().and_then(|disk| disks.get(disk.as_str())) else { continue };
            if listen.is_some() && disk.storage.migratable().is_some() {
                return Err(format!("export {name}: listen: {NO_NBD}"));
            }
        }
        Ok(())
    }

    /// Checks that a shared disk is to the guest of a device what it is to those of the devices before it that have it, and that
    /// registrations can tell these devices from each other.
    fn check_alike(&self, device: &NewExport, disk: &str) -> Result<(), FieldError> {
        if !self.disks.iter().any(|one| one.name == disk && one.shared) {
            return Ok(());
        }
        let before = self.exports.iter().take_while(|other| other.name != device.name);
        let mut before = before.filter(|other| other.luns.iter().any(|unit| unit.disk == disk));
        before.try_for_each(|other| {
            check_alike(disk, device, other)?;
            if port_number(&device.name) != port_number(&other.name) {
                return Ok(());
            }
            let (disk, export, other) = (disk.to_owned(), device.name.clone(), other.name.clone());
            Err(FieldError::new("luns", ExportError::SamePort { disk, export, other }))
        })
    }

    /// The storages of all disks, those of exports included.
    pub(crate) fn storages(&self) -> impl Iterator<Item = &StorageSpec> {
        let of_exports = self.exports.iter().filter_map(|export| export.storage.as_ref());
        self.disks.iter().map(|disk| &disk.storage).chain(of_exports)
    }

    /// What it would serve, a line a disk apart from exports and a line an export.
    pub(crate) fn summary(&self) -> String {
        let control = self.control.as_ref().map_or("no control socket".into(), |path| path.display().to_string());
        let mut text = format!("control {control}; {} shared worker(s)\n", self.workers);
        for disk in &self.disks {
            let shared = if disk.shared { ", shared among SCSI devices" } else { "" };
            let _ = writeln!(text, "disk {}: {}{shared}", disk.name, disk.storage.kind());
        }
        for export in &self.exports {
            let path = export.socket.as_ref().map(|path| path.display().to_string());
            let socket = path.or(export.listen.as_ref().map(ToString::to_string));
            let socket = socket.unwrap_or_else(|| format!("fd {}", export.socket_fd.unwrap_or_default()));
            let storage = export.storage.as_ref().map(|storage| storage.kind().to_owned());
            let directory = export.directory.as_ref().map(|directory| match directory.protocol {
                Protocol::Virtiofs => format!("dir {}", directory.path.display()),
                Protocol::P9 => format!("dir {} over 9p", directory.path.display()),
            });
            let disk = export.disk.as_ref().map(|disk| format!("disk {disk}"));
            let scsi = (export.kind == ExportKind::Scsi).then(|| format!("scsi with {} disk(s)", export.luns.len()));
            let (kind, workers) = (storage.or(disk).or(directory).or(scsi).unwrap_or_default(), export.workers);
            let what = if export.listen.is_some() { "client(s)" } else { "queue(s)" };
            let _ = writeln!(
                text,
                "export {}: {kind} on {socket}, {} {what}, workers {workers}",
                export.name,
                export.queues()
            );
        }
        if self.exports.iter().any(|export| export.kind == ExportKind::Dir) {
            text += "directories of this daemon share its sandbox: `vringd dir` serves one in its own\n";
        }
        text
    }
}

/// One of them is every address of the host with the other's port.
fn overlap(one: &SocketAddr, other: &SocketAddr) -> bool {
    let any = one.ip().is_unspecified() || other.ip().is_unspecified();
    any && one.is_ipv4() == other.is_ipv4() && one.port() == other.port() && one.port() != 0
}

/// The text of a configuration, which a pipe may bring.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("has more than {} MiB: name a configuration in TOML", BYTES_MAX >> 20)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let failure = Config::read(file.path()).unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)));
        let line = failure.to_string();
        assert!(line.starts_with(&file.path().display().to_string()), "{line}");
        assert!(!line.contains('\n'), "{line}");
        line
    }

    const EXPORT: &str = "[[export]]\nname = 'a'\nsocket = '/tmp/a'\nstorage = { kind = 'null', size = '1G' }\n";

    #[test]
    fn a_small_file_is_enough() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), EXPORT).unwrap();
        let config = Config::read(file.path()).unwrap();
        assert_eq!(config.exports.len(), 1);
        assert!(config.summary().contains("export a: null on /tmp/a"));
    }

    #[test]
    fn places_that_two_sockets_have_are_refused() {
        let second = "[[export]]\nname = 'b'\nsocket = '/tmp/b'\nstorage = { kind = 'null', size = '1G' }\n";
        let both = format!("{EXPORT}{second}");
        let refused = refusal(&both.replace("/tmp/b", "/tmp/a"));
        assert!(refused.ends_with("export b: socket: /tmp/a is used twice"), "{refused}");
        let refused = refusal(&format!("control = '/tmp/a'\n{EXPORT}"));
        assert!(refused.ends_with("export a: socket: /tmp/a is used twice"), "{refused}");
        let ports = |one: &str, other: &str| {
            let both = both.replace("socket = '/tmp/a'", &format!("listen = '{one}'"));
            both.replace("socket = '/tmp/b'", &format!("listen = '{other}'"))
        };
        for (one, other) in
            [("tcp:7", "tcp:0.0.0.0:7"), ("tcp:0.0.0.0:7", "tcp:192.0.2.1:7"), ("tcp:[::]:7", "tcp:[::1]:7")]
        {
            let refused = refusal(&ports(one, other));
            assert!(refused.contains("export b: listen: tcp:") && refused.ends_with("its own port"), "{refused}");
        }
        for (one, other) in [("tcp:7", "tcp:192.0.2.1:7"), ("tcp:0", "tcp:0.0.0.0:0"), ("tcp:7", "tcp:0.0.0.0:8")] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), ports(one, other)).unwrap();
            Config::read(file.path()).unwrap();
        }
    }

    #[test]
    fn directories_are_read_and_said_to_share_a_sandbox() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let dir = "[[export]]\nname = 'b'\nkind = 'dir'\nsocket = '/tmp/b'\n[export.directory]\npath = '/srv'\ncache = 'always'\n";
        std::fs::write(file.path(), format!("{EXPORT}{dir}")).unwrap();
        let summary = Config::read(file.path()).unwrap().summary();
        assert!(summary.contains("export b: dir /srv on /tmp/b"), "{summary}");
        assert!(
            summary.ends_with("directories of this daemon share its sandbox: `vringd dir` serves one in its own\n")
        );
        assert!(refusal(&dir.replace("always", "mostly")).contains("export[0].directory.cache: "));
        assert!(refusal(&dir.replace("/srv", "")).contains("export b: directory.path: "));
        assert!(refusal(&dir.replace("path", "storage")).contains("storage"));
    }

    #[test]
    fn directories_over_9p_have_a_device_or_an_address() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let p9 = "[[export]]\nname = 'b'\nkind = 'dir'\nsocket = '/tmp/b'\n[export.directory]\npath = '/srv'\nprotocol = '9p'\n";
        let stream = p9.replace("socket = '/tmp/b'", "listen = 'tcp:5640'");
        std::fs::write(file.path(), format!("{p9}{}", stream.replace("'b'", "'c'"))).unwrap();
        let summary = Config::read(file.path()).unwrap().summary();
        assert!(summary.contains("export b: dir /srv over 9p on /tmp/b, "), "{summary}");
        assert!(summary.contains("export c: dir /srv over 9p on tcp:127.0.0.1:5640, 64 client(s), "), "{summary}");
        assert!(refusal(&stream.replace("tcp:5640", "5640")).contains("line 4: export[0].listen: "));
        assert!(refusal(&p9.replace("'9p'", "'nfs'")).contains("export[0].directory.protocol: "));
        assert!(refusal(&format!("{p9}cache = 'always'")).contains("export b: directory.cache: means nothing for 9p"));
        assert!(refusal(&format!("{p9}msize = 1")).contains("export b: directory.msize: must be 4K to 1M, not 1"));
        assert!(refusal(&format!("{p9}fmode = '0600'")).contains("export b: directory.fmode: only goes with"));
        let many =
            "name = 'b'\nkind = 'dir'\nlisten = 'tcp:0'\nqueues = 1024\ndirectory = { path = '/srv', protocol = '9p' }";
        let of = |text: &str| Config::of_one(toml::from_str(text).unwrap(), None, Poll::default(), Sockets::default());
        assert_eq!(of(many).unwrap().exports[0].queues(), 1024);
        assert!(of(&many.replace("1024", "1025")).unwrap_err().to_string().contains("queues: must be 1 to 1024"));
        let twins = format!("{stream}{}", stream.replace("'b'", "'c'").replace("tcp:5640", "tcp::5640"));
        assert!(refusal(&twins).contains("export c: listen: tcp:127.0.0.1:5640 is used twice"));
        let path = stream.replace("tcp:5640", "unix:/tmp/p9");
        let twins = format!("{path}{}", p9.replace("'b'", "'c'").replace("/tmp/b", "/tmp/p9"));
        assert!(refusal(&twins).contains("export c: socket: /tmp/p9 is used twice"));
    }

    #[test]
    fn refusals_name_the_line_the_field_and_the_fix() {
        assert!(refusal("workers = 'x'").contains("line 1: workers: "));
        assert!(refusal(&format!("{EXPORT}queues = 'x'")).contains("line 5: export[0].queues: "));
        assert!(refusal(&format!("{EXPORT}colour = 1")).contains("colour"));
        assert!(refusal("workers = 3\nworkers_max = 2").contains("workers: 3"));
        assert!(refusal("workers_max = 0").contains("1 to 1024"));
        assert!(refusal("[sandbox]\nseccomp = 'maim'").contains("line 2: sandbox.seccomp: "));
        assert!(refusal("[sandbox]\nallow = ['/']\nlandlock = 'off'").contains("sandbox.allow: "));
        assert!(refusal(&EXPORT.repeat(2)).contains("used twice"));
        let group = "[[group]]\nname = 'gold'\niops = 100\n";
        assert!(refusal(&group.repeat(2)).contains("group gold: name: is used twice"));
        assert!(refusal(&group.replace("100", "'x'")).contains("line 3: group[0].iops: "));
        assert!(refusal(&group.replace("iops", "burst_requests")).contains("group gold: burst_requests: "));
        let limited = format!("{EXPORT}limits = {{ iops = 10, group = 'gold' }}\n");
        assert!(refusal(&limited).contains("export a: limits.group: there is no [[group]]"));
        assert!(refusal(&limited.replace("10,", "2000000000,")).contains("export a: limits.iops: must be 1 to "));
        assert!(refusal(&EXPORT.replace("'a'\n", "'a b'\n")).contains("name: must be"));
        assert!(refusal(&EXPORT.replace("1G", "1X")).contains("a size"));
        assert!(refusal(&EXPORT.replace("null", "tape")).contains("tape"));
        let twins = format!("{EXPORT}{}", EXPORT.replace("name = 'a'", "name = 'b'"));
        assert!(refusal(&twins).contains("socket: /tmp/a is used twice"));
    }

    #[test]
    fn a_shared_disk_is_for_scsi_devices_to_which_it_is_the_same() {
        let disk = "[[disk]]\nname = 'd'\nstorage = { kind = 'null', size = '1G' }\nshared = true\n";
        let device = |name: &str, more: &str| {
            format!(
                "[[export]]\nname = '{name}'\nkind = 'scsi'\nsocket = '/tmp/{name}'\nluns = [{{ lun = 0, disk = 'd'{more}\n"
            )
        };
        let (a, b) = (device("a", " }]"), device("b", ", serial = 'd' }]"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{disk}{a}{b}")).unwrap();
        let summary = Config::read(file.path()).unwrap().summary();
        assert!(summary.contains("disk d: null, shared among SCSI devices\n"), "{summary}");

        let unshared = refusal(&format!("{}{a}{b}", disk.replace("shared = true", "")));
        assert!(unshared.contains("export b: luns[0].disk: disk `d` is writable and used by export `a`"), "{unshared}");
        assert!(unshared.ends_with("describe the disk with `shared = true`"), "{unshared}");
        let blk = "[[export]]\nname = 'c'\nsocket = '/tmp/c'\ndisk = 'd'\n";
        for config in [format!("{disk}{blk}"), format!("{disk}{a}{blk}"), format!("{disk}{blk}{a}")] {
            let refused = refusal(&config);
            assert!(
                refused.contains("export c: disk: disk `d` is shared, and only SCSI devices may have it"),
                "{refused}"
            );
        }
        for (more, line) in [
            (", serial = 'x' }]", "export b: luns[0].serial: is `x`, and `d` in export `a`"),
            (" }]\nblock_size = 4096", "export b: block_size: is 4096, and 512 in export `a`"),
            (" }]\nwrite_cache = 'off'", "export b: write_cache: is `off`, and `on` in export `a`"),
        ] {
            let refused = refusal(&format!("{disk}{a}{}", device("b", more)));
            assert!(refused.contains(line), "{refused}");
        }
        let [one, other] = ["db126-scsi", "db142-scsi"].map(|name| device(name, " }]"));
        let refused = refusal(&format!("{disk}{one}{a}{other}"));
        assert!(
            refused.contains("export db142-scsi: luns: disk `d` is shared with export `db126-scsi`, and"),
            "{refused}"
        );
        // One that is only read may differ.
        let read_only = "[[disk]]\nname = 'd'\nstorage = { kind = 'file', path = '/d', read_only = true }\n";
        std::fs::write(file.path(), format!("{read_only}{a}{}{blk}", device("b", ", serial = 'x' }]"))).unwrap();
        Config::read(file.path()).unwrap();
        let hands =
            "[[disk]]\nname = 'd'\nstorage = { kind = 'file', path = '/d', migratable = true }\nshared = true\n";
        assert!(refusal(hands).contains("disk d: shared: excludes `migratable`"));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let failure = Config::read(Path::new("/nonexistent/vringd.toml")).unwrap_err();
        assert!(failure.to_string().contains("/nonexistent/vringd.toml"));
    }
}
