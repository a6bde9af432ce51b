//! Commands on SCSI reservations, and a file of them, made of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    device::fuzzing::scsi_reservations(data);
});
