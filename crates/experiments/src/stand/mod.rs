//! A stand: a configuration made ready to be measured. Its data lies there, its server listens, its guest is up.
//!
//! Several stands are up at once while one is measured, so an idle stand must cost nothing, and must have nothing left to
//! write: every measurement ends when its data has reached the storage.
//!
//! # Nothing stays behind
//! [`Stand::end`], or dropping the stand, ends its guest and its server and removes sockets, mounts and temporary
//! directories, also when one of them is gone, stopped or has gone wild. Servers and guests are killed by the kernel when
//! the *thread* that started the stand ends: use a stand on a thread that lives as long as it does.

mod boot;
mod cache;
mod claim;
pub mod data;
mod frontend;
mod hook;
mod inside;
mod meter;
mod server;
pub mod site;
mod trouble;
mod volume;
mod watch;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use bench::fio::job::{self, Frame, Target};
use guest::Shell;
use tempfile::TempDir;

pub use claim::Claim;
pub use data::Data;
pub use site::{Limits, Programs, Site, SshSite};
pub use trouble::Trouble;
pub(crate) use trouble::{last_line, one_line};

use crate::experiment::{Configuration, DropCaches, Experiment, Place, ServerKind, Workload};
use crate::record::Figures;
use hook::Hook;
use meter::Meter;
use server::{Order, Server};
use watch::Watch;

/// Numbers stands, so that no two of a process share a tag or a mount point.
static NUMBER: AtomicU32 = AtomicU32::new(1);

/// A file of a load's own is made, used and removed within so long, without anything being wrong.
const OWN_FILE_LIMIT: Duration = Duration::from_millis(20);

/// A configuration made ready.
pub struct Stand {
    site: Site,
    configuration: Configuration,
    data: Option<Data>,
    time: Duration,
    warm_up: Duration,
    drop_caches: DropCaches,
    /// Where scripts run, and where the load goes there; `None` for a frontend, which is a process of each measurement.
    shell: Option<Box<dyn Shell>>,
    target: Target,
    /// What must be undone in a guest of the person.
    hook: Option<Hook>,
    server: Option<Server>,
    scratch: Option<TempDir>,
}

impl Stand {
    /// Makes a configuration ready: lays out its data unless it lies there, starts its server, boots its guest, mounts.
    ///
    /// # Errors
    /// [`Trouble::Unsupported`]: it can never be run here. [`Trouble::Failed`]: it could not be made ready this time.
    /// Nothing is left either way, but the data.
    pub fn start(site: &Site, experiment: &Experiment, configuration: &Configuration) -> Result<Self, Trouble> {
        check(site, configuration)?;
        let data = Data::of(site, configuration)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let scratch = tempfile::Builder::new().prefix("stand-").tempdir_in(&site.scratch).map_err(|error| {
            Trouble::Failed(format!("cannot make a directory for sockets in {}: {error}", site.scratch.display()))
        })?;
        let tag = format!("bench{number}");
        let order = Order {
            server: &configuration.server,
            data: data.as_ref(),
            medium: configuration.data.medium,
            queues: configuration.guest.queues,
            tag: &tag,
            scratch: scratch.path(),
            one_node: configuration.guest.one_node,
        };
        let server = Server::start(site, &order)?;
        let mut stand = Self {
            site: site.clone(),
            configuration: configuration.clone(),
            data,
            time: seconds(experiment.time_s),
            warm_up: seconds(experiment.warm_up_s),
            drop_caches: experiment.drop_caches,
            shell: None,
            target: Target::File(String::new()),
            hook: None,
            server,
            scratch: Some(scratch),
        };
        // From here on dropping the stand undoes what was done.
        stand.enter(number, &tag)?;
        Ok(stand)
    }

    /// Whether it can measure another workload.
    pub fn is_alive(&mut self) -> bool {
        match self.configuration.place {
            // A server may serve one frontend in its life; it is started again.
            Place::Frontend => true,
            _ => self.shell.is_some() && self.server.as_mut().is_none_or(Server::is_running),
        }
    }

