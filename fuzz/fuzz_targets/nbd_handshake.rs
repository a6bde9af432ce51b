//! What an NBD client and a server agree on, with TLS and without.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    export::fuzzing::nbd_handshake(data);
});
