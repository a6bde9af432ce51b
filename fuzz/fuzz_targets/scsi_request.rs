//! What a SCSI driver sends, made of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    device::fuzzing::scsi_request(data);
});
