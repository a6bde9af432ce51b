//! What `vringd bench run` is told.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use guest::Kit;
use guest::lab::Lab;

use super::with_guests_in;
use crate::experiment::{self, Experiment, Place};
use crate::stand::{Limits, Programs, Site, SshSite};

/// Arguments of `vringd bench run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Experiments: names from `vringd bench list`, files, or `all`
    #[arg(required = true, value_name = "NAME|FILE")]
    pub(super) names: Vec<String>,
    /// A run of minutes, to see that everything works: its figures decide nothing, and every output says so
    #[arg(long)]
    pub(super) quick: bool,
    /// How often each pair of configuration and workload is measured
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// How long one measurement lasts, in seconds
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// How long a load runs before it is measured, in seconds
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// Directory for the journal, the data and the page [default: vringd-bench/NAME-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Go on with the run in --out; what failed there is tried again
    #[arg(long, requires = "out")]
    pub(super) resume: bool,
    /// Run only configurations whose name contains this, and the baselines; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    only: Vec<String>,
    /// Run only workloads whose name contains this; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    workload: Vec<String>,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    pub(super) json: bool,

    /// Where files and images for measurements are laid out: on the disk to measure
    #[arg(long, value_name = "DIR", help_heading = "Data", default_value_os_t = std::env::temp_dir())]
    data: PathBuf,
    /// Where data in memory is laid out: a tmpfs
    #[arg(long, value_name = "DIR", help_heading = "Data", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Leave what was laid out for the next run
    #[arg(long, help_heading = "Data")]
    pub(super) keep_data: bool,

    /// Have guests in another place than the experiment says
    #[arg(long, value_name = "PLACE", help_heading = "Guests")]
    guest: Option<GuestPlace>,
    /// User Mode Linux for guests
    #[arg(long, value_name = "FILE", help_heading = "Guests")]
    uml: Option<PathBuf>,
    /// Kernel for QEMU guests
    #[arg(long, value_name = "FILE", help_heading = "Guests")]
    kernel: Option<PathBuf>,
    /// Initial file system of that kernel
    #[arg(long, value_name = "FILE", requires = "kernel", help_heading = "Guests")]
    initramfs: Option<PathBuf>,
    /// Root file system of guests: a directory that holds a Linux with fio, seen read-only
    #[arg(long, value_name = "DIR", help_heading = "Guests")]
    root: Option<PathBuf>,
    /// Directory that `cargo xtask lab` filled: guests and peers [default: found where that puts it]
    #[arg(long, value_name = "DIR", help_heading = "Guests")]
    lab: Option<PathBuf>,
    /// Run guests' work in this machine of yours, reached by ssh without a password
    #[arg(long, value_name = "USER@HOST", requires = "attach", help_heading = "Guests")]
    ssh: Option<String>,
    /// Command on this host that gives that machine the device; {socket} and {tag} are replaced
    #[arg(long, value_name = "COMMAND", requires = "ssh", help_heading = "Guests")]
    attach: Option<String>,
    /// Command on this host that takes the device away again
    #[arg(long, value_name = "COMMAND", requires = "ssh", help_heading = "Guests")]
    detach: Option<String>,

    /// The virtiofsd to compare with
    #[arg(long, value_name = "PATH", help_heading = "Peers")]
    virtiofsd: Option<PathBuf>,
    /// The qemu-storage-daemon to compare with
    #[arg(long, value_name = "PATH", help_heading = "Peers")]
    qemu_storage_daemon: Option<PathBuf>,
    /// The qemu-system-x86_64 to compare with and to run guests
    #[arg(long, value_name = "PATH", help_heading = "Peers")]
    qemu: Option<PathBuf>,
    /// The fio of this host
    #[arg(long, value_name = "PATH", help_heading = "Peers")]
    fio: Option<PathBuf>,
}

/// A kind of guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GuestPlace {
    /// User Mode Linux
    Uml,
    /// QEMU, with KVM where that works
    Qemu,
    /// The machine of --ssh
    Ssh,
}

impl Args {
    /// The experiments as they are to run.
    pub(super) fn experiments(&self) -> Result<Vec<Experiment>> {
        let mut experiments = Vec::new();
        for name in &self.names {
            if name == "all" {
                experiments.extend(experiment::shipped::all()?);
            } else {
                experiments.push(experiment::read::open(name)?);
            }
        }
        experiments.into_iter().map(|experiment| self.adapt(experiment)).collect()
    }

