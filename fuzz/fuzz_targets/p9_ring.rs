//! A 9P directory's whole ring in memory that the input owns.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    export::fuzzing::p9(data);
});
