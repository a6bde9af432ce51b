//! The command line.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{demo, moves, shares};

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a disk, serve it, run verified I/O on it while its queues move between workers, and show the figures
    Demo(demo::Args),
    /// Measure servers of vhost-user sockets, and reproduce published experiments
    Bench(BenchArgs),
    #[command(flatten)]
    Generate(vringd::Generate),
}

#[derive(Debug, clap::Args)]
struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    what: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Drive any vhost-user-blk socket, ours or a peer's
    Disk(Box<bench::disk::Args>),
    /// Drive any virtio-fs or 9p server, ours or a peer's
    Fs(Box<bench::fs::Args>),
    /// Synchronous writes with an intent log, against peers, the host, and the same storage without it
    Commits(Box<bench::commits::Args>),
    /// What a backup of a disk, or a mirror of it, costs the guest that uses it, against QEMU
    Backup(Box<bench::backup::Args>),
    /// The policy against fixed poll windows, cell by cell
    Regret(Box<bench::regret::Args>),
    /// Move rings between workers under verified load
    Moves(moves::Args),
    /// See that exports of a group share its limits evenly
    Limits(shares::Args),
    /// List the published experiments that can be reproduced here
    List(experiments::command::ListArgs),
    /// Run experiments: configurations in turns, on real guests, against the real peers
    Run(Box<experiments::command::RunArgs>),
    /// Show what a run came to, or compare two runs
    Report(experiments::command::ReportArgs),
}

/// How a command ends badly.
pub(crate) enum Failure {
    /// By what the person can mend in what they typed.
    Usage(anyhow::Error),
    /// By anything else.
    Runtime(anyhow::Error),
}

/// The whole command line: `vringd`'s, with this program's subcommands in their places.
fn command() -> clap::Command {
    let ours = Arguments::command();
    let find = |name: &str| ours.find_subcommand(name).cloned();
    vringd::TOOL_SUBCOMMANDS.iter().filter_map(|name| find(name)).fold(vringd::command(), |whole, subcommand| {
        let name = subcommand.get_name().to_owned();
        whole.mut_subcommand(name, |_| subcommand)
    })
}

/// Runs the command that was given.
pub(crate) fn run() -> ExitCode {
    let matches = command().bin_name("vringd").get_matches();
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let (error, code) = match dispatch(arguments.command) {
        Ok(code) => return code,
        Err(Failure::Usage(error)) => (error, ExitCode::from(2)),
        Err(Failure::Runtime(error)) => (error, ExitCode::FAILURE),
    };
    eprintln!("vringd: {error:#}");
    code
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    let own = || own_path().map_err(Failure::Runtime);
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Demo(args) => demo::run(&args, &own()?),
        Command::Generate(generate) => generate.run(self::command()).map(done).map_err(Failure::Runtime),
        Command::Bench(BenchArgs { what }) => match what {
            Bench::Disk(args) => bench::disk::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::Fs(mut args) => {
                args.qemu_path = experiments::command::qemu_of_lab();
                bench::fs::run(&args, &own()?).map_err(Failure::Runtime)
            }
            Bench::Commits(args) => bench::commits::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::Backup(args) => bench::backup::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::Regret(args) => bench::regret::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::Moves(args) => moves::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::Limits(args) => shares::run(&args, &own()?).map_err(Failure::Runtime),
            Bench::List(args) => experiments::command::list(&args).map(done).map_err(Failure::Usage),
            Bench::Run(args) => {
                let plan = experiments::command::Plan::of(&args, &own()?).map_err(Failure::Usage)?;
                match experiments::command::run(&plan).map_err(Failure::Runtime)? {
                    experiments::command::End::Complete => Ok(ExitCode::SUCCESS),
                    experiments::command::End::Stopped => Ok(ExitCode::FAILURE),
                }
            }
            Bench::Report(args) => {
                let reading = experiments::command::Reading::of(&args).map_err(Failure::Usage)?;
                reading.show().map(done).map_err(Failure::Runtime)
            }
        },
    }
}

/// The server that is measured is this program: what it serves with is `vringd`'s, of the same build.
fn own_path() -> Result<PathBuf> {
    env::current_exe().context("cannot find the running program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn what_vringd_hands_on_is_known_here() {
        for name in vringd::TOOL_SUBCOMMANDS {
            let found = command().find_subcommand(name).cloned();
            assert!(found.is_some_and(|found| found.get_about().is_some()), "{name}");
        }
    }
}
