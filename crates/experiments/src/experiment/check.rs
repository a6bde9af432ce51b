//! What a typed experiment must be so that it can be run.

use std::collections::BTreeSet;

use super::expand::Wrong;
use super::options;
use super::placeholder::{OF_CONFIGURATION, fill};
use super::problem::{At, Problem, Refusal};
use super::raw::{Number, RawExperiment};
use super::read::names;
use super::{Configuration, Experiment, Medium, Options, Place, ServerKind, Workload};

/// Something of a list, and where it stands in the file.
#[derive(Debug)]
pub(super) struct Placed<T> {
    pub(super) item: T,
    pub(super) at: At,
}

const FILES_MAX: u32 = 64;
const OWN_FILES_MAX: u32 = 1_000_000;
const ROUNDS: std::ops::RangeInclusive<u32> = 1..=100;

fn wrong(field: &str, problem: Problem) -> Wrong {
    (field.to_owned(), problem)
}

fn range(is_within: bool, field: &str, value: impl std::fmt::Display + Copy, range: &'static str) -> Result<(), Wrong> {
    if is_within { Ok(()) } else { Err(wrong(field, Problem::OutOfRange { value: value.to_string(), range })) }
}

/// A number of a smaller type, or its default.
pub(super) fn number<T: TryFrom<u64>>(number: Option<Number>, default: T, field: &str) -> Result<T, Wrong> {
    let Some(Number(value)) = number else { return Ok(default) };
    T::try_from(value)
        .map_err(|_| wrong(field, Problem::OutOfRange { value: value.to_string(), range: "something smaller" }))
}

pub(super) fn name(name: &str) -> Result<(), Problem> {
    let is_fine = |char: char| char.is_ascii_alphanumeric() || "-_.=+".contains(char);
    // The name of an experiment becomes that of a directory.
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(is_fine) {
        return Err(Problem::BadName(name.to_owned()));
    }
    Ok(())
}

/// Rounds and times, as written.
pub(super) fn times(raw: &RawExperiment) -> Result<(), Wrong> {
    for (field, text) in [("title", &raw.title), ("claim", &raw.claim), ("source", &raw.source)] {
        if text.trim().is_empty() {
            return Err(wrong(field, Problem::Empty("say it in a line")));
        }
    }
    let time = |field: &str, time_s: f64, range_text| {
        let is_within = (0.1..=3600.0).contains(&time_s);
        range(is_within, field, time_s, range_text)
    };
    let warm_up =
        |field: &str, time_s: f64| range((0.0..=600.0).contains(&time_s), field, time_s, "0 to 600 (seconds)");
    range(ROUNDS.contains(&raw.rounds), "rounds", raw.rounds, "1 to 100")?;
    time("time_s", raw.time_s, "0.1 to 3600 (seconds)")?;
    warm_up("warm_up_s", raw.warm_up_s)?;
    let quick = &raw.quick;
    range(ROUNDS.contains(&quick.rounds), "quick.rounds", quick.rounds, "1 to 100")?;
    time("quick.time_s", quick.time_s, "0.1 to 3600 (seconds)")?;
    warm_up("quick.warm_up_s", quick.warm_up_s)?;
    size("quick.size_mib", quick.size_mib)
}

fn size(field: &str, size_mib: u64) -> Result<(), Wrong> {
    range((1..=1 << 20).contains(&size_mib), field, size_mib, "1 to 1048576 (MiB)")
}

/// One configuration by itself.
pub(super) fn configuration(it: &Configuration) -> Result<(), Wrong> {
    name(&it.name).map_err(|problem| wrong("name", problem))?;
    together(it)?;
    range((1..=FILES_MAX).contains(&it.data.files), "data.files", it.data.files, "1 to 64")?;
    let sized = if it.data.medium == Medium::None { "server.options" } else { "data.size_mib" };
    size(sized, it.data.size_mib)?;
    range((1..=255).contains(&it.guest.processors), "guest.processors", it.guest.processors, "1 to 255")?;
    range(
        (64..=1 << 20).contains(&it.guest.memory_mib),
        "guest.memory_mib",
        it.guest.memory_mib,
        "64 to 1048576 (MiB)",
    )?;
    let (queues_max, queues_range) = match it.server.kind {
        ServerKind::VringdDir | ServerKind::Vringd9p => (64, "1 to 64"),
        ServerKind::VringdScsi => (254, "1 to 254"),
        _ => (256, "1 to 256"),
    };
    range((1..=queues_max).contains(&it.guest.queues), "guest.queues", it.guest.queues, queues_range)?;
    options::of_server(&it.server)
}

