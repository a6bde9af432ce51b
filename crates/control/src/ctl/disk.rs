//! The options that describe a disk: the same for `vringd disk` and `vringd ctl export add`.

use super::limit::LimitFlags;
use super::tls::TlsFlags;
use crate::model::config::{ExportKind, NewExport};
use crate::model::{
    ByteSize, CpuList, Execution, FieldError, FileMode, Listen, MemoryFile, OnLost, Placement, Poll, Span, SyncMode,
    WriteCache,
};
use disk::{Distribution, RbdSpec, StorageSpec};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use values::Luks;

/// A disk, its device and who serves it.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct DiskFlags {
    /// Where NBD clients connect, in place of a vhost-user socket: unix:PATH, tcp:PORT (on 127.0.0.1), tcp:IP:PORT, vsock:PORT
    /// or vsock:CID:PORT. Without --tls-certificates nobody is asked who they are, and nothing is encrypted
    #[arg(long, value_name = "ADDRESS", conflicts_with = "socket")]
    pub listen: Option<Listen>,
    /// What protects what they say.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Permission bits of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE")]
    pub socket_mode: Option<FileMode>,
    /// Owner of the socket, a user name or number
    #[arg(long, value_name = "USER")]
    pub socket_owner: Option<String>,
    /// Group of the socket, a group name or number
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// What stands behind it.
    #[command(flatten)]
    pub storage: StorageFlags,

    /// Queues the guest may use, 1 to 256 [default: 256]; with --listen the clients that may be connected, 1 to
    /// 1024 [default: 16]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queues: Option<u16>,
    /// Largest ring, in descriptors: a power of two up to 32768 [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub queue_size: Option<u16>,
    /// Serial number the guest sees, up to 20 characters [default: the name]
    #[arg(long, value_name = "TEXT", help_heading = "Device")]
    pub serial: Option<String>,
    /// Logical block size in bytes, 512 or 4096 [default: 512, or what the storage needs]
    #[arg(long, value_name = "BYTES", help_heading = "Device")]
    pub block_size: Option<u32>,
    /// Whether the guest finds a disk with a write cache, or may turn it on and off itself [default: on]
    #[arg(long, value_name = "WHETHER", help_heading = "Device")]
    pub write_cache: Option<WriteCache>,

    /// Who serves the queues: shared, one (worker), per-queue, or a number of workers
    #[arg(long, value_name = "PLACEMENT", default_value = "shared", help_heading = "Execution")]
    pub workers: Placement,
    /// How long a worker looks for work before it sleeps: off, fixed=US, adaptive, adaptive=US [default: adaptive]
    #[arg(long, value_name = "WINDOW", help_heading = "Execution")]
    pub poll: Option<Poll>,
    /// CPUs of the export's own workers, as in 0-3,8
    #[arg(long, value_name = "LIST", help_heading = "Execution")]
    pub cpus: Option<CpuList>,

    /// Its limits.
    #[command(flatten)]
    pub limits: LimitFlags,
}

