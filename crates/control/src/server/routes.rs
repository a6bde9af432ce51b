//! The routes. Each handler carries its description for the OpenAPI document, so that neither exists without the other.

use super::answer::{Asked, At, BODY_BYTES_MAX, Body, Refusal, ask};
use super::listen::Peer;
use super::{metrics, openapi};
use crate::asker::Waiting;
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::{
    Attach, Attached, Export, Info, Listen, NewExport, NewUpgrade, NewWorker, Remove, Resize, RingInfo, Settings,
    Worker,
};
use crate::scope::Scope;
use axum::Json;
use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use values::FieldError;

use std::path::Path;
use std::sync::{Arc, LazyLock};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

type Shared = State<Arc<dyn Daemon>>;
type Answer<T> = Result<Json<T>, Refusal>;
type Created<T> = Result<(StatusCode, Json<T>), Refusal>;

/// The routes with their descriptions, not yet bound to a daemon.
pub(super) fn described() -> OpenApiRouter<Arc<dyn Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(info))
        .routes(routes!(shutdown))
        .routes(routes!(upgrade))
        .routes(routes!(export_list, export_add))
        .routes(routes!(export_get, export_change, export_remove))
        .routes(routes!(export_resize))
        .routes(routes!(export_sync))
        .routes(routes!(worker_list, worker_new))
        .routes(routes!(worker_get, worker_free))
        .routes(routes!(export_worker_list, export_worker_new))
        .routes(routes!(export_worker_get, export_worker_free))
        .routes(routes!(ring_list))
        .routes(routes!(ring_get))
        .routes(routes!(ring_worker, ring_attach))
        .merge(super::disks::described())
        .merge(super::units::described())
        .merge(super::jobs::described())
        .merge(super::groups::described())
        .merge(super::policy::described())
        .merge(super::traces::described())
        .routes(routes!(openapi_document))
        .routes(routes!(prometheus))
}

pub(super) fn router(daemon: Arc<dyn Daemon>) -> Router {
    unbound().with_state(daemon)
}

/// The routes without their descriptions, not yet bound to a daemon.
pub(super) fn unbound() -> Router<Arc<dyn Daemon>> {
    let (router, _) = described().split_for_parts();
    router
        .fallback(|| async { Refusal::no_such_route() })
        .method_not_allowed_fallback(|| async { Refusal::method_not_allowed() })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(only_the_entitled))
}

async fn only_the_entitled(ConnectInfo(peer): ConnectInfo<Peer>, request: Request, next: Next) -> Response {
    let own_uid = rustix::process::geteuid().as_raw();
    if peer.may_control(own_uid) {
        return next.run(request).await;
    }
    tracing::warn!(uid = peer.0, "refused a control connection");
    Refusal::forbidden().into_response()
}

/// The daemon: version, uptime, bounds.
#[utoipa::path(get, path = "/v1/info", tag = "daemon", responses((status = 200, description = "The daemon", body = Info)))]
async fn info(State(daemon): Shared) -> Answer<Info> {
    ask(daemon, <dyn Daemon>::info).await.map(Json)
}

/// Stop the daemon. The answer comes first; then exports are drained and closed.
#[utoipa::path(post, path = "/v1/shutdown", tag = "daemon", responses(
    (status = 202, description = "It begins to stop"),
    (status = 503, description = "It is stopping already (`stopping`)", body = ErrorBody),
))]
async fn shutdown(State(daemon): Shared) -> Result<StatusCode, Refusal> {
    ask(daemon, <dyn Daemon>::shutdown).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Replace the daemon's program while its exports serve. Where that succeeds there is no answer, because the program that
/// would give it is gone: the connection closes, and the new program answers the next one; `upgrades` and `takeover` of
/// `/v1/info` say how it went. Where it does not, everything is as it was. It is not begun behind a connection that has ended, nor 60 s
/// after it was asked for.
#[utoipa::path(post, path = "/v1/upgrade", tag = "daemon", request_body = NewUpgrade, responses(
    (status = 409, description = "An export cannot be handed over (`unsupported`)", body = ErrorBody),
    (status = 422, description = "The program cannot be started, or cannot read the state (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
    (status = 503, description = "The daemon is stopping (`stopping`)", body = ErrorBody),
))]
async fn upgrade(State(daemon): Shared, Body(new): Body<NewUpgrade>) -> Result<StatusCode, Refusal> {
    if new.binary.as_deref().is_some_and(Path::is_relative) {
        let message = "must be an absolute path: the daemon has its own working directory";
        return Err(ApiError::from(FieldError::new("binary", message)).into());
    }
    // Dropped with this future, and that with the connection.
    let waiting = Waiting::default();
    let asker = waiting.asker();
    ask(daemon, move |daemon| Err(daemon.upgrade(new, &asker))).await
}

