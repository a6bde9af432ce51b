//! A 9P session on a directory that it may change.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    export::fuzzing::p9_session(data);
});
