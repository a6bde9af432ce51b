//! Headers that are right, and every way in which one can be wrong.

use super::*;
use crate::features::{Name, Word};
use proptest::prelude::*;

pub(crate) fn header() -> Header {
    Header {
        version: 3,
        backing_file: None,
        cluster_bits: 16,
        size_bytes: 1 << 30,
        l1_entries: 2,
        l1_offset: 0x3_0000,
        refcount_table_offset: 0x1_0000,
        refcount_table_clusters: 1,
        snapshots: 0,
        snapshots_offset: 0,
        incompatible: 0,
        compatible: 0,
        autoclear: 0,
        refcount_order: 4,
        header_bytes: 112,
        compression: Compression::Zlib,
        extensions: Extensions::default(),
    }
}

fn parsed(change: impl FnOnce(&mut Header)) -> Result<Header, FormatError> {
    let mut header = header();
    change(&mut header);
    let bytes = header.encode();
    let read = Header::parse(&bytes)?;
    assert_eq!(read, header);
    Ok(read)
}

fn refused(change: impl FnOnce(&mut Header)) -> String {
    parsed(change).unwrap_err().to_string()
}

#[test]
fn headers_are_read_as_they_are_written() {
    parsed(|_| {}).unwrap();
    parsed(|header| (header.version, header.header_bytes) = (2, 72)).unwrap();
    parsed(|header| header.backing_file = Some(b"base.qcow2".to_vec())).unwrap();
    parsed(|header| (header.compression, header.incompatible) = (Compression::Zstd, features::COMPRESSION)).unwrap();
    let kept = parsed(|header| (header.compatible, header.autoclear) = (!0, 0x8000_0000_0000_0001)).unwrap();
    assert_eq!((kept.compatible, kept.autoclear_kept()), (!0, 0));
    let raw = parsed(|header| (header.incompatible, header.autoclear) = (features::DATA_FILE, 7)).unwrap();
    assert_eq!((raw.data_file_is_raw(), raw.autoclear_kept()), (true, features::DATA_FILE_RAW));
}

#[test]
fn what_a_header_may_not_say_is_refused_by_name() {
    for (change, expected) in [
        ((|h| h.cluster_bits = 8) as fn(&mut Header), "cluster_bits is 0x8"),
        (|h| h.cluster_bits = 22, "cluster_bits"),
        (|h| h.version = 4, "version 4 is not known"),
        (|h| h.header_bytes = 108, "header_length"),
        (|h| h.refcount_order = 7, "refcount_order is 0x7: at most 6"),
        (|h| h.size_bytes = 1 << 63, "size"),
        (|h| h.size_bytes = (1 << 30) + 1, "l1_size"),
        (|h| h.l1_entries = 1, "l1_size"),
        (|h| h.l1_entries = u32::MAX, "l1_size"),
        (|h| h.l1_offset = 0, "l1_table_offset"),
        (|h| h.l1_offset = 0x3_0200, "l1_table_offset"),
        (|h| h.l1_offset = 1 << 63, "l1_table_offset"),
        (|h| h.refcount_table_offset = 0, "refcount_table_offset"),
        (|h| h.refcount_table_clusters = 0, "an image has a refcount table"),
        (|h| h.refcount_table_clusters = 129, "refcount_table_clusters"),
        (|h| h.snapshots = 65_537, "nb_snapshots"),
        (|h| (h.snapshots, h.snapshots_offset) = (1, 7), "snapshots_offset"),
        (|h| (h.snapshots, h.snapshots_offset) = (2000, (1 << 63) - (1 << 16)), "ends below"),
        (|h| h.compression = Compression::Zstd, "compression_type"),
        (|h| h.incompatible = features::COMPRESSION, "compression_type"),
        (|h| (h.incompatible, h.cluster_bits) = (features::EXTENDED_L2, 13), "cluster_bits"),
        (|h| h.backing_file = Some(vec![b'x'; 1024]), "backing_file_size"),
        (|h| h.incompatible = 1 << 40, "the image needs incompatible feature bit 40"),
    ] {
        let error = refused(change);
        assert!(error.contains(expected), "{error} is not about {expected}");
    }
    let raw_with_backing = refused(|h| {
        (h.incompatible, h.autoclear) = (features::DATA_FILE, features::DATA_FILE_RAW);
        h.backing_file = Some(b"x".to_vec());
    });
    assert!(raw_with_backing.contains("raw external data file"), "{raw_with_backing}");
    let named = refused(|h| {
        h.incompatible = 1 << 40;
        h.extensions.feature_names = vec![Name { word: Word::Incompatible, bit: 40, name: "time travel".to_owned() }];
    });
    assert!(named.contains("the feature \"time travel\" (incompatible feature bit 40)"), "{named}");
}

#[test]
fn encryption_is_refused_by_its_name() {
    for (method, expected) in [(1, "AES-CBC"), (2, "LUKS"), (3, "crypt_method is 0x3")] {
        let mut bytes = header().encode();
        put_u32(&mut bytes, 32, method);
        let error = Header::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_image_that_is_cut_off_or_none_is_refused() {
    let bytes = header().encode();
    for len in 0..110 {
        Header::parse(&bytes[..len]).unwrap_err();
    }
    assert_eq!(Header::parse(b"MZ").unwrap_err(), FormatError::Magic);
    assert_eq!(Header::bytes_needed(&bytes).unwrap(), 1 << 16);
}

proptest! {
    /// Whatever a header says, it is read without a panic, and what is accepted can be counted with.
    #[test]
    fn any_header_is_read_or_refused(changes in prop::collection::vec((0usize..120, any::<u8>()), 0..12)) {
        let mut bytes = header().encode();
        for (at, value) in changes {
            bytes[at] = value;
        }
        if let Ok(header) = Header::parse(&bytes) {
            crate::geometry::Geometry::new(&header);
            prop_assert!(u64::from(header.l1_entries) >= header.size_bytes.div_ceil(header.l2_covers_bytes()));
        }
    }
}