/// All exports, by name.
#[utoipa::path(get, path = "/v1/exports", tag = "exports", responses((status = 200, description = "All exports", body = Vec<Export>)))]
async fn export_list(State(daemon): Shared) -> Answer<Vec<Export>> {
    ask(daemon, <dyn Daemon>::exports).await.map(Json)
}

/// Add an export: open what stands behind it, make its socket, listen. Paths must be absolute.
#[utoipa::path(post, path = "/v1/exports", tag = "exports", request_body = NewExport, responses(
    (status = 201, description = "The new export", body = Export),
    (status = 409, description = "The name is taken (`export-exists`), or there are too many workers (`too-many-workers`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn export_add(State(daemon): Shared, Body(new): Body<NewExport>) -> Created<Export> {
    check_for_api(&new).map_err(ApiError::from)?;
    let export = ask(daemon, |daemon| daemon.add_export(new)).await?;
    Ok((StatusCode::CREATED, Json(export)))
}

/// What holds for a request on top of what holds for a configuration file.
fn check_for_api(new: &NewExport) -> Result<(), FieldError> {
    if new.socket_fd.is_some() {
        // A client must not be able to name the daemon's own descriptors.
        let message = "only goes in the configuration file and on the command line: give `socket`";
        return Err(FieldError::new("socket_fd", message));
    }
    if matches!(new.listen, Some(Listen::Fd(_))) {
        let message = "a descriptor only goes in the configuration file and on the command line: give another address";
        return Err(FieldError::new("listen", message));
    }
    new.check()?;
    let socket = new.socket_path().map(|path| (new.socket_field(), path));
    let mut storage = new.storage.clone();
    let storage = storage.iter_mut().flat_map(|storage| storage.paths()).map(|(field, path)| (field, path.as_path()));
    let directory = new.directory.as_ref().map(|directory| ("directory.path", directory.path.as_path()));
    check_absolute(socket.into_iter().chain(storage).chain(directory))
}

/// Refuses relative paths, each with the name of its field.
pub(super) fn check_absolute<'a>(mut paths: impl Iterator<Item = (&'static str, &'a Path)>) -> Result<(), FieldError> {
    match paths.find(|(_, path)| path.is_relative()) {
        Some((field, _)) => {
            Err(FieldError::new(field, "must be an absolute path: the daemon has its own working directory"))
        }
        None => Ok(()),
    }
}

/// One export.
#[utoipa::path(get, path = "/v1/exports/{name}", tag = "exports", params(("name" = String, Path, description = "Name of the export")), responses(
    (status = 200, description = "The export", body = Export),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
))]
async fn export_get(State(daemon): Shared, At(name): At<String>) -> Answer<Export> {
    ask(daemon, move |daemon| daemon.export(&name)).await.map(Json)
}

/// Change an export while it serves: all of the changes apply, or none.
#[utoipa::path(patch, path = "/v1/exports/{name}", tag = "exports", params(("name" = String, Path, description = "Name of the export")), request_body = Settings, responses(
    (status = 200, description = "The changed export", body = Export),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "The export cannot do this (`unsupported`), or there are too many workers (`too-many-workers`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn export_change(State(daemon): Shared, At(name): At<String>, Body(settings): Body<Settings>) -> Answer<Export> {
    ask(daemon, move |daemon| daemon.change(&name, settings)).await.map(Json)
}

/// Remove an export: drain it, close its own disk, remove its socket. A disk that it uses by name stays open.
#[utoipa::path(delete, path = "/v1/exports/{name}", tag = "exports", params(("name" = String, Path, description = "Name of the export"), Remove), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "A frontend is connected (`connected`)", body = ErrorBody),
    (status = 500, description = "A worker hangs, or the storage has not answered within a second (`failed`)", body = ErrorBody),
))]
async fn export_remove(
    State(daemon): Shared,
    At(name): At<String>,
    Asked(Remove { force }): Asked<Remove>,
) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.remove_export(&name, force)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resize the disk behind an export and announce it to its guest, and to those of other exports that use it.
#[utoipa::path(put, path = "/v1/exports/{name}/capacity", tag = "exports", params(("name" = String, Path, description = "Name of the export")), request_body = Resize, responses(
    (status = 200, description = "The resized export", body = Export),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "Its storage cannot change its size (`unsupported`)", body = ErrorBody),
    (status = 422, description = "The capacity cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn export_resize(State(daemon): Shared, At(name): At<String>, Body(resize): Body<Resize>) -> Answer<Export> {
    ask(daemon, move |daemon| daemon.resize(&name, resize)).await.map(Json)
}

