//! Contenders on the same jobs, one after the other, round after round; then their system calls.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::job::Job;
use super::lane::Order;
use super::load::Load;
use super::protocol::{Address, Protocol};
use super::qemu::Qemu;
use super::scratch::{READ_FILE, Scratch, WRITE_FILE};
use super::session::{CountedStep, Mounted, Session};
use super::syscalls::Tool;
use crate::contest::{self, Results, hold as take_turns};
use crate::driver::ConnectError;
use crate::fio;
use crate::frontend::{Report, Rw, Spec};
use crate::fs::shape::Shape;
use crate::progress::Progress;
use crate::server::{Server, Template, sockets};
use crate::words::count;

/// Who runs.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A server that is started for each run.
    Server(Template),
    /// QEMU's own 9p server, started likewise.
    Qemu(Qemu),
    /// A server that runs already, where it listens, and its pid.
    Running(Address, Option<u32>),
    /// fio on the host's file.
    Fio(fio::Host),
}

/// Who runs, under which name.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// What is spoken with it.
    pub(crate) protocol: Protocol,
    /// Over 9P, the name of the tree, in which `{dir}` is replaced.
    pub(crate) aname: String,
}

impl contest::Contender for Contender {
    fn name(&self) -> &str {
        &self.name
    }
}

/// The conditions of a contest.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) jobs: &'a [Job],
    pub(crate) shape: Shape,
    pub(crate) load: &'a Load,
    pub(crate) scratch: &'a Scratch,
    /// Where the scratch directory is in what the servers share.
    pub(crate) base: &'a Path,
    pub(crate) server_cpus: &'a [usize],
    pub(crate) tool: Option<Tool>,
}

/// The system calls of one contender.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Counted {
    pub(crate) contender: String,
    /// Who counted.
    pub(crate) tool: Tool,
    /// For each operation of the job: all calls, and those that a file system was asked for.
    pub(crate) calls_per_operation: f64,
    pub(crate) file_system_calls_per_operation: f64,
    pub(crate) steps: Vec<CountedStep>,
}

/// A run that came to nothing.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    pub(crate) contender: String,
    pub(crate) error: String,
}

/// How a job ended.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct JobResults {
    pub(crate) job: Job,
    #[serde(flatten)]
    pub(crate) results: Results,
    pub(crate) system_calls: Vec<Counted>,
    pub(crate) failures: Vec<Failure>,
}

/// How all jobs ended, and what was agreed on with each server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) servers: BTreeMap<String, Mounted>,
    pub(crate) jobs: Vec<JobResults>,
}

/// Runs every job of `rules` with everyone. A contender that fails is left out of the rest of that job.
pub(crate) fn hold(contenders: &[Contender], rules: &Rules<'_>, progress: &Progress) -> Result<Outcome> {
    let dir = sockets()?;
    let socket = dir.path().join("fs.sock");
    let mut contest = Contest { rules, socket, progress, session: None, run: 0, servers: BTreeMap::new() };
    let jobs = rules.jobs.iter().map(|job| contest.hold_job(*job, contenders)).collect::<Result<_>>()?;
    Ok(Outcome { servers: contest.servers, jobs })
}

struct Contest<'a> {
    rules: &'a Rules<'a>,
    socket: PathBuf,
    progress: &'a Progress,
    /// With a server that runs already, which may serve one connection in its life.
    session: Option<Session>,
    run: u32,
    servers: BTreeMap<String, Mounted>,
}

