//! Bytes that end a connection.

/// What cannot be answered: after it, nobody knows where the next message begins, or the protocol asks to hang up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, displaydoc::Display, thiserror::Error)]
pub enum Malformed {
    /// the client has flags that the server does not know
    UnknownClientFlags,
    /// an option does not begin with its magic number
    BadOptionMagic,
    /// an option has more data than this server looks at
    OptionTooLong,
    /// a request does not begin with its magic number
    BadRequestMagic,
    /// a write has more data than this server takes at once
    PayloadTooLong,
}

impl Malformed {
    /// Every kind, for counters: `ALL[malformed as usize] == malformed`.
    pub const ALL: [Malformed; 5] = [
        Malformed::UnknownClientFlags,
        Malformed::BadOptionMagic,
        Malformed::OptionTooLong,
        Malformed::BadRequestMagic,
        Malformed::PayloadTooLong,
    ];
}
