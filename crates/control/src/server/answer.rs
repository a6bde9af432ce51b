//! From HTTP to typed values and back: bodies, path and query parameters, and refusals as JSON.

use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorBody, ErrorDetail};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The largest body that is read, in bytes. A description of an export is below 1 KiB.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// An answer that is not a success.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    body: ErrorBody,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let error = ErrorDetail { code: code.to_owned(), message: message.into(), field: None };
        Self { status, body: ErrorBody { error } }
    }

    pub(super) fn no_such_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-such-route", "there is nothing at this path: see /openapi.json")
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "this path does not know this method: see /openapi.json";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", message)
    }

    pub(super) fn forbidden() -> Self {
        let message = "only root and the user that runs the daemon may use its control socket";
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", message)
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, body: ErrorBody::from(&error) }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.body)).into_response()
    }
}

/// Calls the daemon on a thread that may block.
pub(super) async fn ask<T, F>(daemon: Arc<dyn Daemon>, call: F) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnOnce(&dyn Daemon) -> Result<T, ApiError> + Send + 'static,
{
    match tokio::task::spawn_blocking(move || call(&*daemon)).await {
        Ok(result) => result.map_err(Refusal::from),
        Err(error) => {
            tracing::error!(%error, "a call of the control API panicked");
            let message = "the daemon failed inside this call: its log says where".to_owned();
            Err(ApiError::Failed { message }.into())
        }
    }
}

/// A JSON body. Any content type will do, so that `curl --json` and `curl -d` both work.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
            }
            _ => Refusal::bad_request(rejection.body_text()),
        })?;
        parse(&bytes).map(Self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if !inner.is_data() {
            return Refusal::bad_request(format!("the body is not JSON: {inner}"));
        }
        let message = without_position(&inner.to_string());
        let field = field_at_fault(&path, &message);
        // Said by the field's path already.
        let said = message.strip_prefix("invalid field `").and_then(|rest| rest.split_once("`: "));
        let message = said.map_or(message.as_str(), |(_, message)| message).to_owned();
        Refusal::from(ApiError::InvalidField { field, message })
    })?;
    json.end().map_err(|error| Refusal::bad_request(format!("the body is not JSON: {error}")))?;
    Ok(value)
}

/// serde_json ends its messages with ` at line 1 column 12`; the field says more about a one-line body.
fn without_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(text, _)| text).to_owned()
}

/// The path that serde tracked may end at the object around a field at fault: then the message names the rest.
fn field_at_fault(path: &str, message: &str) -> String {
    let named = ["unknown field `", "missing field `", "invalid field `"]
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix));
    let leaf = named.and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
    match (path, leaf) {
        (".", None) => "body".to_owned(),
        (path, None) => path.to_owned(),
        (".", Some(leaf)) => leaf.to_owned(),
        (path, Some(leaf)) if path == leaf || path.ends_with(&format!(".{leaf}")) => path.to_owned(),
        (path, Some(leaf)) => format!("{path}.{leaf}"),
    }
}

/// Parameters in the path.
#[derive(Debug)]
pub(super) struct At<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for At<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|rejection| Refusal::bad_request(rejection.body_text()))
    }
}

/// Parameters after the question mark.
#[derive(Debug)]
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|rejection| Refusal::bad_request(rejection.body_text()))
    }
}