    /// Measures a workload (one without placeholders): drops caches, lets the load warm up, measures, and waits until
    /// what it wrote has reached the storage.
    ///
    /// Processor time of a server is that of warm-up and measurement together, by the share of the measurement, as fio does
    /// not tell when the one ends and the other begins; so is that of a load on the host or behind ssh. A guest of ours uses
    /// much to start fio, so what it used in the last seconds counts, as many as were measured.
    ///
    /// # Errors
    /// [`Trouble::Unsupported`]: this load cannot be run on this configuration. [`Trouble::Failed`]: it was tried and
    /// failed; the stand may be gone then, see [`Stand::is_alive`].
    pub fn measure(&mut self, workload: &Workload) -> Result<Figures, Trouble> {
        if self.configuration.place == Place::Frontend {
            return self.measure_frontend(workload);
        }
        self.settle(true)?;
        let target = inside::limited(&self.target, workload)?;
        let job = self.job(workload, &target);
        let fio = match self.configuration.place {
            Place::Host => {
                let fio = site::require(self.site.programs.fio.as_deref(), "fio", "--fio")?;
                inside::quoted(&fio.to_string_lossy())
            }
            _ => "fio".to_owned(),
        };
        let script = inside::fio_script(&fio, &job, &target);
        let server_before = self.server.as_ref().and_then(Server::cpu_s);
        let guest_before = self.guest_cpu_s();
        let meter = Meter::start(self.shell.as_ref().and_then(|shell| shell.pid()));
        let output = self.run(&script, self.limit() + OWN_FILE_LIMIT * workload.own_files);
        let in_the_end = meter.and_then(|meter| meter.end(self.time, self.warm_up));
        let guest_after = self.guest_cpu_s();
        let server_after = self.server.as_ref().and_then(Server::cpu_s);
        let mut figures = inside::figures(&output?, workload)?;
        let share = self.time.as_secs_f64() / (self.time + self.warm_up).as_secs_f64().max(f64::MIN_POSITIVE);
        let used = |before: Option<f64>, after: Option<f64>| Some((after? - before?).max(0.0) * share);
        if workload.own_files == 0 {
            // Files of its own are made and removed too, which is not measured.
            figures.server_cpu_s = used(server_before, server_after);
            figures.guest_cpu_s = in_the_end.or_else(|| used(guest_before, guest_after));
        }
        self.settle(false)?;
        Ok(figures)
    }

    /// Ends guest and server in good order, within bounds; what does not listen is killed.
    ///
    /// # Errors
    /// Something of it could not be put away; everything else was.
    pub fn end(mut self) -> Result<()> {
        self.put_away(true)
    }

    /// Boots the guest and finds the device in there.
    fn enter(&mut self, number: u32, tag: &str) -> Result<(), Trouble> {
        if self.configuration.place == Place::Frontend {
            return Ok(());
        }
        let limit = self.site.limits.boot;
        if self.configuration.place == Place::Host {
            self.shell = Some(boot::host());
            self.target = inside::on_host(self.data.as_ref())?;
            return Ok(());
        }
        let mountpoint = format!("/run/vringd-bench-{}-{number}", std::process::id());
        let before = match self.configuration.place {
            Place::Ssh => {
                self.shell = Some(boot::ssh(&self.site)?);
                inside::disks(&self.run(inside::LIST_DISKS, limit)?)
            }
            _ => Vec::new(),
        };
        if let (Place::Ssh, Some(site), Some(server)) = (self.configuration.place, &self.site.ssh, &self.server) {
            self.hook = Some(Hook::attach(site, server.socket(), tag, &mountpoint, limit)?);
        } else {
            let socket = self.server.as_ref().map(Server::socket);
            let booted = boot::boot(&self.site, &self.configuration, socket, self.data.as_ref(), tag);
            self.shell = Some(booted.map_err(|trouble| self.blame(trouble))?);
        }
        let plan = inside::Plan {
            configuration: &self.configuration,
            data: self.data.as_ref(),
            tag,
            mountpoint: &mountpoint,
            disks_before: &before,
        };
        let (script, target) = plan.prepare();
        let output = self.run(&script, limit)?;
        self.target = target.find(&output, &self.configuration)?;
        Ok(())
    }

    /// The server's end explains more than the guest's does.
    fn blame(&mut self, trouble: Trouble) -> Trouble {
        let ended = self.server.as_mut().and_then(|server| (!server.is_running()).then_some(server));
        ended.map_or(trouble, |server| Trouble::Failed(server.epitaph()))
    }

    fn limit(&self) -> Duration {
        self.time + self.warm_up + self.site.limits.slack
    }

    fn guest_cpu_s(&mut self) -> Option<f64> {
        self.shell.as_mut()?.cpu_s().ok()
    }

    /// Runs a script where the load runs. Without an answer the stand is dead.
    fn run(&mut self, script: &str, limit: Duration) -> Result<guest::Output, Trouble> {
        let Some(shell) = &mut self.shell else {
            return Err(Trouble::Failed("its guest is gone".into()));
        };
        if let Some(server) = self.server.as_mut()
            && !server.is_running()
        {
            return Err(Trouble::Failed(server.epitaph()));
        }
        let began = Instant::now();
        // A guest waits for a server that is gone for ever.
        let watch = Watch::start(self.server.as_ref().map(Server::id), shell.pid());
        let answer = shell.run(script, limit);
        drop(watch);
        answer.map_err(|error| {
            self.shell = None;
            let trouble = if began.elapsed() >= limit {
                let who = if self.configuration.place == Place::Host { "the host's fio" } else { "the guest" };
                Trouble::Failed(format!("{who} did not answer within {} s", limit.as_secs()))
            } else {
                Trouble::Failed(one_line(&format!("{error:#}")))
            };
            self.blame(trouble)
        })
    }

