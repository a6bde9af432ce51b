//! The commands: `vringd bench list`, `run` and `report`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::experiment::list::{self, Listed};
use crate::experiment::{Experiment, read, shipped};
use crate::report::compare::Changes;
use crate::report::{Report, data, output};
use crate::run::journal;

pub use crate::run::{Args as RunArgs, End, Plan, run};

/// Arguments of `vringd bench list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Show what this experiment compares, under which loads
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    /// Print the experiment's own file, to begin one of yours from
    #[arg(long, requires = "name", conflicts_with = "json")]
    toml: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `vringd bench report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Directory of a run
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Directory of another run, to compare with the first
    #[arg(value_name = "DIR2")]
    second: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Where the page and the data are written [default: DIR]
    #[arg(long, value_name = "DIR", conflicts_with = "second")]
    out: Option<PathBuf>,
}

/// The newest QEMU of the lab, for what else measures itself against it; `None` without a lab that has one.
pub fn qemu_of_lab() -> Option<PathBuf> {
    guest::lab::Lab::find()?.kit().qemu
}

/// Runs `vringd bench list`.
///
/// # Errors
/// The experiment cannot be read.
pub fn list(args: &ListArgs) -> Result<()> {
    let text = match &args.name {
        None => {
            let listed: Vec<Listed> = shipped::all()?.iter().map(Listed::of).collect();
            if args.json {
                serde_json::to_string_pretty(&listed)? + "\n"
            } else {
                let table = list::table(&listed, u16::try_from(output::width()).ok());
                format!("{table}\n`vringd bench list NAME` shows one in full; `vringd bench run NAME` runs it.\n")
            }
        }
        Some(name) if args.toml => match shipped::toml(name) {
            Some(text) => text.to_owned(),
            None => std::fs::read_to_string(name)?,
        },
        Some(name) => {
            let experiment = read::open(name)?;
            if args.json { serde_json::to_string_pretty(&experiment)? + "\n" } else { in_full(&experiment) }
        }
    };
    output::say(&text)
}

fn in_full(experiment: &Experiment) -> String {
    let mut lines = vec![
        format!("{}: {}", experiment.name, experiment.title),
        format!("claim: {} ({})", experiment.claim, experiment.source),
        format!("\nconfigurations (baseline: {}):", experiment.baseline),
    ];
    for configuration in &experiment.configurations {
        let mut line = format!("  {} [{}]", configuration.name, configuration.place.name());
        if !configuration.server.options.is_empty() {
            line += &format!(": {}", configuration.server.options.join(" "));
        }
        if let Some(reason) = &configuration.unsupported {
            line += &format!(": not possible: {reason}");
        }
        lines.push(line);
    }
    lines.push(format!("\nworkloads ({} rounds of {} s each):", experiment.rounds, experiment.time_s));
    for workload in &experiment.workloads {
        let options = if workload.fio.is_empty() { &workload.frontend } else { &workload.fio };
        let options: Vec<String> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push(format!("  {}: {}", workload.name, options.join(" ")));
    }
    lines.join("\n") + "\n"
}

/// What `vringd bench report` was asked for, read.
#[derive(Debug)]
pub struct Reading<'a> {
    args: &'a ReportArgs,
    first: Vec<Report>,
    second: Option<Vec<Report>>,
}

impl<'a> Reading<'a> {
    /// Reads the runs that `args` name.
    ///
    /// # Errors
    /// A directory is none, or holds no run that this program can read.
    pub fn of(args: &'a ReportArgs) -> Result<Self> {
        let out = args.out.as_deref().unwrap_or(&args.directory);
        ensure!(out.is_dir(), "--out {}: is no directory", out.display());
        let second = args.second.as_deref().map(read_reports).transpose()?;
        Ok(Self { args, first: read_reports(&args.directory)?, second })
    }

    /// Prints tables or a comparison, and writes the page and the data.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn show(&self) -> Result<()> {
        if let Some(second) = &self.second {
            let changes = Changes::of(&self.first, second);
            return output::say(&if self.args.json {
                serde_json::to_string_pretty(&changes)? + "\n"
            } else {
                changes.render_within(output::width())
            });
        }
        if self.args.json {
            data::json(&self.first, std::io::stdout().lock())?;
        } else {
            for report in &self.first {
                output::print(report)?;
            }
        }
        let page = output::write(&self.first, self.args.out.as_deref().unwrap_or(&self.args.directory))?;
        eprintln!("page: {}", page.display());
        Ok(())
    }
}

fn read_reports(directory: &Path) -> Result<Vec<Report>> {
    if !directory.is_dir() {
        bail!("{}: is no directory; give the one that `vringd bench run --out` wrote", directory.display());
    }
    Ok(journal::read_all(directory)?.into_iter().map(Report::of).collect())
}
