//! From TOML to an [`Experiment`]: axes are multiplied, defaults filled in, everything is checked, published figures are mapped.
//!
//! The form is described in `docs/experiments.md`. Whatever cannot be run is refused here, before a guest boots, in one line
//! that says what to change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::check::{self, Placed};
use super::expand::{self, Expanded, Wrong};
use super::options;
use super::problem::{At, Problem, ReadError, Refusal};
use super::raw::{RawConfiguration, RawExperiment, RawWorkload, Text};
use super::{Configuration, Data, Experiment, Guest, Medium, Server, Workload, published, shipped};

/// What a person named: a shipped experiment by its name, or a file by its path.
///
/// # Errors
/// If there is neither, or the file does not hold an experiment that can be run.
pub fn open(name_or_path: &str) -> Result<Experiment, ReadError> {
    if let Some(experiment) = shipped::find(name_or_path)? {
        return Ok(experiment);
    }
    let path = Path::new(name_or_path);
    let is_path = name_or_path.contains('/') || path.extension().is_some_and(|extension| extension == "toml");
    if !is_path && !path.exists() {
        let shipped = shipped::names().collect::<Vec<_>>().join(", ");
        return Err(ReadError::Unknown { name: name_or_path.to_owned(), shipped });
    }
    file(path)
}

/// The experiment in a file. A file of published figures that it names is looked for beside it.
///
/// # Errors
/// If it cannot be read, or does not hold an experiment that can be run.
pub fn file(path: &Path) -> Result<Experiment, ReadError> {
    let shown = path.display().to_string();
    let toml = std::fs::read_to_string(path).map_err(|error| ReadError::Unreadable { file: shown.clone(), error })?;
    let beside = path.parent().unwrap_or(Path::new(""));
    text(&shown, &toml, |name| std::fs::read_to_string(beside.join(name)).map_err(|error| error.to_string()))
}

/// The experiment in a text. `figures` gives the text of a file of published figures.
pub(super) fn text(
    file: &str,
    text: &str,
    figures: impl Fn(&str) -> Result<String, String>,
) -> Result<Experiment, ReadError> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| ReadError::Syntax {
        file: file.to_owned(),
        line: error.span().map_or(1, |span| text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1),
        message: one_line(error.message()),
    })?;
    build(table, figures).map_err(|refusal| ReadError::Wrong { file: file.to_owned(), refusal })
}

fn build(table: Table, figures: impl Fn(&str) -> Result<String, String>) -> Result<Experiment, Box<Refusal>> {
    let top = |wrong| At::Top.refuse(wrong);
    let raw: RawExperiment = typed(table).map_err(top)?;
    check::times(&raw).map_err(top)?;

    let configurations =
        entries(&raw.configurations, &raw.defaults.configurations, "configurations", &[], configuration)?;
    let workloads = entries(&raw.workloads, &raw.defaults.workloads, "workloads", &["fio", "frontend"], workload)?;
    let mut experiment = Experiment {
        name: raw.name,
        title: raw.title,
        claim: raw.claim,
        source: raw.source,
        rounds: raw.rounds,
        order: raw.order,
        time_s: raw.time_s,
        warm_up_s: raw.warm_up_s,
        drop_caches: raw.drop_caches,
        baseline: raw.baseline,
        configurations: Vec::new(),
        workloads: Vec::new(),
        published: None,
        quick: raw.quick,
    };
    check::name(&experiment.name).map_err(|problem| top(("name".to_owned(), problem)))?;
    check::pairs(&configurations, &workloads)?;
    experiment.configurations = configurations.iter().map(|placed| placed.item.clone()).collect();
    experiment.workloads = workloads.iter().map(|placed| placed.item.clone()).collect();
    check::baselines(&experiment, &configurations)?;
    if let Some(raw) = raw.published {
        let in_published = |wrong| At::Table("published").refuse(wrong);
        let text = figures(&raw.file)
            .map_err(|error| Problem::Figures { file: raw.file.clone(), error })
            .map_err(|problem| in_published(("file".to_owned(), problem)))?;
        let read = published::read(&raw, &text).map_err(in_published)?;
        experiment.published = Some(read);
        check::published(&experiment).map_err(in_published)?;
    }
    check::quick(&experiment).map_err(|wrong| At::Table("quick").refuse(wrong))?;
    Ok(experiment)
}

