//! The routes of traces: slow requests, as they happen.

use super::answer::{At, Body, Refusal, ask};
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::trace::{NewTrace, Trace, TraceNews};
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
    OpenApiRouter::new().routes(routes!(trace_list, trace_begin)).routes(routes!(trace_end)).routes(routes!(trace_take))
}

/// The traces that somebody reads now, by identifier.
#[utoipa::path(get, path = "/v1/traces", tag = "traces", responses((status = 200, description = "The traces", body = Vec<Trace>)))]
async fn trace_list(State(daemon): Shared) -> Answer<Vec<Trace>> {
    ask(daemon, <dyn Daemon>::traces).await.map(Json)
}

/// Begin a trace: slow requests are kept for it from now on. It ends when its news are not taken for ten seconds.
#[utoipa::path(post, path = "/v1/traces", tag = "traces", request_body = NewTrace, responses(
    (status = 201, description = "The trace", body = Trace),
    (status = 404, description = "There is no such export (`no-such-export`)", body = ErrorBody),
    (status = 409, description = "There are too many traces (`too-many-traces`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn trace_begin(State(daemon): Shared, Body(new): Body<NewTrace>) -> Result<(StatusCode, Json<Trace>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let trace = ask(daemon, move |daemon| daemon.trace_begin(new)).await?;
    Ok((StatusCode::CREATED, Json(trace)))
}

/// Take what a trace has to tell since this was asked last. The trace goes on for another ten seconds.
#[utoipa::path(post, path = "/v1/traces/{id}/take", tag = "traces", params(("id" = u64, Path, description = "Identifier of the trace")), responses(
    (status = 200, description = "Its news", body = TraceNews),
    (status = 404, description = "It has ended, or the daemon was upgraded since (`no-such-trace`), or its export is gone (`no-such-export`)", body = ErrorBody),
))]
async fn trace_take(State(daemon): Shared, At(id): At<u64>) -> Answer<TraceNews> {
    ask(daemon, move |daemon| daemon.trace_take(id)).await.map(Json)
}

/// End a trace.
#[utoipa::path(delete, path = "/v1/traces/{id}", tag = "traces", params(("id" = u64, Path, description = "Identifier of the trace")), responses(
    (status = 204, description = "It has ended"),
    (status = 404, description = "There is no such trace (`no-such-trace`)", body = ErrorBody),
))]
async fn trace_end(State(daemon): Shared, At(id): At<u64>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.trace_end(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
