//! Protocol decode and encode: bytes to typed requests and back.
//!
//! No system call, no thread, no ring: a device takes the bytes of one chain and says what is asked, and takes a result and says
//! which bytes answer it.