/// The entries of a list, multiplied and typed.
fn entries<T>(
    raw: &[Table],
    defaults: &Table,
    list: &'static str,
    late: &[&str],
    item: impl Fn(&Expanded) -> Result<T, Wrong>,
) -> Result<Vec<Placed<T>>, Box<Refusal>> {
    if raw.is_empty() {
        return Err(At::Top.refuse((list.to_owned(), Problem::NoEntries(list))));
    }
    let mut placed: Vec<Placed<T>> = Vec::new();
    for (index, table) in raw.iter().enumerate() {
        let at = |name: Option<&Value>| At::Entry {
            list,
            number: index + 1,
            name: name.and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
        let joined = expand::join(table, defaults);
        let name = joined.get("name").cloned();
        let expanded = expand::expand(joined, late).map_err(|wrong| at(name.as_ref()).refuse(wrong))?;
        for one in &expanded {
            let at = at(one.table.get("name"));
            let item = item(one).map_err(|wrong| at.clone().refuse(wrong))?;
            placed.push(Placed { item, at });
        }
        if placed.len() > expand::ENTRIES_MAX {
            let problem = Problem::TooMany(placed.len(), expand::ENTRIES_MAX);
            return Err(At::Top.refuse((list.to_owned(), problem)));
        }
    }
    Ok(placed)
}

fn configuration(expanded: &Expanded) -> Result<Configuration, Wrong> {
    let missing = |field: &str| (field.to_owned(), Problem::MissingIn("configurations"));
    let raw: RawConfiguration = typed(expanded.table.clone())?;
    let server = raw.server.ok_or_else(|| missing("server"))?;
    let data = raw.data.ok_or_else(|| missing("data"))?;
    let server = Server { kind: server.kind, options: split(&server.options)? };
    let size_mib = match (data.medium, data.size_mib) {
        (Medium::None, Some(_)) => return Err(("data.size_mib".to_owned(), Problem::CannotBe(options::MADE_UP))),
        // Zero is out of range, and said so where everything else is.
        (Medium::None, None) => options::size_mib(&server).unwrap_or(0),
        (_, Some(number)) => number.0,
        (_, None) => return Err(missing("data.size_mib")),
    };
    let guest = raw.guest;
    let default = Guest::default();
    let configuration = Configuration {
        name: raw.name.ok_or_else(|| missing("name"))?.0,
        labels: labels(expanded, raw.labels)?,
        values: expanded.values.clone(),
        baseline: raw.baseline.filter(|name| !name.is_empty()),
        place: raw.place.ok_or_else(|| missing("place"))?,
        server,
        data: Data { medium: data.medium, files: check::number(data.files, 1, "data.files")?, size_mib },
        guest: Guest {
            processors: check::number(guest.processors, default.processors, "guest.processors")?,
            memory_mib: check::number(guest.memory_mib, default.memory_mib, "guest.memory_mib")?,
            queues: check::number(guest.queues, default.queues, "guest.queues")?,
            mount: guest.mount,
            one_node: guest.one_node.is_some_and(|flag| flag.0),
            instruction_clock: guest.instruction_clock.is_some_and(|flag| flag.0),
            reserve: guest.reserve.is_some_and(|flag| flag.0),
        },
        unsupported: raw.unsupported.filter(|reason| !reason.is_empty()),
    };
    check::configuration(&configuration)?;
    Ok(configuration)
}

fn workload(expanded: &Expanded) -> Result<Workload, Wrong> {
    let raw: RawWorkload = typed(expanded.table.clone())?;
    let options = |raw: BTreeMap<String, Text>| {
        raw.into_iter().map(|(name, Text(value))| (name, value)).filter(|(_, value)| !value.is_empty()).collect()
    };
    let workload = Workload {
        name: raw.name.ok_or_else(|| ("name".to_owned(), Problem::MissingIn("workloads")))?.0,
        labels: labels(expanded, raw.labels)?,
        fio: options(raw.fio),
        files: check::number(raw.files, 1, "files")?,
        own_files: check::number(raw.own_files, 0, "own_files")?,
        frontend: options(raw.frontend),
    };
    check::workload(&workload)?;
    Ok(workload)
}

/// The labels that come of axes, and those that are written down.
fn labels(expanded: &Expanded, written: BTreeMap<String, Text>) -> Result<BTreeMap<String, String>, Wrong> {
    let mut labels = expanded.labels.clone();
    for (name, Text(value)) in written {
        if labels.insert(name.clone(), value).is_some() {
            return Err((format!("labels.{name}"), Problem::LabelIsAxis));
        }
    }
    // An empty label is none: so an entry can have one for some values of an axis only.
    labels.retain(|_, value| !value.is_empty());
    Ok(labels)
}

/// Options of a server, split as a shell would: what a placeholder stands for may be several, or none.
fn split(options: &[String]) -> Result<Vec<String>, Wrong> {
    let mut words = Vec::new();
    for (index, option) in options.iter().enumerate() {
        let unclosed = || Problem::Malformed("a quotation mark is not closed: close it".into());
        words.extend(shlex::split(option).ok_or_else(|| (format!("server.options[{index}]"), unclosed()))?);
    }
    Ok(words)
}

/// `table` as a type of ours; what is wrong names the field.
fn typed<T: DeserializeOwned>(table: Table) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
        let mut path = error.path().to_string();
        let mut message = one_line(error.inner().message());
        if let Some((_, expected)) = message.split_once(", expected ").filter(|_| message.starts_with("unknown field"))
        {
            message = format!("is not known: use {expected}");
        } else if let Some(field) = message.strip_prefix("missing field") {
            // The path ends at the table.
            let field = field.trim().trim_matches('`');
            path = if path == "." { field.to_owned() } else { format!("{path}.{field}") };
            message = "is missing: add it".to_owned();
        }
        (path, Problem::Malformed(message))
    })
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The names of what is placed.
pub(super) fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}
