//! The simulator against real runs on one and two processors: `vringd-bench bench disk` on a disk that does nothing.

use serde_json::Value;
use simulator::{Client, Costs, Host, Placing, Scenario, run};
use std::process::Command;

/// Rounds of a cell. The best of them is the one that others on the machine disturbed least.
const ROUNDS: &str = "16";

/// A configuration that can be measured on two processors.
struct Cell {
    processors: u16,
    queues: u32,
    depth: u32,
    per_queue: bool,
}

const CELLS: [Cell; 8] = [
    Cell { processors: 1, queues: 1, depth: 16, per_queue: false },
    Cell { processors: 1, queues: 1, depth: 128, per_queue: false },
    Cell { processors: 1, queues: 2, depth: 128, per_queue: true },
    Cell { processors: 2, queues: 1, depth: 16, per_queue: false },
    Cell { processors: 2, queues: 1, depth: 128, per_queue: false },
    Cell { processors: 2, queues: 2, depth: 16, per_queue: true },
    Cell { processors: 2, queues: 2, depth: 128, per_queue: true },
    Cell { processors: 2, queues: 2, depth: 128, per_queue: false },
];

struct Measured {
    best: f64,
    median: f64,
    /// Processor time of a request.
    server_ns: f64,
    client_ns: f64,
}

pub(crate) fn validate(program: &str, is_scsi: bool) -> Result<String, String> {
    let mut text = format!(
        "{:<46}{:>8}{:>8}{:>11}{:>7}{:>13}{:>11}{:>7}{:>13}\n",
        "null, 4 KiB", "median", "best", "simulated", "ratio", "server ns", "simulated", "ratio", "client ns"
    );
    for cell in &CELLS {
        let measured = measure(program, cell, is_scsi)?;
        let simulated = run(&scenario(cell, is_scsi));
        let who = if cell.per_queue { "a worker per queue" } else { "one worker" };
        let name = format!("{} CPU, {} queue, depth {}, {who}", cell.processors, cell.queues, cell.depth);
        let server_ns = 1e9 / simulated.rate_per_cpu().max(1.0);
        text += &format!(
            "{name:<46}{:>7.2}M{:>7.2}M{:>10.2}M{:>7.2}{:>13.0}{:>11.0}{:>7.2}{:>13.0}\n",
            measured.median / 1e6,
            measured.best / 1e6,
            simulated.rate / 1e6,
            simulated.rate / measured.best,
            measured.server_ns,
            server_ns,
            server_ns / measured.server_ns.max(1.0),
            measured.client_ns,
        );
    }
    Ok(text)
}

fn scenario(cell: &Cell, is_scsi: bool) -> Scenario {
    Scenario {
        costs: if is_scsi { Costs::here().over_scsi() } else { Costs::here() },
        host: Host::together(cell.processors),
        clients: (0..cell.queues).map(|_| Client::busy(0, cell.depth, 64)).collect(),
        placing: Placing::Workers(if cell.per_queue { cell.queues } else { 1 }),
        warm_ns: 50_000_000,
        run_ns: 300_000_000,
        seed: 1,
    }
}

fn measure(program: &str, cell: &Cell, is_scsi: bool) -> Result<Measured, String> {
    let workers = if cell.per_queue { "per-queue" } else { "one" };
    let (protocol, disk) =
        if is_scsi { ("scsi", "--lun 0=null:64M") } else { ("vhost-user", "--storage null --size 64M") };
    let ours = format!("{disk} --queues {} --workers {workers}", cell.queues);
    let (queues, depth) = (cell.queues.to_string(), cell.depth.to_string());
    let mut command = Command::new(program);
    command.args(["bench", "disk", "--protocol", protocol, "--ours", &ours]);
    command.args(["--queues", &queues, "--depth", &depth, "--rounds", ROUNDS]);
    command.args(["--time", "300ms", "--ramp", "100ms", "--log-level", "error", "--json", "-"]);
    if cell.processors == 1 {
        command.args(["--server-cpus", "0", "--load-cpus", "0"]);
    }
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let json = text.find('{').map(|from| &text[from..]).ok_or("no JSON comes from the bench")?;
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let value = values.next().ok_or("no JSON comes from the bench")?.map_err(|error| error.to_string())?;
    let runs = value["runs"].as_array().ok_or("the bench's JSON has no runs")?;
    let mut rates: Vec<f64> = runs.iter().filter_map(|run| run["iops"].as_f64()).collect();
    rates.sort_by(f64::total_cmp);
    let (Some(best), Some(median)) = (rates.last().copied(), rates.get(rates.len() / 2).copied()) else {
        return Err("the bench's JSON has no rates".to_owned());
    };
    // All rounds together: the kernel counts a server's time in ticks.
    let sum = |of: &dyn Fn(&Value) -> Option<f64>| -> f64 { runs.iter().filter_map(of).sum() };
    let operations = sum(&|run| run["ops"].as_f64()).max(1.0);
    let server = |run: &Value| Some(run["server"]["user_s"].as_f64()? + run["server"]["system_s"].as_f64()?);
    let server_ns = sum(&server) / operations * 1e9;
    let client_ns = sum(&|run| run["load_cpu_s"].as_f64()) / operations * 1e9;
    Ok(Measured { best, median, server_ns, client_ns })
}
