//! Waits for a job, with a bar on a terminal. Ctrl-C ends the wait, not the job.

use super::error::CtlError;
use super::jobs::pace;
use crate::model::{Job, JobState};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::SIGINT;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between the first two looks, doubled until [`LOOK_AGAIN_AFTER_MAX`]: small jobs end at once.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// Longest time between two looks, and so until Ctrl-C is heard.
const LOOK_AGAIN_AFTER_MAX: Duration = Duration::from_millis(250);
/// What shells show of a program that Ctrl-C ended.
const INTERRUPTED_STATUS: i32 = 130;

/// How far a job is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Until it has ended, or is a mirror or a pull that is ready.
    Ready,
    /// Until it has ended, or is a mirror that could not be completed.
    End,
}

impl Goal {
    fn is_met(self, job: &Job) -> bool {
        job.state.has_ended() || job.state == JobState::Ready && (self == Self::Ready || job.error.is_some())
    }
}

/// Looks at a job until the goal is met.
///
/// # Errors
/// What the look says, or [`CtlError::Interrupted`].
pub(super) fn follow(
    id: u64,
    goal: Goal,
    interrupt: &Interrupt,
    mut look: impl FnMut() -> Result<Job, CtlError>,
) -> Result<Job, CtlError> {
    let mut bar = Bar::default();
    let mut pause = LOOK_AGAIN_AFTER;
    loop {
        let job = look()?;
        if goal.is_met(&job) {
            return Ok(job);
        }
        bar.show(&job);
        if interrupt.came() {
            return Err(CtlError::Interrupted { id });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_AGAIN_AFTER_MAX);
    }
}

/// Listens for Ctrl-C as long as it lives. The second one ends the program.
#[derive(Debug)]
pub(super) struct Interrupt {
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Where the system refuses, Ctrl-C ends the program as usual.
    pub(super) fn watch() -> Interrupt {
        let came = Arc::new(AtomicBool::new(false));
        // In this order: the first Ctrl-C finds the flag unset.
        let end = signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED_STATUS, came.clone());
        if end.is_ok() {
            let _refused = signal_hook::flag::register(SIGINT, came.clone());
        }
        Interrupt { came }
    }

    pub(super) fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // A signal without handlers would be ignored from now on: one that finds the flag set ends the program.
        self.came.store(true, Ordering::Relaxed);
    }
}

/// How far the job is, on a terminal; nothing elsewhere. Always on standard error.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Bar {
    /// So far. The first call draws the bar: a job that has ended needs none.
    fn show(&mut self, job: &Job) {
        let pace = pace(job).unwrap_or_default();
        match &self.0 {
            Some(bar) => {
                bar.set_length(job.total_bytes);
                bar.set_message(pace);
                bar.set_position(job.done_bytes);
            }
            None if std::io::stderr().is_terminal() => {
                let bar = ProgressBar::with_draw_target(Some(job.total_bytes), ProgressDrawTarget::stderr());
                let template = "{prefix} [{bar:30}] {binary_bytes}/{binary_total_bytes} {msg}";
                let bar = bar.with_prefix(format!("job {}", job.id)).with_message(pace).with_position(job.done_bytes);
                // The template is a constant: a wrong one shows at its first use, and then as the plain bar.
                if let Ok(style) = ProgressStyle::with_template(template) {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.tick();
                self.0 = Some(bar);
            }
            None => {}
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobKind;

    fn job(state: JobState) -> Job {
        Job {
            id: 7,
            kind: JobKind::Mirror,
            state,
            disks: vec![],
            done_bytes: 1,
            total_bytes: 2,
            bytes_per_second: 1,
            seconds_left: Some(1),
            limit_bytes_per_second: None,
            error: None,
            started: 0,
            ended: None,
        }
    }

    #[test]
    fn a_job_is_waited_for_until_it_is_ready_or_has_ended() {
        let interrupt = Interrupt::watch();
        let states = [JobState::Running, JobState::Ready, JobState::Completing, JobState::Done];
        let until = |goal| {
            let mut states = states.into_iter();
            follow(7, goal, &interrupt, || Ok(job(states.next().unwrap()))).unwrap().state
        };
        assert_eq!((until(Goal::Ready), until(Goal::End)), (JobState::Ready, JobState::Done));
        // One that could not be completed is not waited for any longer.
        let stuck = Job { error: Some("no room".to_owned()), ..job(JobState::Ready) };
        assert_eq!(follow(7, Goal::End, &interrupt, || Ok(stuck.clone())).unwrap().state, JobState::Ready);
        for end in [JobState::Failed, JobState::Cancelled] {
            assert_eq!(follow(7, Goal::Ready, &interrupt, || Ok(job(end))).unwrap().state, end);
        }
        // Once: the next one would end this program.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::INT).unwrap();
        let interrupted = follow(7, Goal::End, &interrupt, || Ok(job(JobState::Running)));
        let error = interrupted.unwrap_err();
        assert_eq!(error.exit_status(), 130);
        let line = "job 7 goes on: `vringd ctl job wait 7` waits for it again, `vringd ctl job cancel 7` cancels it";
        assert_eq!(error.to_string(), line);
    }
}
