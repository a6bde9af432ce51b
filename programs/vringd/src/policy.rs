//! `vringd policy`: what a saved record of the policy tells, and would tell with something else favoured.

use crate::failure::Failure;
use clap::ValueEnum;
use control::model::Favour;
use control::model::policy::PolicyRecord;
use policy::{Replayed, Tactic};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest record that is read, in bytes: `vringd ctl` receives no longer one.
const RECORD_BYTES_MAX: u64 = 64 << 20;

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
    let named = text.strip_prefix("favour=").and_then(|name| Favour::from_str(name, false).ok());
    named.ok_or_else(|| "takes favour=latency, favour=balance or favour=efficiency".to_owned())
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
            "{}: its decisions are not those that this program ({}) makes from its samples: it was changed, or made by a program with \
             other rules ({})",
            file.display(),
            env!("CARGO_PKG_VERSION"),
            record.program
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::Runtime(format!("cannot write the output: {error}"))),
    }
}

fn read(path: &Path) -> Result<PolicyRecord, Failure> {
    let refuse = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut text = String::new();
    let bytes = file.take(RECORD_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
    if bytes as u64 > RECORD_BYTES_MAX {
        return Err(refuse(format!(
            "longer than {RECORD_BYTES_MAX} bytes: give what `vringd ctl policy --record` saved"
        )));
    }
    // The form comes first: fields of another one are no faults.
    let form: Form = parse(&text).map_err(|why| refuse(format!("no record of a policy: {why}")))?;
    if form.version != PolicyRecord::VERSION {
        let (found, known) = (form.version, PolicyRecord::VERSION);
        return Err(refuse(format!("version: form {found} of a record, and this program reads form {known}")));
    }
    let record: PolicyRecord = parse(&text).map_err(refuse)?;
    for (index, worker) in record.workers.iter().enumerate() {
        if let Some(bad) = worker.stretches.iter().position(|stretch| !stretch.is_sound()) {
            return Err(refuse(format!(
                "workers[{index}].stretches[{bad}]: no policy comes to this state or order of samples"
            )));
        }
    }
    let is_bad = |stretch: &policy::balance::Stretch| engine::catch(|| stretch.replay().1.len()).is_err();
    if let Some(bad) = record.placement.iter().position(is_bad) {
        return Err(refuse(format!("placement[{bad}]: no policy comes to this state or order of samples")));
    }
    Ok(record)
}

#[derive(serde::Deserialize)]
struct Form {
    version: u32,
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value =
        serde_path_to_error::deserialize(&mut json).map_err(|error| match error.path().to_string().as_str() {
            "." => error.inner().to_string(),
            field => format!("{field}: {}", error.inner()),
        })?;
    json.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// Whether all decisions were made again.
fn tell(record: &PolicyRecord, with: Option<Favour>, json: bool, out: &mut impl Write) -> std::io::Result<bool> {
    let mut all_same = true;
    let mut decisions = 0;
    for worker in &record.workers {
        for decision in policy::replay(&worker.stretches, with) {
            all_same &= decision.is_same();
            decisions += 1;
            if json {
                serde_json::to_writer(&mut *out, &serde_json::json!({ "worker": worker.id, "decision": decision }))?;
                writeln!(out)?;
            } else if let Some(line) = sentence(worker.id, &decision, with) {
                writeln!(out, "{line}")?;
            }
        }
    }
    for stretch in &record.placement {
        let (recorded, again) = stretch.replay();
        all_same &= recorded == again;
        decisions += again.len();
        for (place, verdict) in again.iter().enumerate() {
            let is_same = recorded.get(place) == Some(verdict);
            if json {
                serde_json::to_writer(&mut *out, &serde_json::json!({ "placement": verdict, "is_same": is_same }))?;
                writeln!(out)?;
            } else {
                let note = if is_same { "" } else { " (NOT in the record)" };
                let (at, rings) = (verdict.at_ns as f64 / 1e9, verdict.moves.len());
                writeln!(out, "rings {at:.3} s: {} {rings}{note}: {}", verdict.cause, verdict.why())?;
            }
        }
    }
    if decisions == 0 && !json {
        writeln!(out, "no decisions: nothing was tried in the time that was recorded")?;
    }
    Ok(all_same)
}

fn sentence(worker: u32, decision: &Replayed, with: Option<Favour>) -> Option<String> {
    let verdict = decision.again.or(decision.recorded)?;
    let note = match (decision.is_same(), decision.recorded) {
        (true, _) => "",
        (false, None) => " (NOT in the record)",
        (false, Some(_)) if decision.again.is_none() => " (NOT decided again)",
        (false, Some(_)) => " (recorded OTHERWISE)",
    };
    let at = verdict.at_ns as f64 / 1e9;
    let mut text = format!("worker-{worker} {at:.3} s: {}{note}", step(verdict.before, verdict.after));
    if let (Some(favour), Some(_)) = (with, decision.again) {
        text += &match &decision.instead {
            Some(other) => format!("; with favour={favour}: {}", step(other.before, other.after)),
            None => format!("; with favour={favour}: unknown, its tactic was given up in this trial"),
        };
    }
    Some(text + &format!(": {}", verdict.why()))
}

fn step(before: Tactic, after: Tactic) -> String {
    if before == after { format!("stays with {after}") } else { format!("{before} -> {after}") }
}
