//! A FUSE request of virtio-fs made of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    device::fuzzing::fs_request(data);
});
