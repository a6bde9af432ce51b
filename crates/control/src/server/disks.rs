//! The routes of disks: storages that are open and have names.

use super::answer::{At, Body, Refusal, ask};
use super::routes::check_absolute;
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::{Bitmap, Disk, NewBitmap, NewDisk, Resize};
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
        .routes(routes!(disk_list, disk_add))
        .routes(routes!(disk_get, disk_remove))
        .routes(routes!(disk_resize))
        .routes(routes!(disk_break_reservations))
        .routes(routes!(disk_reopen))
        .routes(routes!(disk_bitmap_list, disk_bitmap_add))
        .routes(routes!(disk_bitmap_remove))
}

/// All disks, by name: also those that belong to the exports that were described with their storage.
#[utoipa::path(get, path = "/v1/disks", tag = "disks", responses((status = 200, description = "All disks", body = Vec<Disk>)))]
async fn disk_list(State(daemon): Shared) -> Answer<Vec<Disk>> {
    ask(daemon, <dyn Daemon>::disks).await.map(Json)
}

/// Open a disk, apart from any export. Exports use it by its name, as their `disk`. Paths must be absolute.
#[utoipa::path(post, path = "/v1/disks", tag = "disks", request_body = NewDisk, responses(
    (status = 201, description = "The new disk", body = Disk),
    (status = 409, description = "The name is taken (`disk-exists`), or the daemon is isolated for its one export (`unsupported`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn disk_add(State(daemon): Shared, Body(mut new): Body<NewDisk>) -> Result<(StatusCode, Json<Disk>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let kept = new.reservations.as_deref().map(|path| (NewDisk::RESERVATIONS, path));
    let paths = new.storage.paths().into_iter().map(|(field, path)| (field, path.as_path()));
    check_absolute(paths.chain(kept)).map_err(ApiError::from)?;
    let disk = ask(daemon, |daemon| daemon.disk_add(new)).await?;
    Ok((StatusCode::CREATED, Json(disk)))
}

/// One disk.
#[utoipa::path(get, path = "/v1/disks/{name}", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), responses(
    (status = 200, description = "The disk", body = Disk),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
))]
async fn disk_get(State(daemon): Shared, At(name): At<String>) -> Answer<Disk> {
    ask(daemon, move |daemon| daemon.disk(&name)).await.map(Json)
}

/// Close a disk that nothing uses.
#[utoipa::path(delete, path = "/v1/disks/{name}", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "It is in use (`disk-in-use`)", body = ErrorBody),
))]
async fn disk_remove(State(daemon): Shared, At(name): At<String>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.disk_remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// End what guests have reserved of a disk by SCSI commands, also what is kept over a loss of power: whoever was kept out can use it again.
#[utoipa::path(delete, path = "/v1/disks/{name}/reservations", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), responses(
    (status = 204, description = "Nobody has reserved it any more"),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 500, description = "That cannot be stored (`failed`)", body = ErrorBody),
))]
async fn disk_break_reservations(State(daemon): Shared, At(name): At<String>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.disk_break_reservations(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Open a disk again that is lost (`link` of its storage), as it is now. Guests go on with what they know of it, so that nobody else may have
/// written it meanwhile. Answers when that has begun; `link` says what comes of it.
#[utoipa::path(post, path = "/v1/disks/{name}/reopen", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), responses(
    (status = 200, description = "The disk, which is being opened", body = Disk),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "It is open, or not on other machines (`unsupported`)", body = ErrorBody),
))]
async fn disk_reopen(State(daemon): Shared, At(name): At<String>) -> Answer<Disk> {
    ask(daemon, move |daemon| daemon.disk_reopen(&name)).await.map(Json)
}

/// Resize a disk and announce it to the guests of all exports that use it.
#[utoipa::path(put, path = "/v1/disks/{name}/capacity", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), request_body = Resize, responses(
    (status = 200, description = "The resized disk", body = Disk),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "Its storage cannot have this size (`unsupported`)", body = ErrorBody),
    (status = 422, description = "The capacity cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "A worker hangs (`failed`)", body = ErrorBody),
))]
async fn disk_resize(State(daemon): Shared, At(name): At<String>, Body(resize): Body<Resize>) -> Answer<Disk> {
    ask(daemon, move |daemon| daemon.disk_resize(&name, resize)).await.map(Json)
}

/// The dirty bitmaps of a disk: what was written since the backups that used them.
#[utoipa::path(get, path = "/v1/disks/{name}/bitmaps", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), responses(
    (status = 200, description = "Its bitmaps, also those that are not consistent", body = Vec<Bitmap>),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "The disk is read-only, or a job copies it (`unsupported`)", body = ErrorBody),
))]
async fn disk_bitmap_list(State(daemon): Shared, At(name): At<String>) -> Answer<Vec<Bitmap>> {
    ask(daemon, move |daemon| daemon.disk_bitmaps(&name)).await.map(Json)
}

/// Begin a dirty bitmap, which records what is written from now on. A backup that names one begins it by itself, at the moment
/// of which it is; one that is begun here knows nothing of what was written before.
#[utoipa::path(post, path = "/v1/disks/{name}/bitmaps", tag = "disks", params(("name" = String, Path, description = "Name of the disk")), request_body = NewBitmap, responses(
    (status = 201, description = "The new bitmap", body = Bitmap),
    (status = 404, description = "There is no such disk (`no-such-disk`)", body = ErrorBody),
    (status = 409, description = "The disk is no qcow2 image, is read-only, or has a bitmap of this name (`unsupported`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn disk_bitmap_add(
    State(daemon): Shared,
    At(name): At<String>,
    Body(new): Body<NewBitmap>,
) -> Result<(StatusCode, Json<Bitmap>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let bitmap = ask(daemon, move |daemon| daemon.disk_bitmap_add(&name, new)).await?;
    Ok((StatusCode::CREATED, Json(bitmap)))
}

/// Remove a dirty bitmap: the next backup that names it is a full one.
#[utoipa::path(delete, path = "/v1/disks/{name}/bitmaps/{bitmap}", tag = "disks",
    params(("name" = String, Path, description = "Name of the disk"), ("bitmap" = String, Path, description = "Name of the bitmap")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such disk (`no-such-disk`) or bitmap (`no-such-bitmap`)", body = ErrorBody),
    (status = 409, description = "A job uses it, or the disk is read-only (`unsupported`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn disk_bitmap_remove(
    State(daemon): Shared,
    At((name, bitmap)): At<(String, String)>,
) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.disk_bitmap_remove(&name, &bitmap)).await?;
    Ok(StatusCode::NO_CONTENT)
}
