//! The simulator against real runs on one and two processors: `vringd-bench bench disk` on a disk that does nothing.

use serde_json::Value;
use simulator::{Client, Costs, Host, Placing, Scenario, run};
use std::process::Command;

/// Rounds of a cell. The best of them is the one that others on the machine disturbed least.
const ROUNDS: &str = "15";

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
    best_per_cpu: f64,
}

pub(crate) fn validate(program: &str) -> Result<String, String> {
    let mut text = format!(
        "{:<44}{:>10}{:>10}{:>11}{:>8}{:>22}\n",
        "null, 4 KiB", "median", "best", "simulated", "ratio", "per CPU s, ratio"
    );
    for cell in &CELLS {
        let measured = measure(program, cell)?;
        let simulated = run(&scenario(cell));
        let who = if cell.per_queue { "a worker per queue" } else { "one worker" };
        let name = format!("{} CPU, {} queue, depth {}, {who}", cell.processors, cell.queues, cell.depth);
        text += &format!(
            "{name:<44}{:>9.2}M{:>9.2}M{:>10.2}M{:>8.2}{:>9.2}M{:>13.2}\n",
            measured.median / 1e6,
            measured.best / 1e6,
            simulated.rate / 1e6,
            simulated.rate / measured.best,
            measured.best_per_cpu / 1e6,
            simulated.rate_per_cpu() / measured.best_per_cpu,
        );
    }
    Ok(text)
}

fn scenario(cell: &Cell) -> Scenario {
    Scenario {
        costs: Costs::here(),
        host: Host::together(cell.processors),
        clients: (0..cell.queues).map(|_| Client::busy(0, cell.depth, 64)).collect(),
        placing: Placing::Workers(if cell.per_queue { cell.queues } else { 1 }),
        warm_ns: 50_000_000,
        run_ns: 300_000_000,
        seed: 1,
    }
}

fn measure(program: &str, cell: &Cell) -> Result<Measured, String> {
    let workers = if cell.per_queue { "per-queue" } else { "one" };
    let ours = format!("--storage null --size 64M --queues {} --workers {workers}", cell.queues);
    let (queues, depth) = (cell.queues.to_string(), cell.depth.to_string());
    let mut command = Command::new(program);
    command.args(["bench", "disk", "--ours", &ours, "--queues", &queues, "--depth", &depth, "--rounds", ROUNDS]);
    command.args(["--time", "200ms", "--ramp", "100ms", "--log-level", "error", "--json", "-"]);
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
    // What a request costs is disturbed less than how many there are; its median stands for the quiet machine.
    let per_cpu = value["medians"][0]["ops_per_cpu_s"]["median"].as_f64().unwrap_or_default();
    Ok(Measured { best, median, best_per_cpu: per_cpu })
}
