//! The metadata of a qcow2 image: header, extensions, entries and compressed data.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    image::fuzzing::metadata(data);
});
