//! Experiments for tests.

use std::collections::BTreeMap;

use crate::experiment::{
    Configuration, Data, DropCaches, Experiment, Guest, Medium, Order, Place, Server, ServerKind, Workload,
};
use crate::record::{Environment, Header, SCHEMA};

/// An experiment of `configurations` named c0, c1, … and `workloads` named w0, w1, …, in two rounds.
pub(crate) fn experiment(configurations: usize, workloads: usize) -> Experiment {
    let configuration = |number| Configuration {
        name: format!("c{number}"),
        labels: BTreeMap::new(),
        values: BTreeMap::new(),
        baseline: None,
        place: Place::Frontend,
        server: Server { kind: ServerKind::VringdDisk, options: Vec::new() },
        data: Data { medium: Medium::Memory, files: 1, size_mib: 1 },
        guest: Guest { memory_mib: 256, ..Guest::default() },
        unsupported: None,
    };
    let workload = |number| Workload {
        name: format!("w{number}"),
        labels: BTreeMap::new(),
        fio: BTreeMap::new(),
        files: 1,
        own_files: 0,
        frontend: BTreeMap::new(),
    };
    Experiment {
        name: "sample".into(),
        title: "A sample".into(),
        claim: String::new(),
        source: String::new(),
        rounds: 2,
        order: Order::Rotating,
        time_s: 1.0,
        warm_up_s: 0.0,
        drop_caches: DropCaches::None,
        baseline: "c0".into(),
        configurations: (0..configurations).map(configuration).collect(),
        workloads: (0..workloads).map(workload).collect(),
        published: None,
        quick: crate::experiment::Quick::default(),
    }
}

/// The header of a run of [`experiment`].
pub(crate) fn header(configurations: usize, workloads: usize) -> Header {
    Header {
        schema: SCHEMA,
        vringd: "0.0.0".into(),
        quick: false,
        begun: "2026-01-01T00:00:00Z".into(),
        environment: Environment::default(),
        experiment: experiment(configurations, workloads),
    }
}
