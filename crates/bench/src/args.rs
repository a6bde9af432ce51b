//! Options that several benchmarks have, and what follows from them.

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ValueEnum, ValueHint};
use rustix::thread::CpuSet;
use serde::Serialize;

/// Where results go besides the terminal.
#[derive(Debug, clap::Args)]
pub(crate) struct Json {
    /// Write every run, medians and ratios as JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
}

impl Json {
    /// Shows `text`, unless standard output is to have JSON, and writes `document`.
    pub(crate) fn show(&self, text: impl FnOnce() -> String, document: &impl Serialize) -> Result<()> {
        let only = self.json.as_deref() == Some(Path::new("-"));
        if !only {
            println!("{}", text());
        }
        let Some(path) = &self.json else { return Ok(()) };
        let json = serde_json::to_string_pretty(document)? + "\n";
        if only {
            return std::io::stdout().write_all(json.as_bytes()).context("cannot write to standard output");
        }
        fs::write(path, json).with_context(|| format!("--json {}: cannot write", path.display()))
    }
}

/// Who runs where.
#[derive(Debug, clap::Args)]
pub(crate) struct Cpus {
    /// CPUs for the servers and for fio, such as 0 or 0,2-3
    #[arg(long, value_name = "LIST", value_parser = cpu_list, conflicts_with = "socket")]
    server_cpus: Option<CpuList>,

    /// CPUs for the frontend
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    load_cpus: Option<CpuList>,
}

impl Cpus {
    /// Those of the servers; anywhere when there are none.
    pub(crate) fn servers(&self) -> &[usize] {
        self.server_cpus.as_ref().map_or(&[], |list| &list.0)
    }

    /// Has this thread, and those that it starts later, run where the frontend is to; servers are pinned by themselves.
    pub(crate) fn pin_load(&self) -> Result<()> {
        let Some(CpuList(cpus)) = &self.load_cpus else { return Ok(()) };
        rustix::thread::sched_setaffinity(None, &cpu_set(cpus))
            .with_context(|| format!("--load-cpus: cannot run on CPUs {cpus:?}"))
    }
}

/// CPUs in a list such as `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CpuList(Vec<usize>);

fn cpu_list(text: &str) -> Result<CpuList, String> {
    let help = || format!("`{text}` is no list of CPUs; write numbers and ranges such as 0,2-3");
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().map_err(|_| help())?, last.parse().map_err(|_| help())?);
        if first > last || last >= CpuSet::MAX_CPU {
            return Err(help());
        }
        cpus.extend(first..=last);
    }
    Ok(CpuList(cpus))
}

/// CPUs as the kernel wants them; those it cannot name are left out and make an empty set fail.
pub(crate) fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    set
}

/// Words of an option as a shell splits them; nothing is expanded.
pub(crate) fn split(option: &str, text: &str) -> Result<Vec<String>> {
    shlex::split(text).with_context(|| format!("{option} {text:?}: a quote is not closed"))
}

/// Makes names unique, since figures are told apart by them.
pub(crate) fn number_namesakes<'a>(names: impl Iterator<Item = &'a mut String>) {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        let namesakes = seen.iter().filter(|other| *other == name).count();
        seen.push(name.clone());
        if namesakes > 0 {
            *name = format!("{name}#{}", namesakes + 1);
        }
    }
}

/// What is read and what is left when a server is written `PROTOCOL:SERVER`.
pub(crate) fn spoken<P: ValueEnum>(text: &str) -> (Option<P>, &str) {
    let known = |(word, rest)| P::from_str(word, false).ok().map(|protocol| (Some(protocol), rest));
    text.split_once(':').and_then(known).unwrap_or((None, text))
}

/// Puts the protocol into a contender's name, behind the program.
pub(crate) fn tell_protocol(name: &mut String, protocol: impl Display) {
    let (program, rest) = name.split_at(name.find(' ').unwrap_or(name.len()));
    *name = format!("{program} {protocol}{rest}");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    /// A benchmark's options as a program of their own.
    #[derive(Debug, Parser)]
    struct Cli<A: clap::Args> {
        #[command(flatten)]
        args: A,
    }

    /// Options as a person types them, or the first line of the refusal.
    pub(crate) fn typed<A: clap::Args>(line: &str) -> Result<A, String> {
        let words = shlex::split(line).unwrap();
        Cli::try_parse_from(std::iter::once("bench".into()).chain(words))
            .map(|cli| cli.args)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
    }

    /// Whether the definition is sound.
    pub(crate) fn debug_assert<A: clap::Args>() {
        Cli::<A>::command().debug_assert();
    }

    #[test]
    fn cpus_are_numbers_and_ranges() {
        assert_eq!(cpu_list("0,2-4"), Ok(CpuList(vec![0, 2, 3, 4])));
        for bad in ["", "x", "1-", "4-2", "99999"] {
            assert!(cpu_list(bad).is_err(), "{bad:?} must not pass");
        }
    }
}
