//! What a mapped model records of an inode, the text in which metadata files keep it, and how it covers what the host says.

use crate::attributes::Attributes;
use crate::options::Options;
use rustix::fs::{major, minor};

/// Set-id bits, of which the second counts only for who may execute as the group (`setattr_should_drop_suidgid` of Linux's
/// `fs/attr.c`).
const SET_USER: u32 = libc::S_ISUID;
const SET_GROUP: u32 = libc::S_ISGID | libc::S_IXGRP;

/// What is recorded. Where there is nothing, the host's word counts. Ids are those of the host's side of the id maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Type and permissions.
    pub(crate) mode: Option<u32>,
    /// Device as `makedev(3)` encodes it.
    pub(crate) rdev: Option<u64>,
}

impl Record {
    /// This, and what `older` says where this says nothing.
    pub(crate) fn or(self, older: Record) -> Record {
        Record {
            uid: self.uid.or(older.uid),
            gid: self.gid.or(older.gid),
            mode: self.mode.or(older.mode),
            rdev: self.rdev.or(older.rdev),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Record::default()
    }

    /// Reads lines `virtfs.uid=NUMBER`, and so on. What is no such line says nothing, and neither does -1.
    pub(crate) fn parse(text: &[u8]) -> Record {
        let mut record = Record::default();
        for line in text.split(|&byte| byte == b'\n') {
            let Some(rest) = line.strip_prefix(b"virtfs.") else { continue };
            let Some(equals) = rest.iter().position(|&byte| byte == b'=') else { continue };
            let (name, value) = rest.split_at(equals);
            let Some(number) = value.get(1..).and_then(number) else { continue };
            match name {
                b"uid" => record.uid = Some(number),
                b"gid" => record.gid = Some(number),
                b"mode" => record.mode = Some(number),
                b"rdev" => record.rdev = Some(number.into()),
                _ => {}
            }
        }
        record
    }

    /// The lines that [`Record::parse`] reads. Numbers are an `int`'s, as C prints them.
    pub(crate) fn to_text(self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let rdev = self.rdev.map(|rdev| rdev as u32);
        let fields = [("uid", self.uid), ("gid", self.gid), ("mode", self.mode), ("rdev", rdev)];
        for (name, value) in fields {
            if let Some(value) = value.filter(|&value| value != u32::MAX) {
                // Nothing can stand against writing to a string.
                let _ = writeln!(text, "virtfs.{name}={}", value.cast_signed());
            }
        }
        text
    }

    /// Type and permissions as the client sees them, of an inode whose mode on the host is `host`.
    pub(crate) fn mode_of(&self, host: u32) -> u32 {
        self.mode.map_or(host, |mode| kind_of(host, mode) | mode & 0o7777)
    }

    /// Covers what the host says about an inode.
    pub(crate) fn cover(&self, options: &Options, attributes: &mut Attributes) {
        let host = attributes.mode;
        attributes.mode = self.mode_of(host);
        if let Some(uid) = self.uid {
            attributes.uid = options.uid_map.to_guest(uid);
        }
        if let Some(gid) = self.gid {
            attributes.gid = options.gid_map.to_guest(gid);
        }
        if host & libc::S_IFMT == libc::S_IFREG && is_device(attributes.mode) {
            attributes.rdev = self.rdev.map_or((0, 0), |rdev| (major(rdev), minor(rdev)));
        }
    }
}

/// The type that the client sees: a regular file of the host may stand for anything but a directory, and everything else
/// that the host has is what it is.
fn kind_of(host: u32, recorded: u32) -> u32 {
    let recorded = recorded & libc::S_IFMT;
    let stands_for = [libc::S_IFLNK, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK];
    match host & libc::S_IFMT {
        libc::S_IFREG if stands_for.contains(&recorded) => recorded,
        kind => kind,
    }
}

/// A device by its mode.
pub(crate) fn is_device(mode: u32) -> bool {
    matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK)
}