/// What stands behind a disk, besides its kind and what is served.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct StorageFlags {
    /// Bypass the page cache (O_DIRECT); volumes do so anyway
    #[arg(long, help_heading = "Storage")]
    pub direct: bool,
    /// Let a volume, or the log in front of a qcow2 image, go through the page cache
    #[arg(long, conflicts_with = "direct", help_heading = "Storage")]
    pub no_direct: bool,
    /// Refuse writes
    #[arg(long, visible_alias = "read-only", help_heading = "Storage")]
    pub readonly: bool,
    /// Do not lock the image against other writers
    #[arg(long, help_heading = "Storage")]
    pub no_lock: bool,
    /// Open and lock the image only while a guest runs, so that another daemon can take it over when the guest migrates
    #[arg(long, conflicts_with_all = ["no_lock", "readonly"], help_heading = "Storage")]
    pub migratable: bool,
    /// Let a qcow2 image have backing files and data files in this directory, or on this block device, besides its own directory
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub allow_backing: Vec<PathBuf>,
    /// Serve a qcow2 image as it was at this internal snapshot, with --readonly; or an rbd image as it was at this snapshot
    #[arg(long, value_name = "ID|NAME", help_heading = "Storage")]
    pub snapshot: Option<String>,
    /// The Ceph cluster's name for this client, without `client.`, for storage rbd [default: admin]
    #[arg(long, value_name = "USER", help_heading = "Storage")]
    pub rbd_user: Option<String>,
    /// Configuration of the Ceph cluster, for storage rbd [default: /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE", help_heading = "Storage")]
    pub rbd_conf: Option<PathBuf>,
    /// What becomes of requests when the image is lost to its guest, for storage rbd: error or wait [default: error]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "WHAT", help_heading = "Storage")]
    pub rbd_on_lost: Option<OnLost>,
    /// Socket of the qemu-pr-helper that sends a guest's persistent reservations, for storage sg [default: none, they go to the device]
    #[arg(long, value_name = "PATH", help_heading = "Storage")]
    pub pr_helper: Option<PathBuf>,
    /// How long a command may take, 1s to 86400s, for storage sg [default: 60s for disks, 14400s for others]
    #[arg(long, value_name = "TIME", help_heading = "Storage")]
    pub sg_timeout: Option<Span>,
    /// Let commands through that reach beyond the device or change it for good, for storage sg
    #[arg(long, help_heading = "Storage")]
    pub sg_unfiltered: bool,
    /// Where storage calls run, or who waits for a simulated device: auto, uring, inline or pool=N [default: auto]
    #[arg(long, value_name = "HOW", help_heading = "Storage")]
    pub execution: Option<Execution>,
    /// Threads that wait for the storage: the same as --execution pool=N
    #[arg(long, value_name = "N", conflicts_with = "execution", value_parser = threads, help_heading = "Storage")]
    pub threads: Option<usize>,
    /// Serve what is encrypted in the LUKS container that the image holds, with the passphrase that this file has and nothing else
    #[arg(long, value_name = "FILE", help_heading = "Storage")]
    pub luks_key_file: Option<PathBuf>,
    /// Pass discards on to what holds the container, which then shows what of the disk is in use
    #[arg(long, requires = "luks_key_file", help_heading = "Storage")]
    pub luks_allow_discards: bool,
    /// Use huge pages for anonymous memory
    #[arg(long, help_heading = "Storage")]
    pub hugepages: bool,

    /// Log of the volume, where that is in a file or on a device of its own; or an intent log in front of a qcow2 image
    #[arg(long, value_name = "PATH", help_heading = "Volume")]
    pub log: Option<PathBuf>,
    /// When writes are on stable storage [default: standard]
    #[arg(long, value_name = "MODE", help_heading = "Volume")]
    pub sync: Option<SyncMode>,
    /// Memory for data that is not written back yet, 1M to 64G [default: a 64th of the host's memory, 64M to 256M]
    #[arg(long, value_name = "SIZE", help_heading = "Volume")]
    pub dirty_memory: Option<ByteSize>,
    /// Where that memory is: auto, none, or a path on tmpfs; in a file it outlives a killed daemon [default: auto]
    #[arg(long, value_name = "WHERE", help_heading = "Volume")]
    pub memory_file: Option<MemoryFile>,
    /// Put an intent log of this size over memory, null or sim, which lives as long as they do
    #[arg(long, value_name = "SIZE", help_heading = "Volume")]
    pub intent_log: Option<ByteSize>,

    /// The simulated device.
    #[command(flatten)]
    pub sim: SimFlags,
}

