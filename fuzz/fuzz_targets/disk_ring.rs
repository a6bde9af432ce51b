//! A disk's whole ring in memory that the input owns.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    export::fuzzing::disk(data);
});
