//! The command line.

use crate::confinement::Confinement;
use crate::failure::Failure;
use crate::generate::Generate;
use crate::upgrade::adopt;
use crate::{config, dir, disk, doctor, image, launch, log, policy, run, scsi, tools, virtiofsd, volume};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Storage daemon for virtual machines: serves disks and directories over vhost-user.
#[derive(Debug, Parser)]
#[command(name = "vringd", version, max_term_width = 120, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  vringd demo                                        see it work, on a disk made for the purpose
  vringd disk --socket /tmp/d.sock disk.img          serve one image
  vringd scsi --socket /tmp/s.sock --lun 0=a.img      serve images as the disks of a SCSI device
  vringd dir --socket /tmp/fs.sock --tag data DIR     serve one directory
  vringd serve /etc/vringd/config.toml               serve many exports
  vringd volume create --size 20G disk.vol           make a disk whose synchronous writes share commits
  vringd image create --size 20G disk.qcow2          make a thin disk
  vringd ctl export list                             look into a running daemon
  vringd doctor /etc/vringd/config.toml              look what of this machine holds it back

Exit status: 0 done; 1 failed; 2 wrong usage or configuration, nothing was changed; 3 the only export has failed;
4 ended by a second signal, with requests in flight.")]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What to log, to standard error: error, warn, info, debug, trace, or a filter like `vhost_user=debug,info`
    #[arg(long, global = true, value_name = "LEVEL", default_value = "info", env = "VRINGD_LOG")]
    pub(crate) log_level: String,
    /// In which form to log
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t, env = "VRINGD_LOG_FORMAT")]
    pub(crate) log_format: log::Format,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve one disk on one socket
    Disk(Box<disk::Args>),
    /// Serve a SCSI device with its disks on one socket
    Scsi(Box<scsi::Args>),
    /// Serve one directory on one socket
    Dir(Box<dir::Args>),
    /// Serve one directory with the command line of virtiofsd, for programs that start it
    #[command(args_override_self = true, version = virtiofsd::VERSION)]
    Virtiofsd(Box<virtiofsd::Options>),
    /// Serve the exports of a configuration file
    Serve(ServeArgs),
    /// Look what of this machine would hold a configuration back, and change nothing
    Doctor(doctor::Args),
    /// Go on with what another program served: what a daemon executes that is upgraded
    #[command(hide = true)]
    Adopt(adopt::Args),
    /// Make, look at and change volumes: disks whose synchronous writes share commits
    Volume(volume::Args),
    /// Make, look at and check qcow2 images
    Image(image::Args),
    /// Decide again what a daemon's policy has decided, from a record of what it saw
    Policy(policy::Args),
    /// Look into a running daemon and change it while I/O runs
    Ctl(control::ctl::Args),
    /// Make a disk, serve it, run verified I/O on it while its queues move between workers, and show the figures
    #[command(disable_help_flag = true)]
    Demo(ToolArgs),
    /// Measure servers of vhost-user sockets, and reproduce published experiments
    #[command(disable_help_flag = true)]
    Bench(ToolArgs),
    #[command(flatten)]
    Generate(Generate),
}

/// Arguments of a command that [`tools`] has.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolArgs {
    /// What `--help` of that command tells of
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Arguments of `vringd serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The configuration, in TOML
    pub(crate) config: PathBuf,
    /// Check the configuration, say what it would serve, and end
    #[arg(long)]
    pub(crate) check: bool,
    /// What the process gives up, over what the configuration says.
    #[command(flatten)]
    pub(crate) confinement: Confinement,
}

/// Runs the command.
pub(crate) fn dispatch(arguments: Arguments) -> Result<ExitCode, Failure> {
    let (level, format) = (arguments.log_level, arguments.log_format);
    let start_log = |sees_host| log::start(&log::Options { level: level.clone(), format, sees_host });
    match arguments.command {
        Command::Disk(args) => {
            start_log(true)?;
            run::run(launch::disk(*args)?)
        }
        Command::Scsi(args) => {
            start_log(true)?;
            run::run(launch::scsi(*args)?)
        }
        Command::Dir(args) => {
            start_log(args.isolation.sandbox == sandbox::Mode::None)?;
            let (config, alone) = launch::dir(*args)?;
            run::run_alone(config, &alone)
        }
        Command::Virtiofsd(options) => serve_as_virtiofsd(*options, format),
        Command::Serve(args) => {
            start_log(true)?;
            let mut config = config::Config::read(&args.config)?;
            config.sandbox = args.confinement.over(config.sandbox);
            config.sandbox.check().map_err(Failure::Usage)?;
            if args.check {
                say(&config.summary());
                return Ok(ExitCode::SUCCESS);
            }
            run::run(config)
        }
        Command::Doctor(args) => doctor::run(args),
        Command::Adopt(args) => adopt::run(&args, || start_log(true)),
        Command::Volume(args) => {
            start_log(true)?;
            volume::run(args)
        }
        Command::Image(args) => {
            start_log(true)?;
            image::run(args)
        }
        Command::Policy(args) => policy::run(&args),
        Command::Ctl(args) => Ok(control::ctl::run(args)),
        Command::Demo(args) => Err(tools::become_it("demo", args.arguments)),
        Command::Bench(args) => Err(tools::become_it("bench", args.arguments)),
        // Where the tools are installed, what they have is told of as well.
        Command::Generate(generate) if tools::beside().is_some() => {
            let (subcommand, argument) = generate.words();
            Err(tools::become_it(subcommand, vec![argument]))
        }
        Command::Generate(generate) => match generate.run(Arguments::command()) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(Failure::Runtime(format!("{error:#}"))),
        },
    }
}

/// Says it to whoever still reads.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Runs `vringd virtiofsd`, or the program that is called virtiofsd.
pub(crate) fn serve_as_virtiofsd(options: virtiofsd::Options, format: log::Format) -> Result<ExitCode, Failure> {
    if options.print_capabilities {
        say(&format!("{}\n", virtiofsd::capabilities()));
        return Ok(ExitCode::SUCCESS);
    }
    let mut launch = virtiofsd::launch(options)?;
    // As virtiofsd has it: podman sets this, and no option.
    if let Some(level) = std::env::var("RUST_LOG").ok().as_deref().and_then(virtiofsd::level) {
        launch.log_level = level;
    }
    if launch.syslog {
        log::start_syslog(&launch.log_level, c"virtiofsd")?;
    } else {
        log::start(&log::Options { level: launch.log_level.clone(), format, sees_host: false })?;
    }
    for line in &launch.remarks {
        tracing::warn!("{line}");
    }
    let (config, alone) = launch::virtiofsd(launch)?;
    run::run_alone(config, &alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_subcommand_reads_what_virtiofsd_reads() {
        let words =
            "vringd virtiofsd --fd=3 --shared-dir /srv --log-level debug --cache auto --cache always -d -o xattr";
        let arguments = Arguments::try_parse_from(words.split(' ')).unwrap();
        let Command::Virtiofsd(options) = arguments.command else { panic!("{words}") };
        assert_eq!((options.fd, options.log_level.as_str(), options.compat_debug), (Some(3), "debug", true));
        let version = Arguments::try_parse_from(["vringd", "virtiofsd", "--version"]).unwrap_err().to_string();
        assert!(version.contains(" 1.14.0 (vringd "), "{version}");
    }
}
