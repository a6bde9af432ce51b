//! `vringd ctl job`, and what begins jobs.

use super::{CtlError, Session};
use crate::client::ClientError;
use crate::ctl::follow::{Goal, Interrupt, follow};
use crate::ctl::jobs::{self, BackupArgs, ChainArgs, JobCommand, MirrorArgs};
use crate::ctl::pull::PullArgs;
use crate::model::{Job, JobKind, JobSettings, JobState, NewJob};
use hyper::Method;

impl Session<'_> {
    pub(super) fn job(&mut self, command: &JobCommand) -> Result<(), CtlError> {
        match command {
            JobCommand::List => self.show::<Vec<Job>>("/v1/jobs", |jobs| jobs::jobs(jobs)),
            JobCommand::Show { id } => self.show::<Job>(&target(*id), jobs::job),
            JobCommand::Wait { id } => self.wait(*id, Goal::Ready, &Interrupt::watch()),
            JobCommand::Complete { id, detach } => {
                let interrupt = Interrupt::watch();
                let job: Job = self.client.post(&complete_target(*id))?;
                if *detach {
                    return self.print(&job, jobs::one);
                }
                self.wait(*id, Goal::End, &interrupt)
            }
            JobCommand::Cancel { id } => {
                self.client.order(Method::DELETE, &target(*id))?;
                if self.json {
                    return Ok(());
                }
                // A job that was cancelled stays in the list, one that had ended has left it.
                let done = match self.client.get::<Job>(&target(*id)) {
                    Err(ClientError::Refused { status: 404, .. }) => "forgot",
                    _ => "cancelled",
                };
                Ok(writeln!(self.out, "{done} job {id}")?)
            }
            JobCommand::Limit { id, limit } => {
                self.send(Method::PATCH, &target(*id), &JobSettings { limit: Some(*limit) }, jobs::one)
            }
        }
    }

    pub(super) fn backup(&mut self, backup: &BackupArgs) -> Result<(), CtlError> {
        self.begin(&backup.job()?, backup.copy.detach, false)
    }

    pub(super) fn mirror(&mut self, mirror: &MirrorArgs) -> Result<(), CtlError> {
        self.begin(&mirror.job()?, mirror.copy.detach, mirror.complete)
    }

    pub(super) fn stream(&mut self, chain: &ChainArgs) -> Result<(), CtlError> {
        self.begin(&chain.stream()?, chain.detach, false)
    }

    pub(super) fn commit(&mut self, chain: &ChainArgs) -> Result<(), CtlError> {
        self.begin(&chain.commit()?, chain.detach, false)
    }

    pub(super) fn pull(&mut self, pull: &PullArgs) -> Result<(), CtlError> {
        self.begin(&pull.job()?, false, false)
    }

    fn begin(&mut self, new: &NewJob, detach: bool, complete: bool) -> Result<(), CtlError> {
        let interrupt = Interrupt::watch();
        let job: Job = self.client.send(Method::POST, "/v1/jobs", new)?;
        if detach {
            return self.print(&job, jobs::one);
        }
        if complete && self.follow(job.id, Goal::Ready, &interrupt)?.state == JobState::Ready {
            self.client.post::<Job>(&complete_target(job.id))?;
            return self.wait(job.id, Goal::End, &interrupt);
        }
        self.wait(job.id, Goal::Ready, &interrupt)
    }

    fn follow(&self, id: u64, goal: Goal, interrupt: &Interrupt) -> Result<Job, CtlError> {
        follow(id, goal, interrupt, || Ok(self.client.get(&target(id))?))
    }

    /// Follows a job and says how it went.
    fn wait(&mut self, id: u64, goal: Goal, interrupt: &Interrupt) -> Result<(), CtlError> {
        let mut job = self.follow(id, goal, interrupt)?;
        if job.kind == JobKind::Commit && job.state == JobState::Ready {
            // It completes by itself, unless it could not be completed.
            job = self.follow(id, Goal::End, interrupt)?;
        }
        let failure = match job.state {
            JobState::Failed => {
                let message = job.error.clone().unwrap_or_else(|| "the daemon's log may say why".to_owned());
                Some(CtlError::JobFailed { id, message })
            }
            JobState::Ready if goal == Goal::End || job.kind == JobKind::Commit => {
                Some(CtlError::JobNotCompleted { id, message: job.error.clone().unwrap_or_default() })
            }
            JobState::Cancelled => Some(CtlError::JobCancelled { id }),
            _ => None,
        };
        match failure {
            // Programs get the job as well.
            Some(failure) if self.json => self.print_json(&job).and(Err(failure)),
            Some(failure) => Err(failure),
            None => self.print(&job, jobs::outcome),
        }
    }
}

fn target(id: u64) -> String {
    format!("/v1/jobs/{id}")
}

fn complete_target(id: u64) -> String {
    format!("{}/complete", target(id))
}
