//! The routes of logical units: the disks of SCSI devices.

use super::answer::{At, Body, Refusal, ask};
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::{Lun, NewUnit, Unit};
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
    OpenApiRouter::new().routes(routes!(unit_list, unit_add)).routes(routes!(unit_remove))
}

/// The logical units of a SCSI device, by LUN.
#[utoipa::path(get, path = "/v1/exports/{name}/luns", tag = "exports", params(("name" = String, Path, description = "Name of the export")), responses(
    (status = 200, description = "Its logical units; none for other devices", body = Vec<Unit>),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
))]
async fn unit_list(State(daemon): Shared, At(name): At<String>) -> Answer<Vec<Unit>> {
    ask(daemon, move |daemon| daemon.export(&name).map(|export| export.luns)).await.map(Json)
}

/// Add a disk to a SCSI device while it serves, and tell its guest.
#[utoipa::path(post, path = "/v1/exports/{name}/luns", tag = "exports", params(("name" = String, Path, description = "Name of the export")), request_body = NewUnit, responses(
    (status = 201, description = "The new logical unit", body = Unit),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "It is no SCSI device (`unsupported`)", body = ErrorBody),
    (status = 422, description = "The LUN is taken, or the disk cannot be had (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "A worker hangs (`failed`)", body = ErrorBody),
))]
async fn unit_add(
    State(daemon): Shared,
    At(name): At<String>,
    Body(new): Body<NewUnit>,
) -> Result<(StatusCode, Json<Unit>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let unit = ask(daemon, move |daemon| daemon.unit_add(&name, new)).await?;
    Ok((StatusCode::CREATED, Json(unit)))
}

/// Take a disk out of a SCSI device while it serves, and tell its guest. Requests that were taken are answered first; later ones meet
/// a unit that is not there. The disk stays open.
#[utoipa::path(delete, path = "/v1/exports/{name}/luns/{lun}", tag = "exports",
    params(("name" = String, Path, description = "Name of the export"), ("lun" = Lun, Path, description = "The LUN, as in `3` or `1:0`")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such export or LUN (`no-such-export`, `no-such-lun`)", body = ErrorBody),
    (status = 500, description = "A worker hangs, or its disk has not answered within a second: it is out of the device all the same, and nobody can use the disk until it has (`failed`)", body = ErrorBody),
))]
async fn unit_remove(State(daemon): Shared, At((name, lun)): At<(String, Lun)>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.unit_remove(&name, lun)).await?;
    Ok(StatusCode::NO_CONTENT)
}
