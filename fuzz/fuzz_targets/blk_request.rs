//! A virtio-blk request and a configuration access made of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    device::fuzzing::blk_request(data);
});
