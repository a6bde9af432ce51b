//! The routes of groups: exports that share limits.

use super::answer::{At, Body, Refusal, ask};
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody};
use crate::model::{Group, GroupSettings, NewGroup};
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
    OpenApiRouter::new().routes(routes!(group_list, group_add)).routes(routes!(group_get, group_change, group_remove))
}

/// All groups, by name.
#[utoipa::path(get, path = "/v1/groups", tag = "groups", responses((status = 200, description = "All groups", body = Vec<Group>)))]
async fn group_list(State(daemon): Shared) -> Answer<Vec<Group>> {
    ask(daemon, <dyn Daemon>::groups).await.map(Json)
}

/// Make a group. Exports enter it by their `limits.group`.
#[utoipa::path(post, path = "/v1/groups", tag = "groups", request_body = NewGroup, responses(
    (status = 201, description = "The new group", body = Group),
    (status = 409, description = "The name is taken (`group-exists`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn group_add(State(daemon): Shared, Body(new): Body<NewGroup>) -> Result<(StatusCode, Json<Group>), Refusal> {
    new.check().map_err(ApiError::from)?;
    let group = ask(daemon, |daemon| daemon.group_add(new)).await?;
    Ok((StatusCode::CREATED, Json(group)))
}

/// One group.
#[utoipa::path(get, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path, description = "Name of the group")), responses(
    (status = 200, description = "The group", body = Group),
    (status = 404, description = "There is no such group (`no-such-group`)", body = ErrorBody),
))]
async fn group_get(State(daemon): Shared, At(name): At<String>) -> Answer<Group> {
    ask(daemon, move |daemon| daemon.group(&name)).await.map(Json)
}

/// Change the limits that the exports of a group share.
#[utoipa::path(patch, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path, description = "Name of the group")), request_body = GroupSettings, responses(
    (status = 200, description = "The changed group", body = Group),
    (status = 404, description = "There is no such group (`no-such-group`)", body = ErrorBody),
    (status = 422, description = "A field cannot be used (`invalid-field`)", body = ErrorBody),
))]
async fn group_change(
    State(daemon): Shared,
    At(name): At<String>,
    Body(settings): Body<GroupSettings>,
) -> Answer<Group> {
    ask(daemon, move |daemon| daemon.group_change(&name, settings)).await.map(Json)
}

/// Remove a group that has no exports.
#[utoipa::path(delete, path = "/v1/groups/{name}", tag = "groups", params(("name" = String, Path, description = "Name of the group")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such group (`no-such-group`)", body = ErrorBody),
    (status = 409, description = "Exports are in it (`group-in-use`)", body = ErrorBody),
))]
async fn group_remove(State(daemon): Shared, At(name): At<String>) -> Result<StatusCode, Refusal> {
    ask(daemon, move |daemon| daemon.group_remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}
