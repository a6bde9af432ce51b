//! Requests to the control API made of any bytes, to a daemon that only keeps books.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports, reason = "the tests use more of it")]
#[path = "../../crates/control/tests/all/common/mod.rs"]
mod common;

fuzz_target!(|data: &[u8]| {
    // The daemon behind it panics when it is asked for a model: that stands for a bug in a daemon.
    if !data.windows(3).any(|bytes| bytes == b"sim") {
        control::fuzzing::api(common::Fake::with_content(), data);
    }
});
