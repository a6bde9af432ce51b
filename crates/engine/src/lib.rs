//! Who executes a request, and where.
//!
//! Workers (a thread, an io_uring, a mailbox), the map from rings to workers, the blocking pool and the placement policies.
//! This room knows no device and no protocol: it drives anything that implements [`Ring`], and moves it while it runs.
