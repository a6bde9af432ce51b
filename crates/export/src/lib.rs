//! Exports: where a device meets its storage, its session and its workers.
