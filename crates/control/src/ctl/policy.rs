//! `vringd ctl policy`: what the daemon chooses by itself, and why.

use super::cells::{NOTHING, table, uptime};
use super::error::CtlError;
use crate::client::Client;
use crate::model::policy::{Decision, PlacementDecision, Policy, PolicyRecord, PolicySettings, WorkerPolicy};
use crate::model::{Favour, PolicyMode};
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

    /// Keep all as it is, or choose again.
    #[arg(long = "set", value_enum, value_name = "MODE")]
    pub mode: Option<PolicyMode>,

    /// Print each decision as it is made, until interrupted.
    #[arg(long, conflicts_with = "record")]
    pub follow: bool,

    /// Stop after this many decisions.
    #[arg(long, value_name = "N", requires = "follow", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,

    /// Save what was seen and decided in the last minutes, for `vringd policy replay`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["favour", "mode"])]
    pub record: Option<PathBuf>,
}

pub(super) fn run(args: &PolicyArgs, client: &Client, json: bool, out: &mut dyn Write) -> Result<(), CtlError> {
    if let Some(path) = &args.record {
        return record(&client.get("/v1/policy/record")?, path, json, out);
    }
    let settings = PolicySettings { favour: args.favour, policy: args.mode };
    let policy: Policy = if settings == PolicySettings::default() {
        client.get("/v1/policy")?
    } else {
        client.send(Method::PATCH, "/v1/policy", &settings)?
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
    let chooses = match policy.policy {
        PolicyMode::Auto => format!("favours {}", policy.favour),
        PolicyMode::Fixed => "fixed: nothing is tried, learned or moved".to_owned(),
    };
    if policy.workers.is_empty() {
        return format!("{chooses}; no workers\n");
    }
    let headers =
        [">WORKER", "NAME", "POLL", "WAITS BY", ">WINDOW µs", ">SINCE", ">GAIN", ">CPU/REQUEST", ">TRIALS", ">CHANGES"];
    let mut text = format!("{chooses}\n\n{}", table(&headers, policy.workers.iter().map(row)));
    for worker in &policy.workers {
        if let Some(last) = worker.decisions.first() {
            text += &format!("\n{}, {} ago: {}\n", worker.name, uptime(last.seconds_ago), last.why);
        }
    }
    if let Some(last) = policy.placement.decisions.first() {
        text += &format!("\nrings, {} ago: {}\n", uptime(last.seconds_ago), moved(last));
    }
    text
}

/// Which rings were moved, and why.
fn moved(decision: &PlacementDecision) -> String {
    const SHOWN: usize = 8;
    let rings = decision.moves.iter().take(SHOWN);
    let mut rings: Vec<String> = rings.map(|it| format!("{}/{} to {}", it.export, it.ring, it.to)).collect();
    if decision.moves.len() > SHOWN {
        rings.push(format!("{} more", decision.moves.len() - SHOWN));
    }
    format!("{}: {}", rings.join(", "), decision.why)
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
        let changes = policy.placement.changes;
        let seen: BTreeMap<u32, u64> = policy.workers.iter().map(|worker| (worker.id, worker.trials)).collect();
        std::thread::sleep(FOLLOW_EVERY);
        policy = client.get("/v1/policy")?;
        let mut news: Vec<(String, serde_json::Value)> = Vec::new();
        for worker in &policy.workers {
            let new = newer(worker.trials, seen.get(&worker.id).copied().unwrap_or(0));
            for decision in worker.decisions.iter().take(new).rev() {
                let Decision { before, after, why, .. } = decision;
                let step = if before == after { format!("stays with {after}") } else { format!("{before} -> {after}") };
                let text = format!("{} {step}: {why}", worker.name);
                news.push((text, serde_json::json!({ "worker": worker.id, "decision": decision })));
            }
        }
        for decision in policy.placement.decisions.iter().take(newer(policy.placement.changes, changes)).rev() {
            news.push((moved(decision), serde_json::json!({ "placement": decision })));
        }
        for (text, value) in news {
            if json {
                line(&value, out)?;
            } else {
                writeln!(out, "{text}")?;
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

/// How many are new of so many, of which so many were seen. Who counts less than before is another: all of its are new.
fn newer(now: u64, seen: u64) -> usize {
    usize::try_from(if seen <= now { now - seen } else { now }).unwrap_or(usize::MAX)
}
