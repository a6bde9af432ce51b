//! `vringd ctl policy`: what the daemon chooses by itself, and why.

use super::cells::{NOTHING, table, uptime};
use super::error::CtlError;
use crate::client::Client;
use crate::model::Favour;
use crate::model::policy::{Policy, PolicyRecord, PolicySettings, WorkerPolicy};
use hyper::Method;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks of `--follow`: trials last a fifth of a second and are seconds apart.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

/// What to do with the policy.
#[derive(Debug, Clone, clap::Args)]
pub struct PolicyArgs {
    /// Change what is preferred where both cannot be had.
    #[arg(long, value_enum, value_name = "WHAT")]
    pub favour: Option<Favour>,

    /// Print each decision as it is made, until interrupted.
    #[arg(long, conflicts_with = "record")]
    pub follow: bool,

    /// Stop after this many decisions.
    #[arg(long, value_name = "N", requires = "follow", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,

    /// Save what was seen and decided in the last minutes, for `vringd policy replay`.
    #[arg(long, value_name = "FILE", conflicts_with = "favour")]
    pub record: Option<PathBuf>,
}

pub(super) fn run(args: &PolicyArgs, client: &Client, json: bool, out: &mut dyn Write) -> Result<(), CtlError> {
    if let Some(path) = &args.record {
        return record(&client.get("/v1/policy/record")?, path, json, out);
    }
    let policy: Policy = match args.favour {
        Some(favour) => client.send(Method::PATCH, "/v1/policy", &PolicySettings { favour })?,
        None => client.get("/v1/policy")?,
    };
    if json && !args.follow {
        serde_json::to_writer_pretty(&mut *out, &policy).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else if json {
        line(&policy, out)?;
    } else {
        write!(out, "{}", show(&policy))?;
    }
    out.flush()?;
    if args.follow { follow(policy, args.count, client, json, out) } else { Ok(()) }
}

fn line(value: &impl serde::Serialize, out: &mut dyn Write) -> Result<(), CtlError> {
    serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

fn record(record: &PolicyRecord, path: &Path, json: bool, out: &mut dyn Write) -> Result<(), CtlError> {
    let mut text = serde_json::to_vec(record).map_err(std::io::Error::from)?;
    text.push(b'\n');
    let mut file = File::create(path).map_err(|source| CtlError::Open { path: path.to_owned(), source })?;
    let saved = file.write_all(&text).and_then(|()| if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) });
    saved.map_err(|source| CtlError::Save { path: path.to_owned(), source })?;
    if !json {
        let of = |count: fn(&policy::Stretch) -> usize| -> usize {
            record.workers.iter().flat_map(|worker| &worker.stretches).map(count).sum()
        };
        let (samples, decisions) = (of(policy::Stretch::samples), of(policy::Stretch::decisions));
        writeln!(out, "saved {samples} samples and {decisions} decisions to {}", path.display())?;
    }
    Ok(())
}

fn show(policy: &Policy) -> String {
    if policy.workers.is_empty() {
        return format!("favours {}; no workers\n", policy.favour);
    }
    let headers =
        [">WORKER", "NAME", "POLL", "WAITS BY", ">WINDOW µs", ">SINCE", ">GAIN", ">CPU/REQUEST", ">TRIALS", ">CHANGES"];
    let mut text = format!("favours {}\n\n{}", policy.favour, table(&headers, policy.workers.iter().map(row)));
    for worker in &policy.workers {
        if let Some(last) = worker.decisions.first() {
            text += &format!("\n{}, {} ago: {}\n", worker.name, uptime(last.seconds_ago), last.why);
        }
    }
    text
}

fn row(worker: &WorkerPolicy) -> Vec<String> {
    let tactic = match worker.tactic {
        _ if worker.pinned => "pinned".to_owned(),
        Some(tactic) => tactic.to_string(),
        None => NOTHING.to_owned(),
    };
    let times = |ratio: Option<f64>| ratio.map_or_else(|| NOTHING.to_owned(), |ratio| format!("{ratio:.2}x"));
    let chose = worker.chosen_by.as_ref();
    vec![
        worker.id.to_string(),
        worker.name.clone(),
        worker.poll.to_string(),
        tactic,
        worker.poll_window_us_now.to_string(),
        worker.since_seconds.map_or_else(|| NOTHING.to_owned(), uptime),
        times(chose.map(|decision| decision.gain)),
        times(chose.map(|decision| decision.processor)),
        worker.trials.to_string(),
        worker.changes.to_string(),
    ]
}

/// Prints decisions that are made from now on.
fn follow(
    mut policy: Policy,
    mut left: Option<u32>,
    client: &Client,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), CtlError> {
    loop {
        let seen: BTreeMap<u32, u64> = policy.workers.iter().map(|worker| (worker.id, worker.trials)).collect();
        std::thread::sleep(FOLLOW_EVERY);
        policy = client.get("/v1/policy")?;
        for worker in &policy.workers {
            // One that counts less than before is another by this number: all of its decisions are new.
            let seen = seen.get(&worker.id).copied().filter(|seen| *seen <= worker.trials).unwrap_or(0);
            let new = worker.trials - seen;
            for decision in worker.decisions.iter().take(usize::try_from(new).unwrap_or(usize::MAX)).rev() {
                if json {
                    line(&serde_json::json!({ "worker": worker.id, "decision": decision }), out)?;
                } else if decision.before == decision.after {
                    writeln!(out, "{} stays with {}: {}", worker.name, decision.after, decision.why)?;
                } else {
                    writeln!(out, "{} {} -> {}: {}", worker.name, decision.before, decision.after, decision.why)?;
                }
                out.flush()?;
                if let Some(left) = &mut left {
                    *left -= 1;
                    if *left == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }
}