impl Contest<'_> {
    fn hold_job(&mut self, job: Job, contenders: &[Contender]) -> Result<JobResults> {
        let takes_part = |contender: &&Contender| job.is_data() || !matches!(contender.kind, Kind::Fio(_));
        let contenders: Vec<&Contender> = contenders.iter().filter(takes_part).collect();
        let mut failures: Vec<Failure> = Vec::new();
        let results = take_turns(&contenders, (job.name(), self.rules.load.rounds), self.progress, |contender| {
            self.progress.begin(&format!("{} {}", job.name(), contender.name), Some(self.length()));
            let report = self.unless_failed(&mut failures, job, contender, |contest| contest.run_once(job, contender));
            Ok(report.map(Into::into))
        })?;
        let mut system_calls = Vec::new();
        for contender in contenders {
            let count = |contest: &mut Self| contest.count(job, contender).context("counting system calls");
            system_calls.extend(self.unless_failed(&mut failures, job, contender, count).flatten());
        }
        Ok(JobResults { job, results, system_calls, failures })
    }

    /// Does `work` with a contender, unless it has failed in this job.
    fn unless_failed<T>(
        &mut self,
        failures: &mut Vec<Failure>,
        job: Job,
        contender: &Contender,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Option<T> {
        if failures.iter().any(|failure| failure.contender == contender.name) {
            return None;
        }
        work(self).map_err(|error| failures.push(self.failure(job, contender, &error))).ok()
    }

    fn failure(&mut self, job: Job, contender: &Contender, error: &anyhow::Error) -> Failure {
        // What is in flight on a session that failed would answer the next job's requests.
        self.session = None;
        let error = format!("{error:#}");
        self.progress.end(&format!("{} {}: FAILED: {error}", job.name(), contender.name));
        Failure { contender: contender.name.clone(), error }
    }

    fn length(&self) -> Duration {
        self.rules.load.ramp + self.rules.load.seconds
    }

    fn order(&mut self, job: Job) -> Order<'_> {
        self.run += 1;
        let rules = self.rules;
        Order {
            job,
            run: self.run,
            block_bytes: rules.load.block_bytes as usize,
            direct: rules.load.direct,
            entries: rules.load.entries,
            scratch: rules.scratch,
            base: rules.base,
        }
    }

    fn run_once(&mut self, job: Job, contender: &Contender) -> Result<Report> {
        let (conditions, progress) = (self.rules.load.conditions(), self.progress);
        let length = self.length();
        let look = |elapsed: Duration| progress.look(elapsed, || format!("of {} s", count(length.as_secs_f64())));
        if let Kind::Fio(host) = &contender.kind {
            return self.run_fio(job, host);
        }
        self.with_session(contender, |contest, session, _| session.run(&contest.order(job), conditions, look))
    }

    fn count(&mut self, job: Job, contender: &Contender) -> Result<Option<Counted>> {
        let Some(tool) = self.rules.tool else { return Ok(None) };
        if matches!(&contender.kind, Kind::Fio(_) | Kind::Running(_, None)) {
            return Ok(None);
        }
        let steps = self.with_session(contender, |contest, session, pid| {
            session.count(&contest.order(job), pid.context("the server's pid")?, tool)
        })?;
        Ok(CountedStep::per_operation(&steps).map(|(all, file_system)| Counted {
            contender: contender.name.clone(),
            tool,
            calls_per_operation: all,
            file_system_calls_per_operation: file_system,
            steps,
        }))
    }

    /// Calls `work` with a connected server, which is started and ended for it unless it runs already.
    fn with_session<T>(
        &mut self,
        contender: &Contender,
        work: impl FnOnce(&mut Self, &mut Session, Option<u32>) -> Result<T>,
    ) -> Result<T> {
        let (mut server, mut session) = match &contender.kind {
            Kind::Fio(_) => bail!("fio is no server"),
            Kind::Running(address, pid) => {
                let mut session = match self.session.take() {
                    Some(session) => session,
                    None => {
                        let aname = self.aname(contender);
                        let tree = (contender.protocol, &*aname);
                        Session::connect(tree, address, self.rules.shape, *pid).with_context(|| address.to_string())?
                    }
                };
                self.servers.insert(contender.name.clone(), session.mounted());
                let result = work(self, &mut session, *pid)?;
                self.session = Some(session);
                return Ok(result);
            }
            Kind::Server(template) => self.start(contender, template)?,
            Kind::Qemu(qemu) => self.start_qemu(qemu)?,
        };
        self.servers.insert(contender.name.clone(), session.mounted());
        let pid = Some(server.pid());
        let result = work(self, &mut session, pid).map_err(|error| server.blame(error))?;
        drop(session);
        server.stop();
        Ok(result)
    }

    fn aname(&self, contender: &Contender) -> String {
        contender.aname.replace("{dir}", &self.rules.scratch.path().to_string_lossy())
    }

    fn start(&self, contender: &Contender, template: &Template) -> Result<(Server, Session)> {
        let (protocol, dir, shape) = (contender.protocol, self.rules.scratch.path(), self.rules.shape);
        let aname = self.aname(contender);
        let address = Address::fresh(protocol, &self.socket)?;
        let places = [("socket", Some(address.place())), ("port", address.port()), ("dir", Some(dir))];
        let mut server = Server::start(&template.replace(&places), &self.socket, self.rules.server_cpus)?;
        let pid = Some(server.pid());
        let connect = |_: &Path| Session::connect((protocol, &aname), &address, shape, pid);
        let session = server.connect(connect, ConnectError::is_early)?;
        Ok((server, session))
    }

    fn start_qemu(&self, qemu: &Qemu) -> Result<(Server, Session)> {
        let (dir, shape) = (self.rules.scratch.path(), self.rules.shape);
        let ram = Session::ram(shape)?;
        let mut server = Server::start(&qemu.command(&self.socket, dir, &ram)?, &self.socket, self.rules.server_cpus)?;
        let pid = Some(server.pid());
        let connect = |socket: &Path| UnixStream::connect(socket).map_err(ConnectError::Connect);
        let socket = server.connect(connect, ConnectError::is_early)?;
        let session = Session::on_qemu(socket, ram, shape, pid).map_err(|error| server.blame(error))?;
        Ok((server, session))
    }

    fn run_fio(&self, job: Job, host: &fio::Host) -> Result<Report> {
        let rules = self.rules;
        let rw = match job {
            Job::ReadRand => Rw::RandRead,
            Job::WriteSeq => Rw::Write,
            Job::WriteRand => Rw::RandWrite,
            _ => Rw::Read,
        };
        let spec = Spec {
            rw,
            block_bytes: rules.load.block_bytes,
            depth: rules.load.depth,
            queues: rules.load.queues,
            time: Some(rules.load.seconds),
            ramp: rules.load.ramp,
            ..Spec::default()
        };
        let name = if job.reads_data() { READ_FILE } else { WRITE_FILE };
        fio::run(&spec, &rules.scratch.path().join(name), host)
    }
}

impl JobResults {
    /// Whether everyone came through.
    pub(crate) fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.results.is_clean()
    }

    /// The system calls of a contender.
    pub(crate) fn calls_of(&self, contender: &str) -> Option<&Counted> {
        self.system_calls.iter().find(|counted| counted.contender == contender)
    }
}
