//! One message of each type, as a client puts it together. A field's value is its own, so that two fields cannot be taken for
//! each other.

use crate::p9::message::Message;
use device::p9::Dialect::{self, L, U};

/// The tag of every example.
pub(crate) const TAG: u16 = 0xa1a2;

/// A message by the name of its type and, where there are several, what is special about it.
pub(crate) struct Example {
    pub(crate) name: &'static str,
    pub(crate) dialect: Dialect,
    pub(crate) bytes: Vec<u8>,
}

/// The attributes of the `Twstat`, with their own size.
pub(crate) fn stat() -> Vec<u8> {
    let fields = Message::body()
        .w(0xb1b2)
        .d(0xb3b4_b5b6)
        .qid(0xb7, 0xb8b9_babb, 0xc1c2_c3c4_c5c6_c7c8)
        .d(0xd1d2_d3d4)
        .d(0xd5d6_d7d8)
        .d(0xd9da_dbdc)
        .q(0xe1e2_e3e4_e5e6_e7e8)
        .s("name")
        .s("owner")
        .s("group")
        .s("writer")
        .s("extension")
        .d(0xf1f2_f3f4)
        .d(0xf5f6_f7f8)
        .d(0xf9fa_fbfc)
        .bytes();
    Message::body().w(u16::try_from(fields.len()).unwrap()).raw(&fields).bytes()
}

/// All of them, in the order of their types' numbers.
pub(crate) fn all() -> Vec<Example> {
    let mut examples = Vec::new();
    let mut add = |name: &'static str, dialect: Dialect, kind: u8, fields: fn(Message) -> Message| {
        examples.push(Example { name, dialect, bytes: fields(Message::new(kind, TAG)).finish() });
    };
    add("Tstatfs", L, 8, |m| m.d(1));
    add("Tlopen", L, 12, |m| m.d(1).d(0o2002));
    add("Tlcreate", L, 14, |m| m.d(1).s("file").d(0o101).d(0o100_644).d(1000));
    add("Tsymlink", L, 16, |m| m.d(1).s("link").s("../target").d(1000));
    add("Tmknod", L, 18, |m| m.d(1).s("node").d(0o60_660).d(8).d(17).d(1000));
    add("Trename", L, 20, |m| m.d(1).d(2).s("new"));
    add("Treadlink", L, 22, |m| m.d(1));
    add("Tgetattr", L, 24, |m| m.d(1).q(0x3fff));
    add("Tsetattr", L, 26, |m| m.d(1).d(0x1ff).d(0o640).d(1001).d(1002).q(4097).q(11).q(12).q(u64::MAX).q(999_999_999));
    add("Tsetattr_now", L, 26, |m| m.d(1).d(0x30).d(0o640).d(1001).d(1002).q(4097).q(11).q(12).q(13).q(1_000_000_000));
    add("Txattrwalk", L, 30, |m| m.d(1).d(2).s("user.name"));
    add("Txattrwalk_list", L, 30, |m| m.d(1).d(2).s(""));
    add("Txattrcreate", L, 32, |m| m.d(1).s("user.name").q(65536).d(2));
    add("Treaddir", L, 40, |m| m.d(1).q(u64::MAX).d(8168));
    add("Tfsync", L, 50, |m| m.d(1).d(1));
    add("Tfsync_short", L, 50, |m| m.d(1));
    add("Tlock", L, 52, |m| m.d(1).b(1).d(1).q(100).q(50).d(4321).s("client"));
    add("Tgetlock", L, 54, |m| m.d(1).b(0).q(100).q(0).d(4321).s("client"));
    add("Tlink", L, 70, |m| m.d(1).d(2).s("name"));
    add("Tmkdir", L, 72, |m| m.d(1).s("directory").d(0o755).d(1000));
    add("Trenameat", L, 74, |m| m.d(1).s("old").d(2).s("new"));
    add("Tunlinkat", L, 76, |m| m.d(1).s("name").d(0x200));
    add("Tversion", Dialect::Unknown, 100, |m| m.d(8192).s("9P2000.L"));
    add("Tauth", L, 102, |m| m.d(1).s("user").s("/tree").d(1000));
    add("Tattach", L, 104, |m| m.d(1).d(u32::MAX).s("user").s("/tree").d(1000));
    add("Tattach_short", U, 104, |m| m.d(1).d(2).s("user").s("/tree"));
    add("Tflush", L, 108, |m| m.w(0xb1b2));
    add("Twalk", L, 110, |m| m.d(1).d(2).w(3).s("a").s("..").s("long name"));
    add("Twalk_clone", U, 110, |m| m.d(1).d(2).w(0));
    add("Topen", U, 112, |m| m.d(1).b(0x12));
    add("Tcreate", U, 114, |m| m.d(1).s("device").d(0x0080_01b0).b(2).s("b 8 17"));
    add("Tread", L, 116, |m| m.d(1).q(0x7fff_ffff_ffff_ffff).d(65536));
    add("Twrite", L, 118, |m| m.d(1).q(0x0102_0304_0506_0708).d(5).raw(b"bytes"));
    add("Tclunk", L, 120, |m| m.d(1));
    add("Tremove", U, 122, |m| m.d(1));
    add("Tstat", U, 124, |m| m.d(1));
    add("Twstat", U, 126, |m| {
        let stat = stat();
        m.d(1).w(u16::try_from(stat.len()).unwrap()).raw(&stat)
    });
    examples
}

/// The example of this name.
pub(crate) fn named(name: &str) -> Example {
    all().into_iter().find(|example| example.name == name).unwrap_or_else(|| panic!("no example is named {name}"))
}
