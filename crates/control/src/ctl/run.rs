//! Carries out a command: calls the daemon, and shows the answer as a table or as the API's JSON.

mod disks;
mod jobs;
mod limits;
mod units;

use super::add::AddArgs;
use super::args::{Args, Command, ExportCommand, RingCommand, WorkerCommand};
use super::error::CtlError;
use super::jobs::JobCommand;
use super::{policy, table, top, trace, upgrade, volume};
use crate::client::{Client, segment};
use crate::model::{Attach, Export, Info, NewWorker, Resize, RingInfo, Settings, Worker};
use hyper::Method;
use serde::Serialize;
use std::io::{self, Write};

/// Runs the command and writes its output to `out`; `terminal` says whether a person watches.
///
/// # Errors
/// [`CtlError`]; its message is one line, but for the excerpt of a faulty file.
pub fn perform(args: &Args, out: &mut dyn Write, terminal: bool) -> Result<(), CtlError> {
    let client = Client::new(&args.control)?;
    let mut session = Session { client: &client, json: args.json, out };
    match &args.command {
        Command::Info => session.show::<Info>("/v1/info", table::info),
        Command::Export(command) => session.export(command),
        Command::Disk(command) => session.disk(command),
        Command::Lun(command) => session.unit(command),
        Command::Job(job) => session.job(job.command.as_ref().unwrap_or(&JobCommand::List)),
        Command::Worker(command) => session.worker(command),
        Command::Ring(command) => session.ring(command),
        Command::Limit(command) => session.limit(command),
        Command::Group(command) => session.group(command),
        Command::Policy(options) => policy::run(options, &client, args.json, session.out),
        Command::Metrics => Ok(session.out.write_all(client.text("/metrics")?.as_bytes())?),
        Command::Top(options) => top::run(options, &client, args.json, session.out, terminal),
        Command::Trace(options) => trace::run(options, &client, args.json, session.out),
        Command::Upgrade { binary } => {
            let info = upgrade::run(&client, binary.as_deref())?;
            session.print(&info, upgrade::words)
        }
        Command::Shutdown => session.order(Method::POST, "/v1/shutdown", "the daemon is stopping"),
    }
}

struct Session<'a> {
    client: &'a Client,
    json: bool,
    out: &'a mut dyn Write,
}

