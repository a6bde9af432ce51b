//! A split ring whose memory, layout and indices the input owns.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    vring::fuzzing::ring(data);
});
