//! The contract between the control API and the daemon it controls.

use crate::asker::Asker;
use crate::error::ApiError;
use crate::model::config::NewExport;
use crate::model::policy::{PlacementPolicy, Policy, PolicyRecord, PolicySettings};
use crate::model::trace::{NewTrace, Trace, TraceNews};
use crate::model::{
    Attach, Bitmap, Disk, Export, Group, GroupSettings, Info, Job, JobSettings, Lun, NewBitmap, NewDisk, NewGroup,
    NewJob, NewSnapshot, NewUnit, NewUpgrade, NewWorker, Resize, RingInfo, Settings, Unit, Worker,
};
use crate::scope::Scope;

/// What the daemon can be asked. The server of this crate turns HTTP requests into these calls.
///
/// Every call may block (it runs on a thread of its own kind, never on a worker) and several may come at once, from
/// different threads. A call returns when its effect is complete: after [`ring_attach`](Self::ring_attach) the new
/// worker owns the ring, after [`worker_free`](Self::worker_free) the thread has ended, after
/// [`remove_export`](Self::remove_export) the socket is gone and the storage is closed.
///
/// Worker identifiers are unique in the daemon, across all scopes. A ring may be attached to the shared workers and to
/// its own export's private ones.
pub trait Daemon: Send + Sync + 'static {
    /// The daemon itself.
    ///
    /// # Errors
    /// Only when the daemon is stopping; every other call can fail for that reason too.
    fn info(&self) -> Result<Info, ApiError>;

    /// All exports, by name.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn exports(&self) -> Result<Vec<Export>, ApiError>;

    /// One export.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`].
    fn export(&self, name: &str) -> Result<Export, ApiError>;

    /// Opens the storage, makes the socket and starts to listen. `new` has passed [`NewExport::check`].
    ///
    /// # Errors
    /// [`ApiError::ExportExists`], [`ApiError::InvalidField`] for a value that turns out unusable (an image that
    /// cannot be opened or is locked, an unknown user), [`ApiError::TooManyWorkers`], [`ApiError::Failed`].
    fn add_export(&self, new: NewExport) -> Result<Export, ApiError>;

    /// Stops and forgets an export. With `force`, also when a frontend is connected: requests in flight are drained.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::Connected`]; [`ApiError::Failed`] when a worker hangs, and when requests are not
    /// drained within a second: the export is failed then, and gone with a removal after its storage has answered.
    fn remove_export(&self, name: &str, force: bool) -> Result<(), ApiError>;

    /// Changes the capacity of the disk behind an export, and announces it to the guests of all exports that use it.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::InvalidField`] for `capacity_bytes`, [`ApiError::Unsupported`] where the
    /// storage has a size that cannot change, [`ApiError::Failed`].
    fn resize(&self, name: &str, resize: Resize) -> Result<Export, ApiError>;

    /// Applies changes while the export serves: all of them or none.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::Unsupported`] for an execution the storage does not have and for `sync` of
    /// one without an intent log, [`ApiError::TooManyWorkers`] for a placement, [`ApiError::InvalidField`] for a limit or
    /// its group.
    fn change(&self, name: &str, settings: Settings) -> Result<Export, ApiError>;

    /// Commits what was written so far, writes it back to the storage below the log, and returns when it is there.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::Unsupported`] for a disk without an intent log and for a directory,
    /// [`ApiError::Failed`] when the storage refuses it.
    fn sync(&self, name: &str) -> Result<Export, ApiError>;

    /// Adds a disk to a SCSI device while it serves, and tells its guest. `new` has passed [`NewUnit::check`].
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::Unsupported`] for an export that is no SCSI device, [`ApiError::InvalidField`] for a LUN
    /// that is taken and a disk that cannot be had, [`ApiError::Failed`].
    fn unit_add(&self, export: &str, new: NewUnit) -> Result<Unit, ApiError>;

    /// Takes a disk out of a SCSI device, and tells its guest. Requests in flight are answered first.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::NoSuchUnit`]; [`ApiError::Failed`] when a worker hangs, and when requests have not ended
    /// within a second: the unit is out of the device all the same, and nobody can use the disk until they have.
    fn unit_remove(&self, export: &str, lun: Lun) -> Result<(), ApiError>;

    /// All disks, by name: those that were added, and those that belong to exports.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn disks(&self) -> Result<Vec<Disk>, ApiError>;

    /// One disk.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none.
    fn disk(&self, name: &str) -> Result<Disk, ApiError>;

    /// Opens a disk, as yet without users. `new` has passed [`NewDisk::check`].
    ///
    /// # Errors
    /// [`ApiError::Disk`] for a name that is taken, [`ApiError::InvalidField`] for a storage that cannot be opened.
    fn disk_add(&self, new: NewDisk) -> Result<Disk, ApiError>;

    /// Changes the capacity and announces it to the guests of all exports that use the disk.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, [`ApiError::InvalidField`] for `capacity_bytes`, [`ApiError::DiskUnsupported`]
    /// where the storage refuses it, [`ApiError::Failed`].
    fn disk_resize(&self, name: &str, resize: Resize) -> Result<Disk, ApiError>;

    /// Ends what guests have reserved of a disk by SCSI commands, kept over a loss of power or not.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, [`ApiError::Failed`].
    fn disk_break_reservations(&self, name: &str) -> Result<(), ApiError>;

    /// Opens a disk again that is lost, as it is now.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, [`ApiError::DiskUnsupported`] where it is open, or not on other machines.
    fn disk_reopen(&self, name: &str) -> Result<Disk, ApiError>;

    /// Closes a disk that nothing uses; a volume is written back.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, or it has users.
    fn disk_remove(&self, name: &str) -> Result<(), ApiError>;

    /// The dirty bitmaps of a disk, also those that are not consistent; none where the storage has no bitmaps.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is no such disk, [`ApiError::Failed`].
    fn disk_bitmaps(&self, disk: &str) -> Result<Vec<Bitmap>, ApiError>;

    /// Begins a bitmap, which records what is written from then on. `new` has passed [`NewBitmap::check`].
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is no such disk, [`ApiError::DiskUnsupported`] for one that is no qcow2 image, is
    /// read-only, or has a bitmap of this name, [`ApiError::Failed`].
    fn disk_bitmap_add(&self, disk: &str, new: NewBitmap) -> Result<Bitmap, ApiError>;

    /// Removes a bitmap, also one that is not consistent.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is no such disk, [`ApiError::NoSuchBitmap`], [`ApiError::DiskUnsupported`] for one
    /// that a job uses and for a disk that is read-only, [`ApiError::Failed`].
    fn disk_bitmap_remove(&self, disk: &str, bitmap: &str) -> Result<(), ApiError>;

    /// Sets aside what disks hold, all at the same moment: each image file gets its other name, and a new, empty overlay
    /// with that backing file takes the image's path. Guests go on writing into the overlays; all disks are changed or none.
    /// `new` has passed [`NewSnapshot::check`]. The disks, in the order of `new`.
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, [`ApiError::DiskUnsupported`] for one that is no qcow2 image with a path, is
    /// read-only or has a job, [`ApiError::InvalidField`] for a path that cannot be used, [`ApiError::Failed`].
    fn snapshot(&self, new: NewSnapshot) -> Result<Vec<Disk>, ApiError>;

    /// All jobs by identifier: those that run, and those that have ended and were not forgotten.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn jobs(&self) -> Result<Vec<Job>, ApiError>;

    /// One job.
    ///
    /// # Errors
    /// [`ApiError::NoSuchJob`].
    fn job(&self, id: u64) -> Result<Job, ApiError>;

    /// Begins a job: makes its targets and returns when it runs; a backup holds what the disks held at some moment before
    /// that. A bitmap that is named is begun by a full backup where the disk does not have it, and empty from that moment on
    /// where it does; a job that fails or is cancelled leaves it as if it had not been. `new` has passed [`NewJob::check`].
    ///
    /// # Errors
    /// [`ApiError::Disk`] where there is none, [`ApiError::DiskUnsupported`] for one that cannot be copied, or not with a
    /// bitmap, [`ApiError::InvalidField`] for a target ([`NewJob::target_field`]), a bitmap that is not consistent or a
    /// backing file ([`NewJob::copy_field`]), [`ApiError::Failed`].
    fn job_add(&self, new: NewJob) -> Result<Job, ApiError>;

    /// Changes a job while it runs; the change holds when this returns. `settings` has passed [`JobSettings::check`].
    ///
    /// # Errors
    /// [`ApiError::NoSuchJob`], [`ApiError::JobInState`] when it has ended ([`Job::may_change`]).
    fn job_change(&self, id: u64, settings: JobSettings) -> Result<Job, ApiError>;

    /// Tells a mirror that is ready to move its disk to the target. When this returns, the job is no longer ready: it is
    /// completing or has ended.
    ///
    /// # Errors
    /// [`ApiError::NoSuchJob`], [`ApiError::JobInState`] for one that is not ready, [`ApiError::JobUnsupported`] for a backup
    /// ([`Job::may_complete`]).
    fn job_complete(&self, id: u64) -> Result<Job, ApiError>;

    /// Cancels a job that runs and removes its unfinished targets: it is listed as cancelled from then on. Forgets a job that
    /// has ended, and leaves its targets alone.
    ///
    /// # Errors
    /// [`ApiError::NoSuchJob`], [`ApiError::JobInState`] while it completes ([`Job::may_cancel`]).
    fn job_remove(&self, id: u64) -> Result<(), ApiError>;

    /// All groups, by name.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn groups(&self) -> Result<Vec<Group>, ApiError>;

    /// One group.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`].
    fn group(&self, name: &str) -> Result<Group, ApiError>;

    /// Makes a group, as yet without exports. `new` has passed [`NewGroup::check`].
    ///
    /// # Errors
    /// [`ApiError::GroupExists`].
    fn group_add(&self, new: NewGroup) -> Result<Group, ApiError>;

    /// Changes the limits that the group's exports share; they hold when this returns.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`], [`ApiError::InvalidField`].
    fn group_change(&self, name: &str, settings: GroupSettings) -> Result<Group, ApiError>;

    /// Forgets a group without exports.
    ///
    /// # Errors
    /// [`ApiError::NoSuchGroup`], [`ApiError::GroupInUse`].
    fn group_remove(&self, name: &str) -> Result<(), ApiError>;

    /// Workers by identifier: in [`Scope::Daemon`] all of them, in [`Scope::Export`] that export's private ones.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`].
    fn workers(&self, scope: &Scope) -> Result<Vec<Worker>, ApiError>;

    /// One worker.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::NoSuchWorker`].
    fn worker(&self, scope: &Scope, id: u32) -> Result<Worker, ApiError>;

    /// Starts a worker.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::TooManyWorkers`], [`ApiError::InvalidField`] for a CPU, node or cgroup
    /// that is not there, [`ApiError::Failed`] for a limit of the system.
    fn worker_new(&self, scope: &Scope, new: NewWorker) -> Result<Worker, ApiError>;

    /// Ends a worker that has no rings.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::NoSuchWorker`], [`ApiError::Busy`] while rings are attached to it.
    fn worker_free(&self, scope: &Scope, id: u32) -> Result<(), ApiError>;

    /// Moves a ring to a worker, while it serves requests.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::NoSuchRing`], [`ApiError::NoSuchWorker`] (also for a worker that is
    /// private to another export), [`ApiError::WorkerDead`].
    fn ring_attach(&self, export: &str, index: u16, attach: Attach) -> Result<RingInfo, ApiError>;

    /// One ring.
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::NoSuchRing`].
    fn ring(&self, export: &str, index: u16) -> Result<RingInfo, ApiError>;

    /// What is chosen now, since when, and why.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn policy(&self) -> Result<Policy, ApiError>;

    /// Which of the daemon's workers were given which rings.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn placement(&self) -> Result<PlacementPolicy, ApiError>;

    /// Changes what is favoured, for all workers that choose by themselves.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn policy_change(&self, settings: PolicySettings) -> Result<Policy, ApiError>;

    /// What was seen and decided lately.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn policy_record(&self) -> Result<PolicyRecord, ApiError>;

    /// The traces that somebody reads, by identifier.
    ///
    /// # Errors
    /// As for [`info`](Self::info).
    fn traces(&self) -> Result<Vec<Trace>, ApiError>;

    /// Begins a trace, which lasts for as long as its news are taken every few seconds. `new` has passed [`NewTrace::check`].
    ///
    /// # Errors
    /// [`ApiError::NoSuchExport`], [`ApiError::TooManyTraces`].
    fn trace_begin(&self, new: NewTrace) -> Result<Trace, ApiError>;

    /// What it has to tell since it was asked last.
    ///
    /// # Errors
    /// [`ApiError::NoSuchTrace`]; [`ApiError::NoSuchExport`] when the one that it is for has been removed.
    fn trace_take(&self, id: u64) -> Result<TraceNews, ApiError>;

    /// Ends a trace.
    ///
    /// # Errors
    /// [`ApiError::NoSuchTrace`].
    fn trace_end(&self, id: u64) -> Result<(), ApiError>;

    /// Replaces the program while its exports serve: sessions, rings, workers and storage go on in the new one, and the
    /// process keeps its id. Returns only when nothing came of it, and then everything is as it was: with
    /// [`ApiError::InvalidField`] for a program that cannot be started or cannot read this one's state,
    /// [`ApiError::Unsupported`] for an export that cannot be handed over, [`ApiError::Failed`], also where `asker` waits no more
    /// before anything has paused.
    fn upgrade(&self, new: NewUpgrade, asker: &Asker) -> ApiError {
        let _ = (new, asker);
        ApiError::Failed { message: "this daemon is part of another program and cannot be upgraded".to_owned() }
    }

    /// Begins to stop the daemon and returns; exports are drained after the answer is sent.
    ///
    /// # Errors
    /// [`ApiError::Stopping`] when that was asked for already.
    fn shutdown(&self) -> Result<(), ApiError>;
}
