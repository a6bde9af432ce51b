//! The program `vringd`.

use std::process::ExitCode;

/// However it was built: what is shipped does not kill itself.
const _: () = assert!(
    !vringd::CRASH_POINTS || matches!(env!("CARGO_BIN_NAME").as_bytes(), b"vringd-crashing"),
    "the feature `crash-points` is for the program `vringd-crashing` alone"
);

fn main() -> ExitCode {
    vringd::main()
}
