//! The command line.

use crate::failure::Failure;
use crate::{config, demo, disk, generate, moves, run};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Storage daemon for virtual machines: serves disks over vhost-user.
#[derive(Debug, Parser)]
#[command(name = "vringd", version, max_term_width = 120, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  vringd demo                                        see it work, on a disk made for the purpose
  vringd disk --socket /tmp/d.sock disk.img          serve one image
  vringd serve /etc/vringd/config.toml               serve many exports
  vringd ctl export list                             look into a running daemon

Exit status: 0 done; 1 failed; 2 wrong usage or configuration, nothing was changed.")]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What to log, to standard error: error, warn, info, debug, trace, or a filter like `link=debug,info`
    #[arg(long, global = true, value_name = "LEVEL", default_value = "info", env = "VRINGD_LOG")]
    pub(crate) log_level: String,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve one disk on one socket
    Disk(Box<disk::Args>),
    /// Serve the exports of a configuration file
    Serve(ServeArgs),
    /// Look into a running daemon and change it while I/O runs
    Ctl(control::ctl::Args),
    /// Make a disk, serve it, run verified I/O on it while its queues move between workers, and show the figures
    Demo(demo::Args),
    /// Measure servers of vhost-user sockets
    Bench(BenchArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages, one for each command
    Man {
        /// Directory to write them to
        directory: PathBuf,
    },
}

/// Arguments of `vringd serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The configuration, in TOML
    pub(crate) config: PathBuf,
    /// Check the configuration, say what it would serve, and end
    #[arg(long)]
    pub(crate) check: bool,
}

/// Arguments of `vringd bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Drive any vhost-user-blk socket, ours or a peer's
    Disk(Box<bench::disk::Args>),
    /// Move rings between workers under verified load
    Moves(moves::Args),
}

/// Runs the command.
pub(crate) fn dispatch(arguments: Arguments) -> Result<ExitCode, Failure> {
    let log_level = &arguments.log_level;
    match arguments.command {
        Command::Disk(args) => {
            start_log(log_level)?;
            run::run(config::Config::of_disk(*args)?)
        }
        Command::Serve(args) => {
            start_log(log_level)?;
            let config = config::Config::read(&args.config)?;
            if args.check {
                print!("{}", config.summary());
                return Ok(ExitCode::SUCCESS);
            }
            run::run(config)
        }
        Command::Ctl(args) => Ok(control::ctl::run(args)),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(BenchArgs { what: Bench::Disk(args) }) => {
            bench::disk::run(&args, &own_path()?).map_err(|error| Failure::Runtime(format!("{error:#}")))
        }
        Command::Bench(BenchArgs { what: Bench::Moves(args) }) => moves::run(&args),
        Command::Completions { shell } => {
            generate::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => generate::man(&directory).map(|()| ExitCode::SUCCESS),
    }
}

fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::Runtime(format!("cannot find the running program: {error}")))
}

fn start_log(level: &str) -> Result<(), Failure> {
    // A bare word that is no level would be taken for the name of a target, and everything else be silent.
    let bare = level.split(',').find(|part| !part.contains('=') && part.parse::<tracing::Level>().is_err());
    if let Some(bare) = bare.filter(|bare| *bare != "off") {
        return Err(Failure::Usage(format!(
            "--log-level: `{bare}` is not a level: use error, warn, info, debug or trace"
        )));
    }
    let filter = tracing_subscriber::EnvFilter::builder().parse(level).map_err(|error| {
        Failure::Usage(format!(
            "--log-level: `{level}` is not a filter ({error}): use error, warn, info, debug or trace"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    Ok(())
}
