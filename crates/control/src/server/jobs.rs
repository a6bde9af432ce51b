//! The routes of jobs and snapshots: what is copied or set aside while guests go on.

use super::answer::{At, Body, Refusal, ask};
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::{Disk, Job, JobSettings, NewJob, NewSnapshot};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

type Shared = State<Arc<dyn Daemon>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// The routes with their descriptions, not yet bound to a daemon.
pub(super) fn described() -> OpenApiRouter<Arc<dyn Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(snapshot))
        .routes(routes!(job_list, job_add))
        .routes(routes!(job_get, job_change, job_remove))
        .routes(routes!(job_complete))
}

/// Snapshot disks of qcow2 images, all at the same moment. Each image file gets another name, and a new, empty overlay takes
/// its path, with that file behind it: configuration and restarts stay true, and guests go on writing into the overlay.
#[utoipa::path(post, path = "/v1/snapshots", tag = "disks", request_body = NewSnapshot, responses(
    (status = 200, description = "The disks, which go on in their overlays", body = Vec<Disk>),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "A disk is no qcow2 image, is read-only or has a job (`unsupported`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn snapshot(State(daemon): Shared, Body(new): Body<NewSnapshot>) -> Answer<Vec<Disk>> {
    new.check().map_err(ApiError::from)?;
    ask(daemon, |daemon| daemon.snapshot(new)).await.map(Json)
}

/// All jobs, by identifier: those that run, and those that have ended and were not forgotten.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, description = "All jobs", body = Vec<Job>)))]
async fn job_list(State(daemon): Shared) -> Answer<Vec<Job>> {
    ask(daemon, <dyn Daemon>::jobs).await.map(Json)
}

/// Begin a backup, a mirror or a pull. The answer comes when it runs; a pull can be read when it is `ready`, which is soon.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = NewJob, responses(
    (status = 201, description = "The new job", body = Job),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "A disk cannot be copied (`unsupported`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn job_add(State(daemon): Shared, Body(new): Body<NewJob>) -> Result<(StatusCode, Json<Job>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let job = ask(daemon, |daemon| daemon.job_add(new)).await?;
    Ok((StatusCode::CREATED, Json(job)))
}

/// One job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path, description = "Identifier of the job")), responses(
    (status = 200, description = "The job", body = Job),
    (status = 404, description = "There is no such job (`no-such-job`)", body = ErrorBody),
))]
async fn job_get(State(daemon): Shared, At(id): At<u64>) -> Answer<Job> {
    ask(daemon, move |daemon| daemon.job(id)).await.map(Json)
}

/// Change a job while it runs.
#[utoipa::path(patch, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path, description = "Identifier of the job")), request_body = JobSettings, responses(
    (status = 200, description = "The changed job", body = Job),
    (status = 404, description = "There is no such job (`no-such-job`)", body = ErrorBody),
    (status = 409, description = "It has ended (`job-in-state`), or is a pull (`unsupported`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn job_change(State(daemon): Shared, At(id): At<u64>, Body(settings): Body<JobSettings>) -> Answer<Job> {
    settings.check().map_err(ApiError::from)?;
    ask(daemon, move |daemon| daemon.job_change(id, settings)).await.map(Json)
}

/// Cancel a job that runs, and remove its unfinished targets; forget one that has ended.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path, description = "Identifier of the job")), responses(
    (status = 204, description = "It is cancelled, or forgotten"),
    (status = 404, description = "There is no such job (`no-such-job`)", body = ErrorBody),
    (status = 409, description = "It completes (`job-in-state`)", body = ErrorBody),
))]
async fn job_remove(State(daemon): Shared, At(id): At<u64>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.job_remove(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Complete a mirror that is ready: its disk moves to the target and lives on there. The answer comes at once; the job is done
/// when the disk has moved. Complete a pull: its clients have read what they need, and its bitmap goes on from the pull's moment.
#[utoipa::path(post, path = "/v1/jobs/{id}/complete", tag = "jobs", params(("id" = u64, Path, description = "Identifier of the job")), responses(
    (status = 200, description = "The job, which completes or is done", body = Job),
    (status = 404, description = "There is no such job (`no-such-job`)", body = ErrorBody),
    (status = 409, description = "It is not ready (`job-in-state`), or is a backup (`unsupported`)", body = ErrorBody),
))]
async fn job_complete(State(daemon): Shared, At(id): At<u64>) -> Answer<Job> {
    ask(daemon, move |daemon| daemon.job_complete(id)).await.map(Json)
}