/// Commit what was written to a volume so far, write it back to the storage below its log, and answer when it is there.
#[utoipa::path(post, path = "/v1/exports/{name}/sync", tag = "exports", params(("name" = String, Path, description = "Name of the export")), responses(
    (status = 200, description = "The export, with nothing of what was written before in its log or in memory alone", body = Export),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "It has no intent log (`unsupported`)", body = ErrorBody),
    (status = 500, description = "The storage refuses it (`failed`)", body = ErrorBody),
))]
async fn export_sync(State(daemon): Shared, At(name): At<String>) -> Answer<Export> {
    ask(daemon, move |daemon| daemon.sync(&name)).await.map(Json)
}

/// All workers, shared and private, by identifier.
#[utoipa::path(get, path = "/v1/workers", tag = "workers", responses((status = 200, description = "All workers", body = Vec<Worker>)))]
async fn worker_list(State(daemon): Shared) -> Answer<Vec<Worker>> {
    ask(daemon, |daemon| daemon.workers(&Scope::Daemon)).await.map(Json)
}

/// Start a shared worker.
#[utoipa::path(post, path = "/v1/workers", tag = "workers", request_body = NewWorker, responses(
    (status = 201, description = "The new worker", body = Worker),
    (status = 409, description = "There are too many workers (`too-many-workers`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn worker_new(State(daemon): Shared, Body(new): Body<NewWorker>) -> Created<Worker> {
    let worker = ask(daemon, |daemon| daemon.worker_new(&Scope::Daemon, new)).await?;
    Ok((StatusCode::CREATED, Json(worker)))
}

/// One worker, shared or private.
#[utoipa::path(get, path = "/v1/workers/{id}", tag = "workers", params(("id" = u32, Path, description = "Identifier of the worker")), responses(
    (status = 200, description = "The worker", body = Worker),
    (status = 404, description = "There is no such worker (`no-such-worker`)", body = ErrorBody),
))]
async fn worker_get(State(daemon): Shared, At(id): At<u32>) -> Answer<Worker> {
    ask(daemon, move |daemon| daemon.worker(&Scope::Daemon, id)).await.map(Json)
}

/// End a worker that has no rings.
#[utoipa::path(delete, path = "/v1/workers/{id}", tag = "workers", params(("id" = u32, Path, description = "Identifier of the worker")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such worker (`no-such-worker`)", body = ErrorBody),
    (status = 409, description = "Rings are attached to it (`busy`)", body = ErrorBody),
))]
async fn worker_free(State(daemon): Shared, At(id): At<u32>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.worker_free(&Scope::Daemon, id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The private workers of an export, by identifier.
#[utoipa::path(get, path = "/v1/exports/{name}/workers", tag = "workers", params(("name" = String, Path, description = "Name of the export")), responses(
    (status = 200, description = "Its workers", body = Vec<Worker>),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
))]
async fn export_worker_list(State(daemon): Shared, At(name): At<String>) -> Answer<Vec<Worker>> {
    ask(daemon, move |daemon| daemon.workers(&Scope::Export(name))).await.map(Json)
}

/// Start a private worker for an export.
#[utoipa::path(post, path = "/v1/exports/{name}/workers", tag = "workers", params(("name" = String, Path, description = "Name of the export")), request_body = NewWorker, responses(
    (status = 201, description = "The new worker", body = Worker),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "There are too many workers (`too-many-workers`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
    (status = 500, description = "The system refused (`failed`)", body = ErrorBody),
))]
async fn export_worker_new(State(daemon): Shared, At(name): At<String>, Body(new): Body<NewWorker>) -> Created<Worker> {
    let worker = ask(daemon, |daemon| daemon.worker_new(&Scope::Export(name), new)).await?;
    Ok((StatusCode::CREATED, Json(worker)))
}

