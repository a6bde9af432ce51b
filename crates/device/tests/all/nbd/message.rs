//! A client's side: messages put together field by field.

/// Bytes that grow, each number with its highest byte first.
#[derive(Clone, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new() -> Message {
        Message::default()
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Message {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn w(self, value: u16) -> Message {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn d(self, value: u32) -> Message {
        self.raw(&value.to_be_bytes())
    }

    pub(crate) fn q(self, value: u64) -> Message {
        self.raw(&value.to_be_bytes())
    }

    /// A string behind the 32 bits of its length.
    pub(crate) fn s(self, string: impl AsRef<[u8]>) -> Message {
        let string = string.as_ref();
        self.d(u32::try_from(string.len()).unwrap()).raw(string)
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A whole option with this data.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    Message::new().raw(b"IHAVEOPT").d(number).s(data).bytes()
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub(crate) fn go(name: impl AsRef<[u8]>, requests: &[u16]) -> Vec<u8> {
    let message = Message::new().s(name).w(u16::try_from(requests.len()).unwrap());
    requests.iter().fold(message, |message, request| message.w(*request)).bytes()
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub(crate) fn contexts<Q: AsRef<[u8]>>(name: impl AsRef<[u8]>, queries: &[Q]) -> Vec<u8> {
    let message = Message::new().s(name).d(u32::try_from(queries.len()).unwrap());
    queries.iter().fold(message, Message::s).bytes()
}

/// A request without its data.
pub(crate) fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let message = Message::new().d(0x2560_9513).w(flags).w(command).q(cookie).q(offset).d(len);
    message.bytes().try_into().unwrap()
}
