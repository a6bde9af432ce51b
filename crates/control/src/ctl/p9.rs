//! 9P in tables: what `vringd ctl export show` and `vringd ctl top` say of it.

use super::cells::{self, NOTHING, table};
use crate::model::{Export, P9Info};
use serde::Serialize;

/// What `vringd ctl export show` says of a directory over 9p.
pub(super) fn facts(p9: &P9Info) -> Vec<(&'static str, String)> {
    let msize = p9.msize.map_or_else(|| NOTHING.to_owned(), |bytes| cells::size(bytes.into()));
    vec![
        ("msize", format!("{msize} of at most {}", cells::size(p9.msize_max.into()))),
        ("clients", format!("{} connected, {} fids", p9.connections, p9.fids)),
        ("multidevs", p9.multidevs.to_string()),
    ]
}

/// A directory over 9p at the end of an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct P9Sample {
    pub(super) export: String,
    /// Version that the last client speaks.
    pub(super) dialect: Option<String>,
    /// Longest message, in bytes.
    pub(super) msize: Option<u32>,
    pub(super) connections: u64,
    pub(super) fids: u64,
    pub(super) open_files: u64,
    pub(super) locks_waiting: u64,
}

/// The directories over 9p among these exports.
pub(super) fn look(exports: &[Export]) -> Vec<P9Sample> {
    let sample = |export: &Export| {
        let directory = export.directory.as_ref()?;
        let p9 = directory.p9.as_ref()?;
        Some(P9Sample {
            export: export.name.clone(),
            dialect: directory.protocol.clone(),
            msize: p9.msize,
            connections: p9.connections,
            fids: p9.fids,
            open_files: directory.open_files,
            locks_waiting: directory.locks_waiting,
        })
    };
    exports.iter().filter_map(sample).collect()
}

/// The directories over 9p of `vringd ctl top`; nothing when there is none.
pub(super) fn samples(samples: &[P9Sample]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let headers = ["9P", "DIALECT", ">MSIZE", ">CLIENTS", ">FIDS", ">OPEN FILES", ">LOCKS WAITING"];
    let row = |sample: &P9Sample| {
        vec![
            sample.export.clone(),
            sample.dialect.clone().unwrap_or_else(|| NOTHING.to_owned()),
            sample.msize.map_or_else(|| NOTHING.to_owned(), |bytes| cells::size(bytes.into())),
            sample.connections.to_string(),
            sample.fids.to_string(),
            sample.open_files.to_string(),
            sample.locks_waiting.to_string(),
        ]
    };
    table(&headers, samples.iter().map(row))
}