/// One private worker of an export.
#[utoipa::path(get, path = "/v1/exports/{name}/workers/{id}", tag = "workers",
    params(("name" = String, Path, description = "Name of the export"), ("id" = u32, Path, description = "Identifier of the worker")), responses(
    (status = 200, description = "The worker", body = Worker),
    (status = 404, description = "There is no such export or worker (`no-such-export`, `no-such-worker`)", body = ErrorBody),
))]
async fn export_worker_get(State(daemon): Shared, At((name, id)): At<(String, u32)>) -> Answer<Worker> {
    ask(daemon, move |daemon| daemon.worker(&Scope::Export(name), id)).await.map(Json)
}

/// End a private worker that has no rings.
#[utoipa::path(delete, path = "/v1/exports/{name}/workers/{id}", tag = "workers",
    params(("name" = String, Path, description = "Name of the export"), ("id" = u32, Path, description = "Identifier of the worker")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such export or worker (`no-such-export`, `no-such-worker`)", body = ErrorBody),
    (status = 409, description = "Rings are attached to it (`busy`)", body = ErrorBody),
))]
async fn export_worker_free(State(daemon): Shared, At((name, id)): At<(String, u32)>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.worker_free(&Scope::Export(name), id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The rings of an export, by index.
#[utoipa::path(get, path = "/v1/exports/{name}/rings", tag = "rings", params(("name" = String, Path, description = "Name of the export")), responses(
    (status = 200, description = "Its rings", body = Vec<RingInfo>),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
))]
async fn ring_list(State(daemon): Shared, At(name): At<String>) -> Answer<Vec<RingInfo>> {
    ask(daemon, move |daemon| daemon.export(&name).map(|export| export.rings)).await.map(Json)
}

/// One ring.
#[utoipa::path(get, path = "/v1/exports/{name}/rings/{index}", tag = "rings",
    params(("name" = String, Path, description = "Name of the export"), ("index" = u16, Path, description = "Index of the ring")), responses(
    (status = 200, description = "The ring", body = RingInfo),
    (status = 404, description = "There is no such export or ring (`no-such-export`, `no-such-ring`)", body = ErrorBody),
))]
async fn ring_get(State(daemon): Shared, At((name, index)): At<(String, u16)>) -> Answer<RingInfo> {
    ask(daemon, move |daemon| daemon.ring(&name, index)).await.map(Json)
}

/// The worker that a ring is attached to.
#[utoipa::path(get, path = "/v1/exports/{name}/rings/{index}/worker", tag = "rings",
    params(("name" = String, Path, description = "Name of the export"), ("index" = u16, Path, description = "Index of the ring")), responses(
    (status = 200, description = "Its worker", body = Attached),
    (status = 404, description = "There is no such export or ring (`no-such-export`, `no-such-ring`)", body = ErrorBody),
))]
async fn ring_worker(State(daemon): Shared, At((name, index)): At<(String, u16)>) -> Answer<Attached> {
    ask(daemon, move |daemon| daemon.ring(&name, index).map(|ring| Attached { worker: ring.worker })).await.map(Json)
}

/// Attach a ring to a worker, while it serves requests.
#[utoipa::path(put, path = "/v1/exports/{name}/rings/{index}/worker", tag = "rings",
    params(("name" = String, Path, description = "Name of the export"), ("index" = u16, Path, description = "Index of the ring")),
    request_body = Attach, responses(
    (status = 200, description = "The ring, with its new worker", body = RingInfo),
    (status = 404, description = "There is no such export, ring or worker (`no-such-export`, `no-such-ring`, `no-such-worker`)", body = ErrorBody),
    (status = 409, description = "The worker is dead (`worker-dead`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn ring_attach(
    State(daemon): Shared,
    At((name, index)): At<(String, u16)>,
    Body(attach): Body<Attach>,
) -> Answer<RingInfo> {
    ask(daemon, move |daemon| daemon.ring_attach(&name, index, attach)).await.map(Json)
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", responses((status = 200, description = "The OpenAPI document", content_type = "application/json")))]
async fn openapi_document() -> impl IntoResponse {
    static DOCUMENT: LazyLock<String> = LazyLock::new(openapi::openapi_json);
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// All figures in the OpenMetrics text format, as Prometheus reads it. Times are in seconds, sizes in bytes.
#[utoipa::path(get, path = "/metrics", tag = "daemon", responses((status = 200, description = "The figures", content_type = metrics::CONTENT_TYPE, body = String)))]
async fn prometheus(State(daemon): Shared) -> Result<impl IntoResponse, Refusal> {
    let text = ask(daemon, metrics::text).await?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}
