//! Many request queues, and who serves them: changed while a guest works.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control::model::{Attach, Execution, NewWorker, RingInfo, Settings, Worker};
use http::Method;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer, TAG};
use tests::fs_guest;
use tests::lab::Lab;
use tests::uml::Kernel;

const LIMIT: Duration = Duration::from_secs(240);

/// Keeps both processors busy with data that is checked and with names.
const LOAD: &str = "test $(nproc) = 2
     busy() {
         mkdir work$1
         for round in 1 2 3; do
             taskset -c $1 fio --eta=never --name=verify --directory=/mnt/share/work$1 --size=16m --rw=randwrite \\
                 --bsrange=4k-64k --blockalign=4k --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=$round \\
                 --ioengine=libaio --direct=1 --iodepth=16
             taskset -c $1 cp -a /usr/share/perl5 work$1/tree
             taskset -c $1 diff -r /usr/share/perl5 work$1/tree
             rm -r work$1/tree
         done
     }
     touch $job/started
     busy 0 >/tmp/first 2>&1 & first=$!
     busy 1
     wait $first || { cat /tmp/first; exit 1; }
     touch $job/loaded";

fn serve(lab: &Lab, shared: &TempDir, workers: &'static str, execution: &'static str) -> Result<DirectoryServer> {
    let directory = Directory {
        queues: Some(2),
        workers: Some(workers),
        execution: Some(execution),
        ..Directory::new(shared.path())
    };
    DirectoryServer::start(lab, &directory)
}

fn ring(server: &DirectoryServer, index: u16) -> Result<RingInfo> {
    Ok(server.client()?.get(&format!("/v1/exports/{TAG}/rings/{index}"))?)
}

#[test]
fn both_queues_carry_requests() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = serve(&lab, &shared, "per-queue", "auto")?;
    let script = format!("{LOAD}\nuntil [ -e $job/over ]; do sleep 0.05; done");
    let mut guest = fs_guest::boot(&lab, Kernel::Smp(2), &server, &script)?;
    guest.wait_for("loaded", LIMIT)?;
    let rings = server.export()?.rings;
    ensure!(rings.len() == 3, "{} rings: one of high priority and two for requests are wanted", rings.len());
    let workers: Vec<_> = rings[1..].iter().map(|ring| ring.worker).collect();
    ensure!(workers[0].is_some() && workers[0] != workers[1], "served by {workers:?}");
    for ring in &rings[1..] {
        let requests: u64 = ring.figures.requests.values().sum();
        ensure!(requests > 1000, "ring {} carried only {requests} requests", ring.index);
        ensure!(ring.broken.is_none() && ring.figures.in_flight == 0, "{ring:?}");
    }
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}

#[test]
fn rings_move_and_execution_changes_under_load() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = serve(&lab, &shared, "one", "auto")?;
    let client = server.client()?;
    let script = format!("{LOAD}\nuntil [ -e $job/over ]; do sleep 0.05; done");
    let mut guest = fs_guest::boot(&lab, Kernel::Smp(2), &server, &script)?;
    guest.wait_for("started", LIMIT)?;
    let old = ring(&server, 1)?.worker.context("the ring has a worker")?;
    let new: Worker = client.send(Method::POST, &format!("/v1/exports/{TAG}/workers"), &NewWorker::default())?;
    let workers = [old, new.id];
    let executions = [Execution::Inline, Execution::Uring, Execution::Pool(2), Execution::Auto];
    let mut rounds = 0_usize;
    guest.until("loaded", LIMIT, || {
        for index in 0..3_u16 {
            let worker = workers[(rounds + usize::from(index)) % 2];
            let target = format!("/v1/exports/{TAG}/rings/{index}/worker");
            let moved: RingInfo = client.send(Method::PUT, &target, &Attach { worker })?;
            ensure!(moved.index == index);
        }
        let settings = Settings { execution: Some(executions[rounds % 4]), ..Settings::default() };
        let _: control::model::Export = client.send(Method::PATCH, &format!("/v1/exports/{TAG}"), &settings)?;
        rounds += 1;
        Ok(())
    })?;
    ensure!(rounds > 10, "only {rounds} rounds of moves happened while the load ran");
    println!("{rounds} rounds");
    for index in 1..3 {
        let ring = ring(&server, index)?;
        ensure!(ring.broken.is_none() && ring.figures.moves > 10, "{ring:?}");
    }
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}