/// Whether place, server and data go together.
fn together(it: &Configuration) -> Result<(), Wrong> {
    use ServerKind as Kind;
    let cannot = |field: &str, why| Err(wrong(field, Problem::CannotBe(why)));
    let kind = it.server.kind;
    match (it.place, kind) {
        (Place::Host, Kind::None) => {}
        (Place::Host, _) => {
            return cannot(
                "server.kind",
                "on the host fio reads the files themselves: set it to \"none\", or place to frontend, uml or qemu",
            );
        }
        (_, Kind::None) => {
            return cannot(
                "server.kind",
                "without a server there is nothing to measure there: choose one, or set place to host",
            );
        }
        (Place::Qemu, _) => {}
        (_, Kind::QemuVirtioBlk | Kind::Qemu9p) => {
            return cannot(
                "server.kind",
                "this device lives in QEMU's process: set place to qemu, or choose another server",
            );
        }
        (Place::Frontend | Place::Uml | Place::Ssh, _) => {}
    }
    let is_made_up = options::is_made_up(&it.server);
    match it.data.medium {
        Medium::None if kind.is_directory() => {
            return cannot("data.medium", "a directory needs files to serve: set it to disk or memory");
        }
        Medium::None if it.server.serves_volume() => {
            return cannot(
                "data.medium",
                "a volume is a file: set it to disk or memory, and data.size_mib to its capacity",
            );
        }
        Medium::None if !kind.is_disk_of_ours() || !options::has_storage(&it.server) => {
            return cannot(
                "data.medium",
                "only vringd-disk and vringd-scsi make data up: add --storage sim, null or memory to server.options, or set it to disk or memory",
            );
        }
        Medium::None if kind.is_scsi() && !is_made_up => {
            return cannot(
                "data.medium",
                "behind a SCSI device only sim and null make data up: set it to disk or memory",
            );
        }
        Medium::None if it.data.size_mib == 0 => {
            return cannot("server.options", "what is made up needs a size: add --size, as in --size 1G");
        }
        Medium::Disk | Medium::Memory if is_made_up => {
            return cannot("data.medium", "the storage in server.options makes its data up: set it to none");
        }
        Medium::None | Medium::Disk | Medium::Memory => {}
    }
    if !it.guest.mount.is_empty() && (!kind.is_directory() || it.place == Place::Frontend) {
        return cannot("guest.mount", "only a directory in a guest is mounted: leave it out");
    }
    if it.guest.instruction_clock && it.place != Place::Qemu {
        return cannot("guest.instruction_clock", "only QEMU counts a guest's instructions: set the place to qemu");
    }
    if it.guest.reserve && !kind.is_scsi() {
        return cannot(
            "guest.reserve",
            "only a disk of a SCSI device is reserved: leave it out, or set server.kind to vringd-scsi",
        );
    }
    if kind.is_disk() && it.data.files != 1 {
        return cannot("data.files", "a disk is one image: set it to 1");
    }
    Ok(())
}

impl ServerKind {
    /// Whether it serves a disk.
    #[must_use]
    pub fn is_disk(self) -> bool {
        self != ServerKind::None && !self.is_directory()
    }

    /// Whether it is `vringd` with a disk, by whatever device.
    #[must_use]
    pub fn is_disk_of_ours(self) -> bool {
        matches!(self, ServerKind::VringdDisk | ServerKind::VringdScsi)
    }

    /// Whether its disk is one of a SCSI device.
    #[must_use]
    pub fn is_scsi(self) -> bool {
        self == ServerKind::VringdScsi
    }