impl Session<'_> {
    fn export(&mut self, command: &ExportCommand) -> Result<(), CtlError> {
        match command {
            ExportCommand::List => self.show::<Vec<Export>>("/v1/exports", |exports| table::exports(exports)),
            ExportCommand::Show { name } if self.json => self.show::<Export>(&export_target(name), |_| String::new()),
            ExportCommand::Show { name } => {
                let export: Export = self.client.get(&export_target(name))?;
                let workers: Vec<Worker> = self.client.get(&workers_target(Some(name)))?;
                Ok(self.out.write_all(table::export(&export, &workers).as_bytes())?)
            }
            ExportCommand::Add(add) => self.add(add),
            ExportCommand::AddDir(add) => self.send::<Export>(Method::POST, "/v1/exports", &add.export()?, one_export),
            ExportCommand::AddScsi(add) => self.send::<Export>(Method::POST, "/v1/exports", &add.export()?, one_export),
            ExportCommand::Remove { name, force } => {
                let target = format!("{}?force={force}", export_target(name));
                self.order(Method::DELETE, &target, &format!("removed export {name}"))
            }
            ExportCommand::Resize { name, size } => {
                let target = format!("{}/capacity", export_target(name));
                self.send(Method::PUT, &target, &Resize { capacity_bytes: *size }, one_export)
            }
            ExportCommand::Set { name, poll, execution, placement, sync } => {
                let (poll, execution, placement, sync) = (*poll, *execution, *placement, *sync);
                let settings = Settings { poll, execution, placement, sync, limits: None };
                self.send(Method::PATCH, &export_target(name), &settings, one_export)
            }
            ExportCommand::Sync { name } => {
                let target = format!("{}/sync", export_target(name));
                let export: Export = self.client.post(&target)?;
                self.print(&export, volume::synced)
            }
        }
    }

    fn add(&mut self, add: &AddArgs) -> Result<(), CtlError> {
        let descriptions = add.exports()?;
        let all = descriptions.len();
        let mut exports = Vec::with_capacity(all);
        for new in descriptions {
            match self.client.send::<Export>(Method::POST, "/v1/exports", &new) {
                Ok(export) => exports.push(export),
                Err(source) if exports.is_empty() => return Err(source.into()),
                Err(source) => return Err(CtlError::AddedSome { name: new.name, added: exports.len(), all, source }),
            }
        }
        match exports.as_slice() {
            [export] if self.json => self.print_json(export),
            exports if self.json => self.print_json(exports),
            exports => Ok(self.out.write_all(table::exports(exports).as_bytes())?),
        }
    }

    fn worker(&mut self, command: &WorkerCommand) -> Result<(), CtlError> {
        match command {
            WorkerCommand::List { export } => {
                self.show::<Vec<Worker>>(&workers_target(export.as_deref()), |workers| table::workers(workers))
            }
            WorkerCommand::New { export, cpus, numa_node, cgroup, poll } => {
                let (cpus, cgroup) = (cpus.clone(), cgroup.clone());
                let new = NewWorker { cpus, numa_node: *numa_node, cgroup, poll: *poll };
                self.send(Method::POST, &workers_target(export.as_deref()), &new, one_worker)
            }
            WorkerCommand::Free { id, export } => {
                let target = format!("{}/{id}", workers_target(export.as_deref()));
                self.order(Method::DELETE, &target, &format!("freed worker {id}"))
            }
            WorkerCommand::Get { id, export } => {
                self.show::<Worker>(&format!("{}/{id}", workers_target(export.as_deref())), table::worker)
            }
        }
    }

    fn ring(&mut self, command: &RingCommand) -> Result<(), CtlError> {
        match command {
            RingCommand::List { name: None } if self.json => {
                let exports: Vec<Export> = self.client.get("/v1/exports")?;
                let rings: std::collections::BTreeMap<_, _> =
                    exports.into_iter().map(|export| (export.name, export.rings)).collect();
                self.print_json(&rings)
            }
            RingCommand::List { name: None } => {
                let exports: Vec<Export> = self.client.get("/v1/exports")?;
                let rings = exports.iter().flat_map(|export| export.rings.iter().map(|ring| (&*export.name, ring)));
                Ok(self.out.write_all(table::rings(rings).as_bytes())?)
            }
            RingCommand::List { name: Some(name) } => {
                let target = format!("{}/rings", export_target(name));
                self.show::<Vec<RingInfo>>(&target, |rings| table::rings(rings.iter().map(|ring| (&**name, ring))))
            }
            RingCommand::Get { name, ring } => {
                let target = format!("{}/rings/{ring}", export_target(name));
                self.show::<RingInfo>(&target, |ring| table::ring(name, ring))
            }
            RingCommand::Attach { name, ring, worker } => {
                let target = format!("{}/rings/{ring}/worker", export_target(name));
                let attach = Attach { worker: *worker };
                self.send(Method::PUT, &target, &attach, |ring| table::rings([(&**name, ring)]))
            }
        }
    }

    /// Reads and shows: the JSON as it came, or a table.
    fn show<T: serde::de::DeserializeOwned + Serialize>(
        &mut self,
        target: &str,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CtlError> {
        let answer: T = self.client.get(target)?;
        self.print(&answer, table)
    }

    fn send<T: serde::de::DeserializeOwned + Serialize>(
        &mut self,
        method: Method,
        target: &str,
        body: &impl Serialize,
        table: impl FnOnce(&T) -> String,
    ) -> Result<(), CtlError> {
        let answer: T = self.client.send(method, target, body)?;
        self.print(&answer, table)
    }

    /// Where the API answers without a body, JSON readers get no output and people a line.
    fn order(&mut self, method: Method, target: &str, done: &str) -> Result<(), CtlError> {
        self.client.order(method, target)?;
        if !self.json {
            writeln!(self.out, "{done}")?;
        }
        Ok(())
    }

    fn print<T: Serialize>(&mut self, answer: &T, table: impl FnOnce(&T) -> String) -> Result<(), CtlError> {
        if self.json {
            return self.print_json(answer);
        }
        Ok(self.out.write_all(table(answer).as_bytes())?)
    }

    fn print_json<T: Serialize + ?Sized>(&mut self, answer: &T) -> Result<(), CtlError> {
        serde_json::to_writer_pretty(&mut *self.out, answer).map_err(io::Error::from)?;
        Ok(writeln!(self.out)?)
    }
}

fn one_export(export: &Export) -> String {
    table::exports(std::slice::from_ref(export))
}

fn one_worker(worker: &Worker) -> String {
    table::workers(std::slice::from_ref(worker))
}

fn export_target(name: &str) -> String {
    format!("/v1/exports/{}", segment(name))
}

fn workers_target(export: Option<&str>) -> String {
    export.map_or_else(|| "/v1/workers".to_owned(), |name| format!("{}/workers", export_target(name)))
}
