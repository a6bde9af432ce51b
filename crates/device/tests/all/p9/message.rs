//! A client's side: messages put together field by field.

/// A message that grows; the letters are those of Linux' `net/9p/protocol.c`.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A message of this type. The size is set when it is finished.
    pub(crate) fn new(kind: u8, tag: u16) -> Message {
        let mut bytes = vec![0, 0, 0, 0, kind];
        bytes.extend_from_slice(&tag.to_le_bytes());
        Message(bytes)
    }

    /// Fields alone, without a header.
    pub(crate) fn body() -> Message {
        Message(Vec::new())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn b(self, value: u8) -> Message {
        self.raw(&[value])
    }

    pub(crate) fn w(self, value: u16) -> Message {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn d(self, value: u32) -> Message {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn q(self, value: u64) -> Message {
        self.raw(&value.to_le_bytes())
    }

    /// A string.
    pub(crate) fn s(self, string: impl AsRef<[u8]>) -> Message {
        let string = string.as_ref();
        self.w(u16::try_from(string.len()).unwrap()).raw(string)
    }

    /// A qid.
    pub(crate) fn qid(self, kind: u8, version: u32, path: u64) -> Message {
        self.b(kind).d(version).q(path)
    }

    /// The message with its size, as long as it is.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let size = u32::try_from(self.0.len()).unwrap();
        self.0[..4].copy_from_slice(&size.to_le_bytes());
        self.0
    }

    /// What was put together, without a size.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The message, cut off or made longer, whose header says so.
pub(crate) fn resized(message: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes.resize(len, 0);
    with(&bytes, 0, &u32::try_from(len).unwrap().to_le_bytes())
}

/// The message with these bytes at `at`.
pub(crate) fn with(message: &[u8], at: usize, field: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes[at..at + field.len()].copy_from_slice(field);
    bytes
}