    /// Whether it serves a directory, not a disk.
    #[must_use]
    pub fn is_directory(self) -> bool {
        matches!(self, ServerKind::VringdDir | ServerKind::Virtiofsd) || self.is_9p()
    }

    /// Whether it serves a directory by 9p.
    #[must_use]
    pub fn is_9p(self) -> bool {
        matches!(self, ServerKind::Vringd9p | ServerKind::Qemu9p)
    }
}

/// One workload by itself.
pub(super) fn workload(it: &Workload) -> Result<(), Wrong> {
    name(&it.name).map_err(|problem| wrong("name", problem))?;
    range((1..=FILES_MAX).contains(&it.files), "files", it.files, "1 to 64")?;
    range(it.own_files <= OWN_FILES_MAX, "own_files", it.own_files, "0 to 1000000")?;
    options::of_load("fio", &it.fio)?;
    options::of_load("frontend", &it.frontend)
}

/// Every workload on every configuration.
pub(super) fn pairs(
    configurations: &[Placed<Configuration>],
    workloads: &[Placed<Workload>],
) -> Result<(), Box<Refusal>> {
    unique(configurations, |it| &it.name)?;
    unique(workloads, |it| &it.name)?;
    for Placed { item: workload, at } in workloads {
        for Placed { item: configuration, .. } in configurations {
            if configuration.unsupported.is_none() {
                pair(workload, configuration).map_err(|wrong| at.clone().refuse(wrong))?;
            }
        }
    }
    Ok(())
}

fn unique<T>(placed: &[Placed<T>], name: impl Fn(&T) -> &String) -> Result<(), Box<Refusal>> {
    let mut seen = BTreeSet::new();
    for Placed { item, at } in placed {
        if !seen.insert(name(item)) {
            return Err(at.clone().refuse(wrong("name", Problem::Twice(name(item).clone()))));
        }
    }
    Ok(())
}

fn pair(workload: &Workload, configuration: &Configuration) -> Result<(), Wrong> {
    let (field, options, place) = match configuration.place {
        Place::Frontend => ("frontend", &workload.frontend, "in a frontend"),
        Place::Host => ("fio", &workload.fio, "on the host"),
        Place::Uml | Place::Qemu | Place::Ssh => ("fio", &workload.fio, "in a guest"),
    };
    if options.is_empty() {
        let configuration = configuration.name.clone();
        return Err(wrong(field, Problem::NoLoad { configuration, place, options: field }));
    }
    let has = configuration.data.files;
    if workload.files > has {
        let configuration = configuration.name.clone();
        return Err(wrong("files", Problem::TooFewFiles { configuration, has, needs: workload.files }));
    }
    let has_directory = configuration.place == Place::Host || configuration.server.kind.is_directory();
    if workload.own_files > 0 && !has_directory {
        return Err(wrong("own_files", Problem::CannotBe("a disk has no files: leave it out, or serve directories")));
    }
    placeholders(field, options, configuration)
}

fn placeholders(field: &str, options: &Options, configuration: &Configuration) -> Result<(), Wrong> {
    for (option, text) in options {
        let filled = fill(text, |name| {
            let value = name.strip_prefix(OF_CONFIGURATION).and_then(|name| configuration.value(name));
            value.map(str::to_owned).ok_or_else(|| {
                let known = configuration.labels.keys().chain(configuration.values.keys());
                let known: Vec<String> = known.map(|key| format!("{OF_CONFIGURATION}{key}")).collect();
                let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
                Problem::UnknownPlaceholder {
                    name: name.to_owned(),
                    known: format!("{known} ({})", configuration.name),
                }
            })
        });
        filled.map_err(|problem| wrong(&format!("{field}.{option}"), problem))?;
    }
    Ok(())
}

fn find<'a>(experiment: &'a Experiment, name: &str) -> Result<&'a Configuration, Problem> {
    experiment.configurations.iter().find(|it| it.name == name).ok_or_else(|| Problem::NotThere {
        kind: "configuration",
        name: name.to_owned(),
        known: names(experiment.configurations.iter().map(|it| it.name.as_str())),
    })
}

