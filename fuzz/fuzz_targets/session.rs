//! A vhost-user session whose frontend says what the input says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    vhost_user::fuzzing::session(data);
});
