//! The routes of the policy: what the daemon chooses by itself.

use super::answer::{Body, Refusal, ask};
use crate::daemon::Daemon;
use crate::error::ErrorBody;
use crate::model::policy::{Policy, PolicyRecord, PolicySettings};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

type Shared = State<Arc<dyn Daemon>>;
type Answer<T> = Result<Json<T>, Refusal>;

/// The routes with their descriptions, not yet bound to a daemon.
pub(super) fn described() -> OpenApiRouter<Arc<dyn Daemon>> {
    OpenApiRouter::new().routes(routes!(policy_get, policy_change)).routes(routes!(policy_record))
}

/// What is chosen now for each worker, since when, and why.
#[utoipa::path(get, path = "/v1/policy", tag = "policy", responses((status = 200, description = "The choices", body = Policy)))]
async fn policy_get(State(daemon): Shared) -> Answer<Policy> {
    ask(daemon, <dyn Daemon>::policy).await.map(Json)
}

/// Change what is favoured. What was found by another measure is tried again.
#[utoipa::path(patch, path = "/v1/policy", tag = "policy", request_body = PolicySettings, responses(
    (status = 200, description = "The choices, as they were found", body = Policy),
    (status = 400, description = "There is no such thing to favour (`bad-request`)", body = ErrorBody),
))]
async fn policy_change(State(daemon): Shared, Body(settings): Body<PolicySettings>) -> Answer<Policy> {
    ask(daemon, move |daemon| daemon.policy_change(settings)).await.map(Json)
}

/// Samples and decisions of the last minutes, for `vringd policy replay`.
#[utoipa::path(get, path = "/v1/policy/record", tag = "policy", responses((status = 200, description = "The record", body = PolicyRecord)))]
async fn policy_record(State(daemon): Shared) -> Answer<PolicyRecord> {
    ask(daemon, <dyn Daemon>::policy_record).await.map(Json)
}