/// The mode of a file whose owner changes.
pub(crate) fn without_set_ids(mode: u32) -> u32 {
    if mode & libc::S_IFMT == libc::S_IFDIR {
        return mode;
    }
    let group = if mode & SET_GROUP == SET_GROUP { libc::S_ISGID } else { 0 };
    mode & !(SET_USER | group)
}

/// A decimal number of 32 bits, with a sign or without.
fn number(text: &[u8]) -> Option<u32> {
    let number: i64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    let number = match i32::try_from(number) {
        Ok(number) => number.cast_unsigned(),
        Err(_) => u32::try_from(number).ok()?,
    };
    Some(number).filter(|&number| number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_qemus() {
        let text = "virtfs.uid=1000\nvirtfs.gid=-2\nvirtfs.mode=33188\nvirtfs.rdev=2049\n";
        let record = Record { uid: Some(1000), gid: Some(u32::MAX - 1), mode: Some(0o100_644), rdev: Some(0x801) };
        assert_eq!(record.to_text(), text);
        assert_eq!(Record::parse(text.as_bytes()), record);
        assert_eq!(Record::default().to_text(), "");
        let link = Record { uid: Some(0), gid: Some(0), mode: Some(libc::S_IFLNK | 0o777), rdev: None };
        assert_eq!(link.to_text(), "virtfs.uid=0\nvirtfs.gid=0\nvirtfs.mode=41471\n");
    }

    #[test]
    fn lines_that_say_nothing_are_passed_over() {
        let text = b"virtfs.uid=-1\nvirtfs.gid\nvirtfs.mode=9999999999\nvirtfs.rdev=x\nuid=3\n\n\0virtfs.uid=1";
        assert!(Record::parse(text).is_empty());
        // The last one counts, and spaces do not.
        assert_eq!(Record::parse(b"virtfs.uid=1\nvirtfs.uid= 2 ").uid, Some(2));
    }

    #[test]
    fn a_type_covers_a_regular_file_alone() {
        let record = |mode| Record { mode: Some(mode), ..Record::default() };
        assert_eq!(record(libc::S_IFCHR | 0o620).mode_of(libc::S_IFREG | 0o600), libc::S_IFCHR | 0o620);
        assert_eq!(record(libc::S_IFDIR | 0o755).mode_of(libc::S_IFREG | 0o600), libc::S_IFREG | 0o755);
        assert_eq!(record(0o640).mode_of(libc::S_IFREG | 0o600), libc::S_IFREG | 0o640);
        assert_eq!(record(libc::S_IFLNK | 0o777).mode_of(libc::S_IFDIR | 0o700), libc::S_IFDIR | 0o777);
        assert_eq!(record(libc::S_IFREG | 0o4755).mode_of(libc::S_IFIFO | 0o600), libc::S_IFIFO | 0o4755);
        assert_eq!(Record::default().mode_of(libc::S_IFDIR | 0o700), libc::S_IFDIR | 0o700);
    }

    #[test]
    fn a_new_owner_inherits_no_power() {
        assert_eq!(without_set_ids(libc::S_IFREG | 0o6755), libc::S_IFREG | 0o755);
        // Without the right to execute it is no power.
        assert_eq!(without_set_ids(libc::S_IFREG | 0o6745), libc::S_IFREG | 0o2745);
        assert_eq!(without_set_ids(libc::S_IFDIR | 0o6755), libc::S_IFDIR | 0o6755);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            uid: Option<u32>, gid: Option<u32>, mode in proptest::option::of(0..0o200_000_u32), rdev: Option<u32>,
        ) {
            let some = |number: Option<u32>| number.filter(|&number| number != u32::MAX);
            let record = Record { uid: some(uid), gid: some(gid), mode, rdev: some(rdev).map(u64::from) };
            prop_assert_eq!(Record::parse(record.to_text().as_bytes()), record);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let record = Record::parse(&bytes);
            prop_assert_eq!(Record::parse(record.to_text().as_bytes()), record);
        }
    }
}
