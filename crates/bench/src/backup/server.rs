//! The two servers: how each is started, and how it is told to copy the disk.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::case::{Case, Format, Row, Side};
use super::qmp::{Event, Qmp};
use crate::http;

/// Name of the disk, which is the default of `vringd disk`.
const DISK: &str = "disk";
/// Our server tells nobody that a job has ended: it is asked this often.
const ASK_INTERVAL: Duration = Duration::from_millis(5);

/// How servers are started.
#[derive(Debug)]
pub(super) struct Programs<'a> {
    pub(super) vringd: &'a Path,
    /// Further arguments of ours.
    pub(super) ours: &'a [String],
    pub(super) storage_daemon: &'a Path,
    /// Around the page cache.
    pub(super) direct: bool,
}

/// The paths of a run.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) socket: PathBuf,
    /// Of our API, or of QEMU's monitor.
    pub(super) control: PathBuf,
    pub(super) source: PathBuf,
    pub(super) target: PathBuf,
    /// Where both lie.
    pub(super) directory: PathBuf,
}

impl Programs<'_> {
    /// The command that serves the source.
    pub(super) fn command(&self, side: Side, source: Format, paths: &Paths) -> Vec<String> {
        match side {
            Side::Vringd => self.vringd(source, paths),
            Side::Qemu => self.storage_daemon(source, paths),
        }
    }

    fn vringd(&self, source: Format, paths: &Paths) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut words = vec![text(self.vringd)];
        words.extend(["--log-level", "warn", "disk", "--queues", "1", "--socket"].map(String::from));
        words.extend([text(&paths.socket), "--control".into(), text(&paths.control)]);
        words.extend(["--allow".into(), text(&paths.directory)]);
        let storage = match source {
            Format::Raw => "file",
            Format::Qcow2 => "qcow2",
        };
        words.extend(["--storage", storage].map(String::from));
        words.extend(self.direct.then(|| "--direct".into()));
        words.extend(self.ours.iter().cloned());
        words.push(text(&paths.source));
        words
    }

    fn storage_daemon(&self, source: Format, paths: &Paths) -> Vec<String> {
        let direct = if self.direct { "on" } else { "off" };
        let file = format!("driver=file,node-name=file,aio=io_uring,cache.direct={direct},filename=");
        let export = "type=vhost-user-blk,id=export,writable=on,num-queues=1,addr.type=unix,node-name=";
        let words = [
            "--blockdev".into(),
            file + &value(&paths.source),
            "--blockdev".into(),
            format!("driver={},node-name={DISK},file=file", source.name()),
            "--export".into(),
            format!("{export}{DISK},addr.path={}", value(&paths.socket)),
            "--chardev".into(),
            format!("socket,id=monitor,server=on,wait=off,path={}", value(&paths.control)),
            "--monitor".into(),
            "chardev=monitor".into(),
        ];
        std::iter::once(self.storage_daemon.to_string_lossy().into_owned()).chain(words).collect()
    }
}

/// A path as a value among QEMU's options, which commas part.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Who copies, before and after the job begins.
#[derive(Debug)]
pub(super) enum Copier {
    Vringd {
        control: PathBuf,
        /// Of the job that runs.
        job: Option<u64>,
    },
    Qemu(Qmp),
}

/// A job, as our API shows it.
#[derive(Debug, Deserialize)]
struct Job {
    id: u64,
    state: String,
    #[serde(default)]
    error: Option<String>,
}

impl Copier {
    /// Connects to a server that listens, and prepares what does not belong to the job.
    pub(super) fn prepare(side: Side, case: &Case, direct: bool, paths: &Paths) -> Result<Self> {
        match side {
            Side::Vringd => Ok(Self::Vringd { control: paths.control.clone(), job: None }),
            Side::Qemu => {
                let mut qmp = Qmp::connect(&paths.control)?;
                if case.row.is_of_chain() {
                    return Ok(Self::Qemu(qmp));
                }
                let file =
                    json!({"driver": "file", "filename": paths.target, "aio": "io_uring", "cache": {"direct": direct}});
                let target = json!({"driver": case.target.name(), "node-name": "target", "file": file});
                qmp.execute("blockdev-add", &target)?;
                Ok(Self::Qemu(qmp))
            }
        }
    }

