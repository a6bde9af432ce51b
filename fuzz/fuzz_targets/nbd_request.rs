//! What an NBD client sends, made of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    device::fuzzing::nbd_request(data);
});
