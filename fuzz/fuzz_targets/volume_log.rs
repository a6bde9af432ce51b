//! A volume whose log and superblocks the input has written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    volume::fuzzing::volume_log(data);
});
