//! The headers of LUKS containers, of both versions.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    luks::fuzzing::header(data);
});