/// What others are compared with is there and runs.
pub(super) fn baselines(experiment: &Experiment, configurations: &[Placed<Configuration>]) -> Result<(), Box<Refusal>> {
    let check = |name: &str| match find(experiment, name)?.unsupported {
        Some(_) => Err(Problem::BaselineUnsupported(name.to_owned())),
        None => Ok(()),
    };
    check(&experiment.baseline).map_err(|problem| At::Top.refuse(wrong("baseline", problem)))?;
    for Placed { item, at } in configurations {
        check(experiment.baseline_of(item)).map_err(|problem| at.clone().refuse(wrong("baseline", problem)))?;
    }
    Ok(())
}

/// Published figures name what is there, and each has something to be compared with.
pub(super) fn published(experiment: &Experiment) -> Result<(), Wrong> {
    let Some(published) = &experiment.published else { return Ok(()) };
    find(experiment, &published.baseline).map_err(|problem| wrong("baseline", problem))?;
    let workloads: BTreeSet<&str> = experiment.workloads.iter().map(|it| it.name.as_str()).collect();
    let mut pairs = BTreeSet::new();
    for figure in &published.figures {
        find(experiment, &figure.configuration).map_err(|problem| wrong("configurations", problem))?;
        if !workloads.contains(figure.workload.as_str()) {
            let name = figure.workload.clone();
            let problem = Problem::NotThere { kind: "workload", name, known: names(workloads.iter().copied()) };
            return Err(wrong("workloads", problem));
        }
        if !pairs.insert((figure.configuration.as_str(), figure.workload.as_str())) {
            let twice = format!("{} {}", figure.configuration, figure.workload);
            return Err(wrong("configurations", Problem::TwoFigures(twice)));
        }
    }
    for figure in &published.figures {
        let configuration =
            find(experiment, &figure.configuration).map_err(|problem| wrong("configurations", problem))?;
        let baseline = experiment.published_baseline_of(configuration).unwrap_or_default();
        if !pairs.contains(&(baseline, figure.workload.as_str())) {
            let (configuration, workload) = (figure.configuration.clone(), figure.workload.clone());
            let problem = Problem::NoBaselineFigure { configuration, workload, baseline: baseline.to_owned() };
            return Err(wrong("configurations", problem));
        }
    }
    Ok(())
}

/// A quick run has something to run and to compare with.
pub(super) fn quick(experiment: &Experiment) -> Result<(), Wrong> {
    let labels = || {
        let configurations = experiment.configurations.iter().map(|it| &it.labels);
        configurations.chain(experiment.workloads.iter().map(|it| &it.labels))
    };
    for (axis, values) in &experiment.quick.axes {
        let field = format!("axes.{axis}");
        let known: BTreeSet<&str> = labels().filter_map(|labels| labels.get(axis)).map(String::as_str).collect();
        if known.is_empty() {
            let known = names(labels().flat_map(|labels| labels.keys()).map(String::as_str));
            return Err((field, Problem::NotThere { kind: "axis", name: axis.clone(), known }));
        }
        if let Some(unknown) = values.iter().find(|value| !known.contains(value.as_str())) {
            let problem = Problem::NotThere { kind: "value", name: unknown.clone(), known: names(known.into_iter()) };
            return Err((field, problem));
        }
    }
    let quick = experiment.quick();
    if quick.workloads.is_empty() {
        return Err(wrong("axes", Problem::QuickIsEmpty("the workloads")));
    }
    let is_there = |name: &str| quick.configurations.iter().any(|it| it.name == name);
    let baselines = quick.configurations.iter().map(|it| quick.baseline_of(it));
    let published = quick.published.iter().map(|published| published.baseline.as_str());
    match baselines.chain([quick.baseline.as_str()]).chain(published).find(|name| !is_there(name)) {
        Some(name) => Err(wrong("axes", Problem::NotInQuick(name.to_owned()))),
        None => Ok(()),
    }
}