/// The model of a device: fields of its options that a person may leave out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, clap::Args)]
#[command(next_help_heading = "Simulated device (storage sim)")]
pub struct SimFlags {
    /// Mean latency of a read, as in 100us [default: 100us]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<Span>,
    /// Mean latency of a write [default: 100us]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<Span>,
    /// Shape of the latencies: constant, uniform, normal, log_normal or exponential [default: constant]
    #[arg(long, value_name = "SHAPE", value_parser = distribution)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Spread of the latencies relative to their mean, 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_spread: Option<f64>,
    /// Operations the device serves at once [default: 32]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Time a flush takes, alone or behind a write that must be durable [default: 0us]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_cost: Option<Span>,
    /// Time that a read or write takes longer when it does not follow the last one of its channel [default: 0us]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seek: Option<Span>,
    /// Share of operations that fail, 0 to 1 [default: 0]
    #[arg(long, value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_rate: Option<f64>,
    /// Operation, counted from 1, at which our own code panics, to see what that takes down [default: none]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub panic_after: Option<u64>,
    /// Seed of the random numbers [default: 0]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// The kind whose log is a file of its own, with options of its own.
const QCOW2: &str = "qcow2";
/// The kind whose images have no path.
const RBD: &str = "rbd";

fn threads(text: &str) -> Result<usize, String> {
    let legal = |threads: &usize| (1..=Execution::POOL_MAX).contains(threads);
    text.parse().ok().filter(legal).ok_or_else(|| format!("use 1 to {} threads", Execution::POOL_MAX))
}

fn distribution(text: &str) -> Result<Distribution, String> {
    let shape = serde_json::from_value(text.replace('-', "_").into());
    shape.map_err(|_| "use constant, uniform, normal, log_normal or exponential".to_owned())
}

/// What a disk is served from.
#[derive(Debug, Clone)]
pub enum Behind {
    /// A storage of its own.
    Storage(Served),
    /// The disk of this name, which is open by itself.
    Disk(String),
}

/// The kind of a storage and what is served of it.
#[derive(Debug, Clone, Default)]
pub struct Served {
    /// The kind, as it is written.
    pub kind: String,
    /// What a person calls it: the option, where there is one for kinds.
    pub kind_option: &'static str,
    /// Image, device, volume or file of memory.
    pub path: Option<PathBuf>,
    /// The option that gave the path, to name it where it means nothing.
    pub path_option: &'static str,
    /// Capacity of what is made.
    pub size: Option<ByteSize>,
}

impl DiskFlags {
    /// The disk as one value, not yet checked, with its limits shared with those of `group`.
    ///
    /// # Errors
    /// An option that means nothing to the storage, or one that is missing.
    pub fn describe(
        self,
        name: String,
        socket: Option<PathBuf>,
        behind: Behind,
        group: Option<String>,
    ) -> Result<NewExport, FieldError> {
        let (storage, disk) = match behind {
            Behind::Storage(served) => (Some(self.storage.describe(&served)?), None),
            Behind::Disk(name) => {
                self.storage.refuse()?;
                (None, Some(name))
            }
        };
        Ok(NewExport {
            name,
            kind: ExportKind::Disk,
            socket,
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner,
            socket_group: self.socket_group,
            socket_fd: None,
            listen: self.listen,
            tls: self.tls.tls(),
            storage,
            disk,
            luns: Vec::new(),
            directory: None,
            queues: self.queues,
            queue_size: self.queue_size,
            serial: self.serial,
            block_size: self.block_size,
            write_cache: self.write_cache,
            workers: self.workers,
            poll: self.poll,
            cpus: self.cpus,
            limits: self.limits.limits(group),
        })
    }
}

impl StorageFlags {
    /// Only what was given is written down: the storage fills in the rest, and refuses what it does not know. An option that
    /// it would ignore is an error, not a surprise.
    pub(super) fn describe(&self, served: &Served) -> Result<StorageSpec, FieldError> {
        let mut table = self.given(served);
        if served.kind == RBD {
            name_image(&mut table, served)?;
        }
        serde_json::from_value(Value::Object(table)).map_err(|error| self.explain(&error.to_string(), served))
    }

    /// Refuses all of them, beside a disk that is open.
    fn refuse(&self) -> Result<(), FieldError> {
        let served = Served::default();
        match self.given(&served).keys().find(|field| *field != "kind") {
            Some(field) => {
                let message = "says how a storage is opened, and the disk is open: give it to `vringd ctl disk add`";
                Err(FieldError::new(self.option(field, &served), message))
            }
            None => Ok(()),
        }
    }