    fn adapt(&self, mut experiment: Experiment) -> Result<Experiment> {
        if self.quick {
            experiment = experiment.quick();
        }
        if let Some(rounds) = self.rounds {
            experiment.rounds = rounds;
        }
        if let Some(time_s) = self.time {
            ensure!((0.1..=3600.0).contains(&time_s), "--time {time_s}: give 0.1 to 3600 seconds");
            experiment.time_s = time_s;
        }
        if let Some(warm_up_s) = self.warm_up {
            ensure!((0.0..=600.0).contains(&warm_up_s), "--warm-up {warm_up_s}: give 0 to 600 seconds");
            experiment.warm_up_s = warm_up_s;
        }
        let place = match self.guest {
            Some(GuestPlace::Uml) => Some(Place::Uml),
            Some(GuestPlace::Qemu) => Some(Place::Qemu),
            Some(GuestPlace::Ssh) if self.ssh.is_none() => bail!("--guest ssh: say which machine with --ssh USER@HOST"),
            Some(GuestPlace::Ssh) => Some(Place::Ssh),
            None => self.ssh.as_ref().map(|_| Place::Ssh),
        };
        if let Some(place) = place {
            experiment = with_guests_in(experiment, place);
        }
        self.select(&mut experiment)?;
        Ok(experiment)
    }

    /// Keeps what the person asked for, and whatever that is compared with.
    fn select(&self, experiment: &mut Experiment) -> Result<()> {
        let chosen = |texts: &[String], name: &str| texts.is_empty() || texts.iter().any(|text| name.contains(text));
        let wanted: Vec<&experiment::Configuration> =
            experiment.configurations.iter().filter(|configuration| chosen(&self.only, &configuration.name)).collect();
        ensure!(
            !wanted.is_empty(),
            "--only {}: {} has no such configuration; `vringd bench list {}` shows them",
            self.only.join(" "),
            experiment.name,
            experiment.name
        );
        let baselines: Vec<String> =
            wanted.iter().map(|configuration| experiment.baseline_of(configuration).to_owned()).collect();
        experiment
            .configurations
            .retain(|configuration| chosen(&self.only, &configuration.name) || baselines.contains(&configuration.name));
        experiment.workloads.retain(|workload| chosen(&self.workload, &workload.name));
        ensure!(
            !experiment.workloads.is_empty(),
            "--workload {}: {} has no such workload; `vringd bench list {}` shows them",
            self.workload.join(" "),
            experiment.name,
            experiment.name
        );
        Ok(())
    }

    /// The lab, if there is one.
    pub(super) fn lab(&self) -> Result<Option<Lab>> {
        let Some(directory) = &self.lab else { return Ok(Lab::find()) };
        ensure!(directory.is_dir(), "--lab {}: is no directory; `cargo xtask lab` makes one", directory.display());
        Ok(Some(Lab::at(directory)))
    }

    /// What stands are made of.
    pub(super) fn site(&self, vringd: &Path, lab: Option<&Lab>, scratch: &Path) -> Result<Site> {
        let given = Kit {
            uml: self.uml.clone(),
            qemu: self.qemu.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            root: self.root.clone(),
        };
        let programs = Programs {
            virtiofsd: self.virtiofsd.clone(),
            storage_daemon: self.qemu_storage_daemon.clone(),
            fio: self.fio.clone(),
        };
        let ssh = match (&self.ssh, &self.attach) {
            (Some(target), Some(attach)) => {
                Some(SshSite { target: target.clone(), attach: attach.clone(), detach: self.detach.clone() })
            }
            _ => None,
        };
        let directory = |option: &str, path: &Path| {
            std::path::absolute(path)
                .ok()
                .filter(|path| path.is_dir())
                .with_context(|| format!("{option} {}: is no directory", path.display()))
        };
        Ok(Site {
            kit: given.or(lab.map(Lab::kit).unwrap_or_default()),
            vringd: vringd.to_owned(),
            data: directory("--data", &self.data)?,
            memory: directory("--memory", &self.memory)?,
            scratch: scratch.to_owned(),
            programs: Programs::find(&programs, lab.map(Lab::programs).as_deref()),
            ssh,
            limits: Limits::default(),
        })
    }
}