    /// Begins the job.
    pub(super) fn begin(&mut self, case: &Case, target: &Path) -> Result<()> {
        match self {
            Self::Vringd { control, job } => {
                let copy = json!({"disk": DISK, "target": target, "format": case.target.name()});
                let body = match case.row {
                    Row::Backup => json!({"kind": "backup", "disks": [copy]}),
                    Row::Mirror => {
                        json!({"kind": "mirror", "disk": DISK, "target": target, "format": case.target.name()})
                    }
                    Row::Stream => json!({"kind": "stream", "disk": DISK}),
                    Row::Commit => json!({"kind": "commit", "disk": DISK}),
                };
                *job = Some(ask(control, "POST", "/v1/jobs", Some(&body))?.id);
            }
            Self::Qemu(qmp) => {
                let copy = json!({"job-id": "job", "device": DISK, "target": "target", "sync": "full"});
                let chain = json!({"job-id": "job", "device": DISK});
                match case.row {
                    Row::Backup => qmp.execute("blockdev-backup", &copy)?,
                    Row::Mirror => qmp.execute("blockdev-mirror", &copy)?,
                    Row::Stream => qmp.execute("block-stream", &chain)?,
                    Row::Commit => qmp.execute("block-commit", &chain)?,
                };
            }
        }
        Ok(())
    }

    /// Waits no longer than `patience` for a job to be done, or a mirror to be ready, and says whether it is.
    pub(super) fn is_there(&mut self, row: Row, patience: Duration) -> Result<bool> {
        match self {
            Self::Vringd { control, job } => {
                let job = ask(control, "GET", &format!("/v1/jobs/{}", job.context("no job has begun")?), None)?;
                let is_there = has_arrived(row, &job)?;
                if !is_there {
                    thread::sleep(patience.min(ASK_INTERVAL));
                }
                Ok(is_there)
            }
            Self::Qemu(qmp) => match qmp.next_event(patience)? {
                // The guest is to use what is behind, as with ours.
                Some(event) if row == Row::Commit && event.event == "BLOCK_JOB_READY" => {
                    qmp.execute("block-job-complete", &json!({"device": "job"}))?;
                    Ok(false)
                }
                Some(event) => is_arrival(row, &event),
                None => Ok(false),
            },
        }
    }

    /// Closes a finished copy, so that nothing of it is in the server alone. Ours is closed when its job is done.
    pub(super) fn close_target(&mut self) -> Result<()> {
        if let Self::Qemu(qmp) = self {
            qmp.execute("blockdev-del", &json!({"node-name": "target"}))?;
        }
        Ok(())
    }

    /// Ends a mirror, or what takes too long.
    pub(super) fn cancel(&mut self) -> Result<()> {
        match self {
            Self::Vringd { control, job } => {
                let job = job.context("no job has begun")?;
                http::ask(control, "DELETE", &format!("/v1/jobs/{job}"), None)?;
            }
            Self::Qemu(qmp) => {
                qmp.execute("block-job-cancel", &json!({"device": "job", "force": true}))?;
            }
        }
        Ok(())
    }
}

fn ask(control: &Path, method: &str, target: &str, body: Option<&Value>) -> Result<Job> {
    let answer = http::ask(control, method, target, body)?;
    serde_json::from_str(&answer).with_context(|| format!("{method} {target}: the answer is no job: {answer}"))
}

fn has_arrived(row: Row, job: &Job) -> Result<bool> {
    match (row, job.state.as_str()) {
        (Row::Backup | Row::Stream | Row::Commit, "done") | (Row::Mirror, "ready") => Ok(true),
        (_, "running") | (Row::Commit, "ready" | "completing") => Ok(false),
        (_, state) => bail!("the {row} is {state}: {}", job.error.as_deref().unwrap_or("it does not say why")),
    }
}