    /// What was given, by the fields of a storage.
    fn given(&self, served: &Served) -> Map<String, Value> {
        let mut table = match serde_json::to_value(&self.sim) {
            Ok(Value::Object(table)) => table,
            _ => Map::new(),
        };
        let luks = self.luks_key_file.as_ref();
        let luks = luks.map(|file| json!(Luks { allow_discards: self.luks_allow_discards, ..Luks::new(file) }));
        let execution = self.threads.map(Execution::Pool).or(self.execution);
        // What is said of a log is said of that one, where it is another file than the disk.
        let has_log_file = served.kind == QCOW2 && self.log.is_some();
        let given = [
            ("kind", Some(json!(served.kind))),
            ("path", served.path.as_ref().map(|path| json!(path))),
            ("size", served.size.map(|size| json!(size))),
            ("direct", (self.direct || self.no_direct && !has_log_file).then(|| json!(self.direct))),
            ("read_only", self.readonly.then_some(json!(true))),
            ("lock", self.no_lock.then_some(json!(false))),
            ("migratable", self.migratable.then_some(json!(true))),
            ("allow", (!self.allow_backing.is_empty()).then(|| json!(self.allow_backing))),
            ("snapshot", self.snapshot.as_ref().map(|snapshot| json!(snapshot))),
            ("user", self.rbd_user.as_ref().map(|user| json!(user))),
            ("conf", self.rbd_conf.as_ref().map(|conf| json!(conf))),
            ("on_lost", self.rbd_on_lost.map(|on_lost| json!(on_lost))),
            ("pr_helper", self.pr_helper.as_ref().map(|path| json!(path))),
            ("timeout", self.sg_timeout.map(|timeout| json!(timeout))),
            ("unfiltered", self.sg_unfiltered.then_some(json!(true))),
            ("luks", luks),
            ("execution", execution.map(|execution| json!(execution))),
            ("hugepages", self.hugepages.then_some(json!(true))),
        ];
        let log = ("log", self.log.as_ref().map(|log| json!(log)));
        let memory_file = ("memory_file", self.memory_file.as_ref().map(|file| json!(file)));
        let of_a_log =
            [("sync", self.sync.map(|sync| json!(sync))), ("dirty_memory", self.dirty_memory.map(|size| json!(size)))];
        let filled = |pairs: Vec<(&str, Option<Value>)>| {
            pairs.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect::<Map<_, _>>()
        };
        table.extend(filled(given.to_vec()));
        if has_log_file {
            let path = ("path", log.1);
            let direct = ("direct", self.no_direct.then_some(json!(false)));
            let fields = filled([vec![path, direct, memory_file], of_a_log.to_vec()].concat());
            table.insert("log".to_owned(), Value::Object(fields));
            return table;
        }
        table.extend(filled(vec![log, memory_file]));
        match self.intent_log {
            Some(size) => {
                let mut log = filled(of_a_log.to_vec());
                log.insert("size".to_owned(), json!(size));
                table.insert("intent_log".to_owned(), Value::Object(log));
            }
            None => table.extend(filled(of_a_log.to_vec())),
        }
        table
    }

    /// The option that gives a field.
    fn option(&self, field: &str, served: &Served) -> String {
        match field {
            "path" => served.path_option.to_owned(),
            "direct" if self.no_direct => "--no-direct".to_owned(),
            "read_only" => "--readonly".to_owned(),
            "lock" => "--no-lock".to_owned(),
            "allow" => "--allow-backing".to_owned(),
            "luks" => "--luks-key-file".to_owned(),
            "user" => "--rbd-user".to_owned(),
            "conf" => "--rbd-conf".to_owned(),
            "on_lost" => "--rbd-on-lost".to_owned(),
            "timeout" => "--sg-timeout".to_owned(),
            "unfiltered" => "--sg-unfiltered".to_owned(),
            "execution" if self.threads.is_some() => "--threads".to_owned(),
            other => format!("--{}", other.replace('_', "-")),
        }
    }

