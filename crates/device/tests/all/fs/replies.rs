//! Replies, against the kernel's structures.

use crate::fs::vectors as v;
use device::fs::{
    Attr, DirWriter, EntryOut, StatFs, StatxAttr, attr_flag, attr_out, copy_file_range_out, create_out, device_number,
    device_parts, entry_out, getxattr_out, ioctl_out, lk_out, lock_type, lseek_out, open_flags, open_out, out_header,
    poll_out, statfs_out, statx_out, write_out,
};
use std::time::Duration;

const ATTR: Attr = Attr {
    ino: 0x1112_1314_1516_1718,
    size: 0x2122_2324_2526_2728,
    blocks: 0x3132_3334_3536_3738,
    atime: (0x4142_4344_4546_4748, 0x7172_7374),
    mtime: (-2, 0x7576_7778),
    ctime: (0x6162_6364_6566_6768, 0x797a_7b7c),
    mode: 0x8182_8384,
    nlink: 0x8586_8788,
    uid: 0x9192_9394,
    gid: 0x9596_9798,
    rdev: 0xa1a2_a3a4,
    blksize: 0xa5a6_a7a8,
    flags: attr_flag::SUBMOUNT,
};
const ENTRY: EntryOut = EntryOut {
    nodeid: 0xb1b2_b3b4_b5b6_b7b8,
    generation: 0xc1c2_c3c4_c5c6_c7c8,
    entry_valid: Duration::new(3, 5),
    attr_valid: Duration::new(4, 6),
    attr: ATTR,
};
const INO: u64 = 0x1112_1314_1516_1718;
const NEXT: u64 = 0x2122_2324_2526_2728;

/// Checks what an encoder appends, and that it leaves alone what is there.
fn check(expected: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
    let mut out = vec![0xee; 3];
    encode(&mut out);
    assert_eq!(out[..3], [0xee; 3]);
    assert_eq!(out[3..], *expected);
}

#[test]
fn nodes() {
    assert_eq!(out_header(0x2122_2324_2526_2728, 0x1112_1314, -2), v::OUT_HEADER);
    check(v::ATTR_OUT, |out| attr_out(out, Duration::new(3, 4), &ATTR));
    check(v::ENTRY_OUT, |out| entry_out(out, &ENTRY));
    let flags = open_flags::KEEP_CACHE | open_flags::PARALLEL_DIRECT_WRITES;
    check(v::OPEN_OUT, |out| open_out(out, 0x1112_1314_1516_1718, flags));
    let both = [v::ENTRY_OUT, v::OPEN_OUT].concat();
    check(&both, |out| create_out(out, &ENTRY, 0x1112_1314_1516_1718, flags));
    let attr = StatxAttr {
        mask: 0x1112_1314,
        blksize: 0x1516_1718,
        attributes: 0x2122_2324_2526_2728,
        nlink: 0x3132_3334,
        uid: 0x3536_3738,
        gid: 0x4142_4344,
        mode: 0x4546,
        ino: 0x5152_5354_5556_5758,
        size: 0x6162_6364_6566_6768,
        blocks: 0x7172_7374_7576_7778,
        attributes_mask: 0x8182_8384_8586_8788,
        atime: (-1, 1),
        btime: (-2, 2),
        ctime: (-3, 3),
        mtime: (-4, 4),
        rdev: (0x9192_9394, 0x9596_9798),
        dev: (0xa1a2_a3a4, 0xa5a6_a7a8),
    };
    check(v::STATX_OUT, |out| statx_out(out, Duration::new(3, 4), attr_flag::SUBMOUNT, &attr));
}

#[test]
fn everything_else() {
    check(v::WRITE_OUT, |out| write_out(out, 0x1112_1314));
    check(v::COPY_FILE_RANGE_OUT, |out| copy_file_range_out(out, 0x1112_1314_1516_1718));
    check(v::GETXATTR_OUT, |out| getxattr_out(out, 0x1112_1314));
    check(v::LSEEK_OUT, |out| lseek_out(out, 0x1112_1314_1516_1718));
    check(v::POLL_OUT, |out| poll_out(out, 0x1112_1314));
    check(&[v::IOCTL_OUT, b"data"].concat(), |out| ioctl_out(out, -2, b"data"));
    check(v::LK_OUT, |out| lk_out(out, 0x1112_1314_1516_1718, 0x2122_2324_2526_2728, lock_type::WRITE, 0x3132_3334));
    let figures = StatFs {
        blocks: 0x1112_1314_1516_1718,
        blocks_free: 0x2122_2324_2526_2728,
        blocks_available: 0x3132_3334_3536_3738,
        files: 0x4142_4344_4546_4748,
        files_free: 0x5152_5354_5556_5758,
        block_size: 0x6162_6364,
        name_bytes_max: 0x6566_6768,
        fragment_size: 0x7172_7374,
    };
    check(v::STATFS_OUT, |out| statfs_out(out, &figures));
}

#[test]
fn device_numbers_are_packed_as_the_kernel_packs_them() {
    // /dev/vda1, and the example that stands in the test of MKNOD.
    assert_eq!(device_number(254, 1), 0xfe01);
    assert_eq!(device_number(0x456, 0x12378), 0x1234_5678);
    for (major, minor) in [(0, 0), (8, 255), (8, 256), (0xfff, 0xf_ffff), (1, 0xf_ff00)] {
        assert_eq!(device_parts(device_number(major, minor)), (major, minor));
    }
}

#[test]
fn directory_entries_are_appended_while_they_fit() {
    for limit in 0..100 {
        let mut out = vec![0xee; 3];
        let mut writer = DirWriter::new(&mut out, limit);
        let fits = writer.would_fit(5, false);
        assert_eq!(writer.add(INO, NEXT, 8, b"names"), fits);
        let fits_again = writer.would_fit(5, false);
        assert_eq!(writer.add(INO, NEXT, 8, b"names"), fits_again);
        assert_eq!([fits, fits_again], [limit >= v::DIRENT.len(), limit >= 2 * v::DIRENT.len()]);
        let expected = [&[0xee; 3], &v::DIRENT.repeat(usize::from(fits) + usize::from(fits_again))[..]].concat();
        assert_eq!(out, expected);
    }
}

#[test]
fn directory_entries_with_attributes_are_appended_while_they_fit() {
    for limit in [0, 127, 128, 159, 160, 161, 319, 320] {
        let mut out = Vec::new();
        let mut writer = DirWriter::new(&mut out, limit);
        let mut count = 0;
        while writer.would_fit(5, true) {
            assert!(writer.add_plus(&ENTRY, INO, NEXT, 8, b"names"));
            count += 1;
        }
        assert!(!writer.add_plus(&ENTRY, INO, NEXT, 8, b"names"));
        assert_eq!(count, limit / v::DIRENTPLUS.len());
        assert_eq!(out, v::DIRENTPLUS.repeat(count));
    }
}

#[test]
fn names_of_every_length_end_at_multiples_of_eight() {
    for len in 0..=255 {
        let name = vec![b'x'; len];
        let mut out = Vec::new();
        assert!(DirWriter::new(&mut out, 512).add(1, 2, 4, &name));
        assert_eq!(out.len(), (24 + len).div_ceil(8) * 8);
        assert_eq!(out[24..24 + len], name);
        assert!(out[24 + len..].iter().all(|byte| *byte == 0));
    }
}
