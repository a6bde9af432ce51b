//! Who takes part in a contest of disks, and one turn of it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::contest::{self, Measured};
use crate::fio;
use crate::frontend::{Load, Protocol, Spec};
use crate::idle::idle_settled;
use crate::progress::Progress;
use crate::server::{Server, Template};
use crate::words::count;

/// Who runs.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A server, driven by our frontend.
    Server {
        /// How it is started.
        template: Template,
        /// What it speaks.
        protocol: Protocol,
        /// Whether this frontend has the disk reserved.
        reserve: bool,
        /// How many queues it is driven on.
        queues: u16,
    },
    /// fio on the image itself.
    Fio(fio::Host),
}

/// Who runs, under which name.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

impl contest::Contender for Contender {
    fn name(&self) -> &str {
        &self.name
    }
}

/// The conditions of a contest.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) image: Option<&'a Path>,
    pub(crate) socket: &'a Path,
    pub(crate) server_cpus: &'a [usize],
    pub(crate) idle: Option<Duration>,
}

impl Contender {
    /// One run.
    pub(crate) fn run(&self, rules: &Rules<'_>, progress: &Progress) -> Result<Measured> {
        progress.begin(&self.name, rules.spec.length());
        match &self.kind {
            Kind::Server { template, protocol, reserve, queues } => {
                let spec = Spec { protocol: *protocol, reserve: *reserve, queues: *queues, ..rules.spec.clone() };
                let words = template.expand(rules.socket, rules.image);
                let mut server = Server::start(&words, rules.socket, rules.server_cpus)?;
                let load = server.load(&spec)?;
                let idle = rules.idle.map(|time| (time, server.pid()));
                let measured = measure(load, idle, progress).map_err(|error| server.blame(error))?;
                server.stop();
                Ok(measured)
            }
            Kind::Fio(host) => {
                let image = rules.image.context("--host-fio needs --image or --make-image")?;
                Ok(fio::run(rules.spec, image, host)?.into())
            }
        }
    }
}

/// Lets `load` come to its end, and then looks for so long, still connected, how quiet the server with this pid is.
pub(crate) fn measure(load: Load, idle: Option<(Duration, u32)>, progress: &Progress) -> Result<Measured> {
    load.wait(|load| progress.look(load.elapsed(), || count(load.rate_so_far())));
    let (report, connection) = load.finish_connected()?;
    let idle = idle.map(|(time, pid)| idle_settled(pid, time)).transpose()?;
    drop(connection);
    Ok(Measured { report, idle, volume: None })
}