    /// Waits until what was written has reached the storage, and drops caches if a measurement is next.
    fn settle(&mut self, drops: bool) -> Result<(), Trouble> {
        let is_guest = !matches!(self.configuration.place, Place::Host | Place::Frontend);
        let limit = self.site.limits.sync;
        if is_guest && (!drops || self.drop_caches != DropCaches::None) {
            let script = if drops { cache::SYNC_AND_DROP } else { cache::SYNC };
            let output = self.run(script, limit).map_err(|trouble| trouble.context("writing back"))?;
            if output.status != 0 {
                return Err(Trouble::Failed(format!("cannot drop the guest's caches: {}", last_line(&output.stderr))));
            }
        }
        // What a log keeps in the server's memory is written in its own time, and would be in the next measurement's.
        if let Some(server) = self.server.as_mut()
            && server.is_running()
        {
            server.write_back(limit)?;
        }
        if let Some(data) = &self.data {
            cache::write_back(&data.directory())
                .map_err(|error| Trouble::Failed(format!("writing {} back: {error}", data.directory().display())))?;
        }
        if drops && self.drop_caches == DropCaches::All {
            cache::drop_host();
        }
        Ok(())
    }

    fn job(&self, workload: &Workload, target: &Target) -> String {
        let frame = Frame { target: target.clone(), time: Some(self.time), warm_up: self.warm_up };
        job::render(&workload.fio, &frame)
    }

    fn measure_frontend(&mut self, workload: &Workload) -> Result<Figures, Trouble> {
        self.settle(true)?;
        let (Some(server), Some(scratch)) = (self.server.as_mut(), &self.scratch) else {
            return Err(Trouble::Unsupported("a frontend needs a server with a vhost-user socket".into()));
        };
        server.revive()?;
        let load = frontend::Load {
            vringd: &self.site.vringd,
            kind: self.configuration.server.kind,
            reserve: self.configuration.guest.reserve,
            socket: server.socket(),
            server_pid: server.id(),
            data: self.data.as_ref(),
            queues: self.configuration.guest.queues,
            time: self.time,
            warm_up: self.warm_up,
            options: &workload.frontend,
            scratch: scratch.path(),
        };
        let limit = self.time + self.warm_up + self.site.limits.slack;
        let figures = match load.run(limit) {
            // One that serves one frontend in its life ends without complaint; another says why it has ended.
            Err(Trouble::Failed(reason)) if !server.is_running() => {
                return Err(Trouble::Failed(format!("{reason} ({})", server.epitaph())));
            }
            other => other?,
        };
        self.settle(false)?;
        Ok(figures)
    }

    fn put_away(&mut self, politely: bool) -> Result<()> {
        let hook = self.hook.take().map_or(Ok(()), |hook| hook.detach(self.site.limits.boot));
        let shell = match self.shell.take() {
            Some(shell) if politely => shell.end(),
            // Dropping it kills it.
            _ => Ok(()),
        };
        if let Some(server) = self.server.take()
            && politely
        {
            server.end(self.site.limits.end);
        }
        let scratch = self.scratch.take().map_or(Ok(()), TempDir::close);
        hook?;
        shell?;
        scratch?;
        Ok(())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Err(error) = self.put_away(false) {
            tracing::warn!("putting away {}: {error:#}", self.configuration.name);
        }
    }
}

/// What can be known to be impossible before anything is started.
fn check(site: &Site, configuration: &Configuration) -> Result<(), Trouble> {
    if let Some(reason) = &configuration.unsupported {
        return Err(Trouble::Unsupported(reason.clone()));
    }
    if configuration.guest.one_node && guest::numa::nodes().len() < 2 {
        return Err(Trouble::Unsupported("this machine has one NUMA node".into()));
    }
    let kind = configuration.server.kind;
    let why = match (configuration.place, kind) {
        (Place::Host, ServerKind::None) => return Ok(()),
        (Place::Host, _) => "on the host there is no server between",
        (_, ServerKind::None) => "a guest needs a server",
        (Place::Frontend | Place::Uml | Place::Ssh, ServerKind::QemuVirtioBlk | ServerKind::Qemu9p) => {
            "this server is a part of QEMU and needs a QEMU guest"
        }
        (Place::Ssh, _) if site.ssh.is_none() => "no guest was named to reach by ssh: give --ssh TARGET",
        _ => return Ok(()),
    };
    Err(Trouble::Unsupported(why.into()))
}

/// Seconds of an experiment as a duration; what is none is no time.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}
