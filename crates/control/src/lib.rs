//! The control API: HTTP and JSON over a unix socket, its OpenAPI document, and metrics.