fn is_arrival(row: Row, event: &Event) -> Result<bool> {
    let error = event.data["error"].as_str();
    match (event.event.as_str(), row) {
        ("BLOCK_JOB_ERROR", _) => bail!("the {row} has an error: {}", event.data),
        ("BLOCK_JOB_COMPLETED", _) if error.is_some() => bail!("the {row} failed: {}", error.unwrap_or_default()),
        ("BLOCK_JOB_COMPLETED", Row::Backup | Row::Stream | Row::Commit) | ("BLOCK_JOB_READY", Row::Mirror) => Ok(true),
        ("BLOCK_JOB_COMPLETED" | "BLOCK_JOB_CANCELLED", _) => bail!("the {row} ended: {}", event.data),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::qmp::tests::{DONE, GREETING, Part, fake as monitor};
    use crate::http::tests::{fake, ok};

    const CASE: Case = Case { row: Row::Backup, source: Format::Raw, target: Format::Qcow2, depth: 1 };
    const MIRROR: Case = Case { row: Row::Mirror, ..CASE };

    fn paths() -> Paths {
        let at = |name: &str| PathBuf::from("/d,ir").join(name);
        Paths { socket: at("s"), control: at("c"), source: at("source"), target: at("target"), directory: at("") }
    }

    #[test]
    fn both_serve_the_same_disk() {
        let ours = ["--workers".to_owned(), "1".to_owned()];
        let programs =
            Programs { vringd: Path::new("vringd"), ours: &ours, storage_daemon: Path::new("qsd"), direct: true };
        let command = programs.command(Side::Vringd, Format::Qcow2, &paths()).join(" ");
        assert!(command.ends_with("--allow /d,ir/ --storage qcow2 --direct --workers 1 /d,ir/source"), "{command}");
        let command = programs.command(Side::Qemu, Format::Qcow2, &paths()).join(" ");
        assert!(command.contains("cache.direct=on,filename=/d,,ir/source "), "commas are doubled: {command}");
        assert!(command.contains("driver=qcow2,node-name=disk,file=file"), "{command}");
        let buffered = Programs { direct: false, ..programs };
        let command = buffered.command(Side::Vringd, Format::Raw, &paths()).join(" ");
        assert!(command.contains("--storage file --workers"), "{command}");
    }

    #[test]
    fn our_job_is_begun_asked_for_and_cancelled() {
        let job = |state: &str| ok(&format!("{{\"id\": 3, \"kind\": \"mirror\", \"state\": \"{state}\"}}"));
        let failed = ok("{\"id\": 3, \"state\": \"failed\", \"error\": \"no space\"}");
        let answers = vec![job("running"), job("running"), job("ready"), failed, job("cancelled")];
        let (_directory, control, server) = fake(answers);
        let paths = Paths { control, ..paths() };
        let mut copier = Copier::prepare(Side::Vringd, &MIRROR, false, &paths).unwrap();
        assert!(copier.is_there(Row::Mirror, Duration::ZERO).is_err(), "nothing has begun");
        copier.begin(&MIRROR, &paths.target).unwrap();
        assert!(!copier.is_there(Row::Mirror, Duration::ZERO).unwrap());
        assert!(copier.is_there(Row::Mirror, Duration::ZERO).unwrap());
        let error = copier.is_there(Row::Mirror, Duration::ZERO).unwrap_err().to_string();
        assert_eq!(error, "the mirror is failed: no space");
        copier.close_target().unwrap();
        copier.cancel().unwrap();
        let asked = server.join().unwrap();
        assert!(
            asked[0].starts_with("POST /v1/jobs ") && asked[0].contains("\"target\":\"/d,ir/target\""),
            "{asked:?}"
        );
        assert!(asked[1].starts_with("GET /v1/jobs/3 ") && asked[4].starts_with("DELETE /v1/jobs/3 "), "{asked:?}");
    }

    #[test]
    fn a_commit_that_cannot_catch_up_is_still_under_way() {
        let job = |state: &str| serde_json::from_value(json!({"id": 3, "state": state})).unwrap();
        for (state, there) in [("running", false), ("completing", false), ("ready", false), ("done", true)] {
            assert_eq!(has_arrived(Row::Commit, &job(state)).unwrap(), there, "{state}");
        }
        assert!(has_arrived(Row::Commit, &job("failed")).is_err());
        assert!(has_arrived(Row::Stream, &job("ready")).is_err(), "a stream is never ready");
    }

    #[test]
    fn a_commit_of_qemu_is_completed_when_it_is_ready() {
        use Part::{Hear, Say};
        const READY: &str = "{\"event\": \"BLOCK_JOB_READY\", \"data\": {\"device\": \"job\"}}\r\n";
        const COMPLETED: &str = "{\"event\": \"BLOCK_JOB_COMPLETED\", \"data\": {\"device\": \"job\"}}\r\n";
        let parts = [Say(GREETING), Hear, Say(DONE), Hear, Say(DONE), Say(READY), Hear, Say(DONE), Say(COMPLETED)];
        let (_directory, control, monitor) = monitor(parts.to_vec());
        let paths = Paths { control, ..paths() };
        let commit = Case { row: Row::Commit, source: Format::Qcow2, ..CASE };
        let mut copier = Copier::prepare(Side::Qemu, &commit, true, &paths).unwrap();
        copier.begin(&commit, &paths.target).unwrap();
        assert!(!copier.is_there(Row::Commit, Duration::from_secs(10)).unwrap());
        assert!(copier.is_there(Row::Commit, Duration::from_secs(10)).unwrap());
        let told = monitor.join().unwrap();
        let commands: Vec<&str> = told.iter().filter_map(|it| it["execute"].as_str()).collect();
        assert_eq!(commands, ["qmp_capabilities", "block-commit", "block-job-complete"]);
    }

    #[test]
    fn qemu_is_told_the_same_by_its_protocol() {
        use Part::{Hear, Say};
        const COMPLETED: &str = "{\"event\": \"BLOCK_JOB_COMPLETED\", \"data\": {\"device\": \"job\"}}\r\n";
        const CHANGE: &str = "{\"event\": \"JOB_STATUS_CHANGE\", \"data\": {\"status\": \"running\"}}\r\n";
        let handshake = [Say(GREETING), Hear, Say(DONE)];
        let rest = [Hear, Say(DONE), Hear, Say(CHANGE), Say(DONE), Say(COMPLETED), Hear, Say(DONE), Hear, Say(DONE)];
        let (_directory, control, monitor) = monitor([&handshake[..], &rest].concat());
        let paths = Paths { control, ..paths() };
        let mut copier = Copier::prepare(Side::Qemu, &CASE, true, &paths).unwrap();
        copier.begin(&CASE, &paths.target).unwrap();
        assert!(!copier.is_there(Row::Backup, Duration::from_secs(10)).unwrap(), "another event");
        assert!(copier.is_there(Row::Backup, Duration::from_secs(10)).unwrap());
        copier.close_target().unwrap();
        copier.cancel().unwrap();
        let told = monitor.join().unwrap();
        let commands: Vec<&str> = told.iter().filter_map(|it| it["execute"].as_str()).collect();
        let expected = ["qmp_capabilities", "blockdev-add", "blockdev-backup", "blockdev-del", "block-job-cancel"];
        assert_eq!(commands, expected);
        assert_eq!(told[1]["arguments"]["file"]["cache"]["direct"], true);
        assert_eq!(told[2]["arguments"]["sync"], "full");
    }

    #[test]
    fn a_job_that_ends_otherwise_is_an_error() {
        let event = |name: &str, data: Value| Event { event: name.into(), data };
        let failed = event("BLOCK_JOB_COMPLETED", json!({"error": "No space left on device"}));
        let error = is_arrival(Row::Backup, &failed).unwrap_err().to_string();
        assert_eq!(error, "the backup failed: No space left on device");
        assert!(is_arrival(Row::Mirror, &event("BLOCK_JOB_COMPLETED", json!({}))).is_err());
        assert!(is_arrival(Row::Backup, &event("BLOCK_JOB_CANCELLED", json!({}))).is_err());
        assert!(is_arrival(Row::Mirror, &event("BLOCK_JOB_READY", json!({}))).unwrap());
        assert!(is_arrival(Row::Stream, &event("BLOCK_JOB_COMPLETED", json!({}))).unwrap());
    }
}
