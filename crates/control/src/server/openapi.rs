//! The OpenAPI document, generated from the routes and the model.

use super::routes;
use utoipa::openapi::{InfoBuilder, OpenApi, RefOr, Schema, Server};

/// The OpenAPI document of the control API, as pretty-printed JSON that ends with a newline.
pub fn openapi_json() -> String {
    let (_, mut document) = routes::described().split_for_parts();
    document.info = InfoBuilder::new()
        .title("vringd control API")
        .version("1")
        .description(Some(
            "Control of a vringd daemon over its unix socket: exports, disks, workers, the map from rings to workers, \
             and jobs that copy disks, changed while I/O runs. Every answer that is not a success has an `ErrorBody`. Any call may also be \
             answered 400 `bad-request` (malformed JSON or parameters), 403 `forbidden` (the caller is neither root \
             nor the daemon's user), 413 `too-large` (a body beyond 64 KiB), 500 `failed` or 503 `stopping`. Unknown \
             fields are refused.",
        ))
        .build();
    admit_kind(&mut document);
    document.servers = Some(vec![Server::new("http://localhost/")]);
    // Objects and strings alone: this serialises, or the tests say otherwise.
    document.to_pretty_json().map(|text| text + "\n").unwrap_or_default()
}

/// A storage or a new job is described as `kind` and the fields of that kind, side by side (`allOf`). Each side would refuse the
/// other's fields if the fields' side said, as it does for itself alone, that it admits no others.
fn admit_kind(document: &mut OpenApi) {
    let Some(components) = &mut document.components else { return };
    for (name, schema) in &mut components.schemas {
        if let RefOr::T(Schema::Object(object)) = schema
            && (name.ends_with("Storage")
                || ["NewBackup", "NewMirror", "NewStream", "NewCommit", "NewPull"].contains(&name.as_str()))
        {
            object.additional_properties = None;
        }
    }
}