    /// What the storage says of a field, in the words of the command line.
    fn explain(&self, message: &str, served: &Served) -> FieldError {
        let field_of =
            |prefix| message.strip_prefix(prefix).and_then(|rest: &str| rest.split_once('`')).map(|(field, _)| field);
        if let Some(field) = field_of("missing field `") {
            return match field {
                "path" => FieldError::new("IMAGE", "is missing: give the path of what is to be served"),
                "image" => FieldError::new("IMAGE", "is missing: give POOL/IMAGE"),
                "size" => FieldError::new("--size", "is missing: give the capacity, as in --size 10G"),
                other => FieldError::new(format!("--{}", other.replace('_', "-")), "is missing"),
            };
        }
        let Some(field) = field_of("unknown field `") else { return FieldError::new("storage", message) };
        let option = self.option(field, served);
        // What only a log has could have one.
        if ["sync", "dirty_memory"].contains(&field) && message.contains("`intent_log`") {
            return FieldError::new(option, "means nothing without a log: give --intent-log as well");
        }
        if ["sync", "dirty_memory", "memory_file"].contains(&field) && served.kind == QCOW2 {
            return FieldError::new(option, "means nothing without a log: give --log as well");
        }
        FieldError::new(option, format_args!("has no meaning for {} {}", served.kind_option, served.kind))
    }
}

/// An image of Ceph's is named by one word where others have a path.
fn name_image(table: &mut Map<String, Value>, served: &Served) -> Result<(), FieldError> {
    let Some(path) = &served.path else { return Ok(()) };
    table.remove("path");
    let refused = |why: &dyn std::fmt::Display| FieldError::new(served.path_option, why);
    let spec: RbdSpec = path.to_string_lossy().parse().map_err(|error| refused(&error))?;
    table.insert("pool".to_owned(), json!(spec.pool));
    table.extend(spec.namespace.map(|namespace| ("namespace".to_owned(), json!(namespace))));
    table.insert("image".to_owned(), json!(spec.image));
    if let Some(snapshot) = spec.snapshot
        && table.insert("snapshot".to_owned(), json!(snapshot)).is_some()
    {
        return Err(FieldError::new(
            "--snapshot",
            "is named by the image already, behind `@`: leave one of the two out",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};

    fn describe(kind: &str, path: Option<&str>, size: Option<&str>, options: &str) -> Result<StorageSpec, String> {
        let command = DiskFlags::augment_args(clap::Command::new("disk")).no_binary_name(true);
        let command = command.arg(clap::Arg::new("socket"));
        let matches = command.try_get_matches_from(options.split_whitespace()).map_err(|error| error.to_string())?;
        let flags = DiskFlags::from_arg_matches(&matches).unwrap();
        let served = Served {
            kind: kind.into(),
            path: path.map(Into::into),
            kind_option: "--storage",
            path_option: "IMAGE",
            size: size.map(|size| size.parse().unwrap()),
        };
        flags
            .describe("a".into(), None, Behind::Storage(served), None)
            .map(|new| new.storage.unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_what_is_given_is_not_a_default() {
        let expected = StorageSpec::File(disk::FileOptions::new("/a"));
        assert_eq!(describe("file", Some("/a"), None, ""), Ok(expected));
        let expected = StorageSpec::Volume(disk::VolumeOptions::new("/v"));
        assert_eq!(describe("volume", Some("/v"), None, ""), Ok(expected));
        let sim = disk::SimOptions::new(ByteSize(1 << 20));
        assert_eq!(describe("sim", None, Some("1M"), ""), Ok(StorageSpec::Sim(sim.clone())));
        let exponential = disk::SimOptions { distribution: Distribution::Exponential, seed: 7, ..sim };
        let options = "--distribution exponential --seed 7";
        assert_eq!(describe("sim", None, Some("1M"), options), Ok(StorageSpec::Sim(exponential)));
    }

    #[test]
    fn every_option_arrives() {
        let options = "--luks-key-file /k --luks-allow-discards";
        let Ok(StorageSpec::Qcow2(image)) = describe("qcow2", Some("/q"), None, options) else { panic!() };
        assert_eq!(image.luks, Some(Luks { allow_discards: true, ..Luks::new("/k") }));
        let options = "--log /l --no-direct --sync always --dirty-memory 2M --memory-file none";
        let Ok(StorageSpec::Qcow2(image)) = describe("qcow2", Some("/q"), None, options) else { panic!() };
        let log = values::LogFile {
            sync: SyncMode::Always,
            dirty_memory: ByteSize(2 << 20),
            memory_file: MemoryFile::None,
            direct: false,
            ..values::LogFile::new("/l")
        };
        assert_eq!((image.log, image.direct), (Some(log), false));
        let Ok(StorageSpec::Qcow2(image)) = describe("qcow2", Some("/q"), None, "--log /l --direct") else { panic!() };
        assert_eq!((image.log, image.direct), (Some(values::LogFile::new("/l")), true));
        let options = "--no-direct --no-lock --threads 3 --log /l --sync always --dirty-memory 2M --memory-file none";
        let Ok(StorageSpec::Volume(volume)) = describe("volume", Some("/v"), None, options) else { panic!() };
        assert_eq!((volume.direct, volume.lock, volume.execution), (false, false, Execution::Pool(3)));
        assert_eq!((volume.log, volume.sync), (Some("/l".into()), SyncMode::Always));
        assert_eq!((volume.dirty_memory, volume.memory_file), (ByteSize(2 << 20), MemoryFile::None));
        let options = "--hugepages --intent-log 64M --sync disabled --dirty-memory 4M";
        let Ok(StorageSpec::Memory(memory)) = describe("memory", None, Some("1G"), options) else { panic!() };
        let log = memory.intent_log.unwrap();
        assert_eq!((memory.hugepages, log.size, log.sync), (true, ByteSize(64 << 20), SyncMode::Disabled));
        assert_eq!(log.dirty_memory, ByteSize(4 << 20));
    }

    #[test]
    fn an_image_of_ceph_is_named_in_one_word() {
        let options = "--rbd-user me --rbd-conf /c --rbd-on-lost wait";
        let Ok(StorageSpec::Rbd(image)) = describe("rbd", Some("p/n/i@s"), None, options) else { panic!() };
        assert_eq!(image.spec().to_string(), "p/n/i@s");
        assert_eq!((image.user.as_str(), image.conf.to_str()), ("me", Some("/c")));
        assert_eq!(image.on_lost, OnLost::Wait);
        assert_eq!(describe("rbd", Some("p/i"), None, "--snapshot s"), describe("rbd", Some("p/i@s"), None, ""));
        let refused = |path, options| describe("rbd", path, None, options).unwrap_err();
        assert!(refused(Some("p/i@s"), "--snapshot t").starts_with("--snapshot: is named by the image already"));
        assert!(refused(Some("/i"), "").starts_with("IMAGE: `/i` is no image: write POOL/IMAGE"));
        assert_eq!(refused(None, ""), "IMAGE: is missing: give POOL/IMAGE");
        assert_eq!(refused(Some("p/i"), "--direct"), "--direct: has no meaning for --storage rbd");
        let foreign = describe("file", Some("/a"), None, "--rbd-user me").unwrap_err();
        assert_eq!(foreign, "--rbd-user: has no meaning for --storage file");
    }

    #[test]
    fn an_option_that_would_be_ignored_is_named() {
        let refused = |kind, path, size, options| describe(kind, path, size, options).unwrap_err();
        let (image, size) = (Some("/a"), Some("1M"));
        for (message, option) in [
            (refused("null", None, size, "--direct"), "--direct"),
            (refused("memory", None, size, "--no-direct"), "--no-direct"),
            (refused("sim", None, size, "--no-lock"), "--no-lock"),
            (refused("null", None, size, "--threads 2"), "--threads"),
            (refused("memory", None, size, "--execution inline"), "--execution"),
            (refused("file", image, size, ""), "--size"),
            (refused("file", image, None, "--hugepages"), "--hugepages"),
            (refused("volume", image, None, "--readonly"), "--readonly"),
            (refused("null", image, size, ""), "IMAGE"),
            (refused("file", image, None, "--log /l"), "--log"),
            (refused("file", image, None, "--memory-file none"), "--memory-file"),
            (refused("volume", image, None, "--intent-log 1M"), "--intent-log"),
            (refused("file", image, None, "--sync always"), "--sync"),
            (refused("null", None, size, "--luks-key-file /k"), "--luks-key-file"),
            (refused("file", image, None, "--read-latency 1ms"), "--read-latency"),
        ] {
            let kind = message.rsplit(' ').next().unwrap();
            assert_eq!(message, format!("{option}: has no meaning for --storage {kind}"));
        }
        let alone = refused("sim", None, size, "--dirty-memory 1M");
        assert_eq!(alone, "--dirty-memory: means nothing without a log: give --intent-log as well");
        for option in ["--dirty-memory 1M", "--sync always", "--memory-file none"] {
            let alone = refused("qcow2", image, None, option);
            assert!(alone.ends_with(": means nothing without a log: give --log as well"), "{alone}");
        }
        assert!(refused("sim", None, None, "").starts_with("--size: is missing"));
        assert!(refused("volume", None, None, "").starts_with("IMAGE: is missing"));
    }
}
