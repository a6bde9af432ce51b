//! What a ring finds in an inflight region that the input owns.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    vring::fuzzing::inflight(data);
});
