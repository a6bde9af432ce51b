//! The document checked in at `docs/openapi.json` is the one the code generates.

use std::path::Path;

const REGENERATE: &str = "OPENAPI_WRITE=1 cargo test -p control --test all openapi";

#[test]
fn the_checked_in_document_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = control::openapi_json();
    if std::env::var_os("OPENAPI_WRITE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == generated, "docs/openapi.json is stale: run `{REGENERATE}` and commit it");
}

#[test]
fn every_operation_and_field_is_described() {
    let document: serde_json::Value = serde_json::from_str(&control::openapi_json()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let operations = || paths.values().flat_map(|path| path.as_object().unwrap().iter());
    assert_eq!(operations().count(), 56);
    for (method, operation) in operations() {
        assert!(operation["summary"].is_string() || operation["description"].is_string(), "{method} {operation}");
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(
        schemas["NewExport"]["additionalProperties"] == false,
        "unknown fields are refused, and the document says so"
    );
    for tagged in ["FileStorage", "VolumeStorage", "NewBackup", "NewMirror", "NewPull"] {
        assert!(schemas[tagged]["additionalProperties"].is_null(), "`kind` stands beside the fields of {tagged}");
    }
    for name in [
        "Export",
        "Disk",
        "Bitmap",
        "NewBitmap",
        "NewDisk",
        "LogicalUnit",
        "NewLogicalUnit",
        "RingInfo",
        "RingFigures",
        "LatencySummary",
        "Worker",
        "NewExport",
        "VolumeStorage",
        "IntentLog",
        "VolumeInfo",
        "Directory",
        "DirectoryInfo",
        "P9Info",
        "NewWorker",
        "Limits",
        "NewGroup",
        "Group",
        "GroupSettings",
        "NewTrace",
        "Trace",
        "TraceNews",
        "SlowRequest",
        "StageTimes",
        "Job",
        "JobDisk",
        "NewBackup",
        "NewMirror",
        "NewPull",
        "PullDisk",
        "CopyDisk",
        "JobSettings",
        "NewSnapshot",
        "SnapshotDisk",
        "ErrorBody",
    ] {
        let properties = schemas[name]["properties"].as_object().unwrap_or_else(|| panic!("{name} has no properties"));
        for (field, schema) in properties {
            let described =
                [&schema["description"], &schema["oneOf"][0]["description"]].iter().any(|text| text.is_string());
            assert!(described, "{name}.{field}: {schema}");
        }
    }
}
