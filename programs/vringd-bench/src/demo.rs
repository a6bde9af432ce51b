//! `vringd demo`: a disk, a frontend, verified I/O, and queues that move between workers meanwhile.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::frontend::{Load, Report, Rw, Snapshot, Spec};
use control::model::Span;
use tempfile::TempDir;

use crate::cli::Failure;
use crate::stage::{self, Stage};

const DISK: &str = "disk";

/// Size of the disk, in bytes.
const DISK_BYTES: u64 = 256 << 20;
const QUEUES: u16 = 2;
const WORKERS: u32 = 3;
/// Pause between two moves of a queue.
const PAUSE: Duration = Duration::from_millis(10);

/// Arguments of `vringd demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to run the load
    #[arg(long, value_name = "TIME", default_value = "8s")]
    pub(crate) time: Span,
    /// Keep the image at this path instead of a temporary one
    #[arg(long, value_name = "PATH")]
    pub(crate) image: Option<PathBuf>,
}

/// Runs the demo. Exit status 1 when a request failed or data was wrong.
pub(crate) fn run(args: &Args, program: &Path) -> Result<ExitCode, Failure> {
    println!("vringd demo: a disk whose queues change their worker while verified I/O runs\n");
    let directory = stage::directory().map_err(Failure::Runtime)?;
    let image = args.image.clone().unwrap_or_else(|| directory.path().join("demo.img"));
    make_image(&image).map_err(Failure::Usage)?;
    show_at_work(args, program, directory, &image).map_err(Failure::Runtime)
}

fn show_at_work(args: &Args, program: &Path, directory: TempDir, image: &Path) -> Result<ExitCode> {
    let path = toml::Value::from(image.to_str().context("--image: the path is not UTF-8")?);
    let stage = Stage::new(
        program,
        directory,
        WORKERS,
        &format!(
            "[[export]]\nname = '{DISK}'\nsocket = '@DIR@/{DISK}.sock'\nqueues = {QUEUES}\n\
             storage = {{ kind = 'file', path = {path} }}\n"
        ),
    )?;
    println!("disk      {} ({} MiB, sparse)", image.display(), DISK_BYTES >> 20);
    println!("socket    {}", stage.socket(DISK).display());
    println!(
        "workers   {WORKERS} shared ones; each of {QUEUES} queues moves to the next every {} ms",
        2 * PAUSE.as_millis()
    );
    println!("load      4 KiB random reads and writes, depth 32 a queue, every block checked\n");
    let report = drive(&stage, args.time.0)?;
    print_table(&stage, &report)?;
    print_lines();
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn make_image(path: &Path) -> Result<()> {
    // Never the end of somebody's file: what is there must not be there.
    let made = OpenOptions::new().write(true).create_new(true).open(path).and_then(|file| file.set_len(DISK_BYTES));
    made.with_context(|| format!("--image: {}", path.display()))
}

/// Runs load and moves for `time`, showing figures once a second.
fn drive(stage: &Stage, time: Duration) -> Result<Report> {
    let spec =
        Spec { rw: Rw::RandRw, mix: 50, depth: 32, queues: QUEUES, verify: true, time: Some(time), ..Spec::default() };
    let mut load = Load::start(&stage.socket(DISK), &spec)?;
    let mover = stage.start_mover(DISK, u64::MAX, PAUSE)?;
    let terminal = std::io::stdout().is_terminal();
    let mut last = load.snapshot();
    while !load.is_finished() {
        thread::sleep(Duration::from_millis(if terminal { 250 } else { 1000 }).min(time));
        let now = load.snapshot();
        show(&now, &last, mover.moves(), terminal);
        last = now;
    }
    if terminal {
        println!();
    }
    mover.finish()?;
    Ok(load.finish()?)
}

fn show(now: &Snapshot, last: &Snapshot, moves: u64, terminal: bool) {
    let seconds = now.seconds - last.seconds;
    let ops = now.ops.saturating_sub(last.ops);
    if seconds <= 0.0 || ops == 0 {
        return;
    }
    let line = format!(
        "{:5.1} s  {:>8.0} requests/s  p50 {:>5.0} us  p99 {:>6.0} us  {moves:>5} moves  {} errors  {} mismatches",
        now.seconds,
        ops as f64 / seconds,
        now.latency.p50_us,
        now.latency.p99_us,
        now.errors,
        now.mismatches
    );
    if terminal {
        print!("\r{line} ");
        // A terminal that went away is no reason to stop.
        let _ = std::io::stdout().flush();
    } else {
        println!("{line}");
    }
}

fn print_table(stage: &Stage, report: &Report) -> Result<()> {
    let (rings, workers) = (stage.rings(DISK)?, stage.workers()?);
    println!("\n{:10}{:>12}{:>12}{:>10}{:>14}{:>14}", "queue", "reads", "writes", "moves", "p50 served", "p99 served");
    for ring in &rings {
        let figures = &ring.figures;
        println!(
            "{:<10}{:>12}{:>12}{:>10}{:>11.0} us{:>11.0} us",
            ring.index,
            figures.count("read"),
            figures.count("write"),
            figures.moves,
            figures.latency_served.p50_us,
            figures.latency_served.p99_us
        );
    }
    println!("\n{:10}{:>12}{:>12}{:>10}{:>14}", "worker", "turns", "syscalls", "sleeps", "CPU seconds");
    for worker in &workers {
        let figures = &worker.figures;
        println!(
            "{:<10}{:>12}{:>12}{:>10}{:>14.2}",
            worker.id, figures.turns, figures.syscalls, figures.sleeps, figures.cpu_seconds
        );
    }
    println!(
        "\n{} requests in {:.1} s, every one checked: {} errors, {} mismatches",
        report.ops, report.seconds, report.errors, report.mismatches
    );
    Ok(())
}

fn print_lines() {
    println!(
        "
Attach a guest to a disk of your own:
  vringd disk --socket /tmp/disk.sock disk.img

  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=/tmp/disk.sock -device vhost-user-blk-pci,chardev=c0,num-queues={QUEUES} …

  cloud-hypervisor --memory size=1G,shared=on --disk vhost_user=true,socket=/tmp/disk.sock,num_queues={QUEUES} …"
    );
}
