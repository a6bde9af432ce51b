//! Words that scripts of guests share.

/// `wait_for CONDITION`: until it holds, or the script has failed after half a minute.
pub const WAIT_FOR: &str = "wait_for() { n=0; until eval \"$1\"; do n=$((n + 1)); [ $n -lt 600 ] || { echo \"never: $1\"; exit 9; }; sleep 0.05; done; }";
