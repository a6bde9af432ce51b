//! `vringd policy`: what a saved record of the policy tells, and would tell with something else favoured.

use crate::failure::Failure;
use control::model::Favour;
use control::model::policy::PolicyRecord;
use policy::{Replayed, Tactic};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest record that is read, in bytes: a daemon's own has at most some megabytes.
const RECORD_BYTES_MAX: u64 = 256 << 20;

/// Arguments of `vringd policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Decide again from a record that `vringd ctl policy --record` has saved
    Replay {
        /// The record
        file: PathBuf,
        /// Say what would have been decided with this favoured, as in favour=efficiency
        #[arg(long, value_name = "favour=WHAT", value_parser = favoured)]
        with: Option<Favour>,
        /// Print JSON: a line for each decision
        #[arg(long)]
        json: bool,
    },
}

fn favoured(text: &str) -> Result<Favour, String> {
    let named = text.strip_prefix("favour=");
    let found = named.and_then(|name| Favour::ALL.into_iter().find(|favour| favour.to_string() == name));
    found.ok_or_else(|| "takes favour=latency, favour=balance or favour=efficiency".to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Command::Replay { file, with, json } = &args.command;
    let record = read(file)?;
    let mut out = std::io::stdout().lock();
    let told = tell(&record, *with, *json, &mut out).and_then(|same| out.flush().map(|()| same));
    match told {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Err(Failure::Runtime(format!(
            "{}: not all decisions were made again: it is the record of a program with other rules ({}; this is {})",
            file.display(),
            record.program,
            env!("CARGO_PKG_VERSION")
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::Runtime(format!("cannot write the output: {error}"))),
    }
}

fn read(path: &Path) -> Result<PolicyRecord, Failure> {
    let refuse = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let bytes = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?.len();
    if bytes > RECORD_BYTES_MAX {
        return Err(refuse(format!(
            "{bytes} bytes are no record of a policy: give what `vringd ctl policy --record` saved"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    // The form comes first: fields of another one are no faults.
    let form: Form = parse(&text).map_err(|why| refuse(format!("no record of a policy: {why}")))?;
    if form.version != PolicyRecord::VERSION {
        let (found, known) = (form.version, PolicyRecord::VERSION);
        return Err(refuse(format!("version: form {found} of a record, and this program reads form {known}")));
    }
    parse(&text).map_err(refuse)
}

#[derive(serde::Deserialize)]
struct Form {
    version: u32,
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| match error.path().to_string().as_str() {
        "." => error.into_inner().to_string(),
        field => format!("{field}: {}", error.inner()),
    })
}

/// Whether all decisions were made again.
fn tell(record: &PolicyRecord, with: Option<Favour>, json: bool, out: &mut impl Write) -> std::io::Result<bool> {
    let mut all_same = true;
    let mut decisions = 0;
    for worker in &record.workers {
        for decision in worker.stretches.iter().flat_map(|stretch| stretch.replay(with)) {
            all_same &= decision.again.is_some();
            decisions += 1;
            if json {
                serde_json::to_writer(&mut *out, &serde_json::json!({ "worker": worker.id, "decision": decision }))?;
                writeln!(out)?;
            } else {
                writeln!(out, "{}", sentence(worker.id, &decision, with))?;
            }
        }
    }
    if decisions == 0 && !json {
        writeln!(out, "no decisions: nothing was tried in the time that was recorded")?;
    }
    Ok(all_same)
}

fn sentence(worker: u32, decision: &Replayed, with: Option<Favour>) -> String {
    let recorded = &decision.recorded;
    let at = recorded.at_ns as f64 / 1e9;
    let same = if decision.again.is_some() { "" } else { " (NOT decided again)" };
    let mut text = format!("worker-{worker} {at:.3} s: {}{same}", step(recorded.before, recorded.after));
    if let Some(favour) = with {
        text += &match &decision.instead {
            Some(other) => format!("; with favour={favour}: {}", step(other.before, other.after)),
            None => format!("; with favour={favour}: unknown, its tactic was given up in this trial"),
        };
    }
    text + &format!(": {}", recorded.why())
}

fn step(before: Tactic, after: Tactic) -> String {
    if before == after { format!("stays with {after}") } else { format!("{before} -> {after}") }
}
