//! A directory's state as it comes from another host.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    export::fuzzing::device_state(data);
});
