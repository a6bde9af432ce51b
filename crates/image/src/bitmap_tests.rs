use super::*;
use crate::header::Header;
use crate::new::New;
use proptest::prelude::*;

fn geometry(cluster_bits: u32) -> Geometry {
    let image = New { cluster_bits, ..New::default() }.image().unwrap();
    Geometry::new(&Header::parse(&image).unwrap())
}

fn entry() -> impl Strategy<Value = Entry> {
    let name = proptest::collection::vec(any::<u8>(), 1..NAME_BYTES_MAX);
    let extra = proptest::collection::vec(any::<u8>(), 0..EXTRA_BYTES_MAX);
    (1u64..1 << 30, 1u32..1000, 0u32..8, 9u8..32, extra, name).prop_map(
        |(cluster, table_entries, flags, bits, extra, name)| {
            let table_offset = cluster << 16;
            Entry { table_offset, table_entries, flags, kind: 1, granularity_bits: bits, extra, name }
        },
    )
}

fn read(directory: &[u8], count: u32) -> Result<Vec<(u64, Entry)>, ReadError> {
    let directory_bytes = directory.len() as u64 - 512;
    let bitmaps = Bitmaps { count, reserved: 0, directory_bytes, directory_offset: 512 };
    Entries::of(&mut &directory[..], bitmaps).collect()
}

proptest! {
    #[test]
    fn a_directory_is_read_as_it_is_written(entries in proptest::collection::vec(entry(), 1..5)) {
        let mut bytes = vec![0; 512];
        let mut places = Vec::new();
        for entry in &entries {
            places.push((bytes.len() as u64 - 512, entry.clone()));
            bytes.extend(entry.encode());
            prop_assert!(entry.check(&geometry(16), 0).is_ok());
        }
        prop_assert_eq!(read(&bytes, entries.len() as u32).unwrap(), places);
        // Neither fewer nor more than there are, and no cut.
        prop_assert!(read(&bytes, entries.len() as u32 + 1).is_err());
        prop_assert!(read(&bytes[..bytes.len() - 8], entries.len() as u32).is_err());
        prop_assert!(entries.len() == 1 || read(&bytes, entries.len() as u32 - 1).is_err());
    }

    #[test]
    fn any_bytes_are_a_directory_or_none(bytes in proptest::collection::vec(any::<u8>(), 512..2048), count in 0u32..9) {
        for (_, entry) in read(&bytes, count).unwrap_or_default() {
            prop_assert_eq!(entry.encode().len(), entry.len_bytes());
            let _ = entry.check(&geometry(16), 0);
        }
    }

    #[test]
    fn an_entry_of_a_table_is_written_as_it_was_read(word: u64, bits in 9u32..22) {
        let geometry = geometry(bits);
        for word in [word, word & OFFSET, word << 21 & OFFSET, word & 1] {
            if let Ok(entry) = TableEntry::parse(&geometry, 0, word) {
                prop_assert_eq!(entry.encode(), word);
            }
        }
    }
}

#[test]
fn lies_are_refused_with_their_rule() {
    let good = Entry::new("a", 16, 0x10000, 1);
    let geometry = geometry(16);
    good.check(&geometry, 3).unwrap();
    type Lie = (&'static str, fn(&mut Entry));
    let lies: [Lie; 8] = [
        ("name", |entry| entry.name.clear()),
        ("name", |entry| entry.name = vec![b'a'; 1024]),
        ("reserved", |entry| entry.flags = 8),
        ("type", |entry| entry.kind = 2),
        ("granularity", |entry| entry.granularity_bits = 32),
        ("cluster", |entry| entry.table_offset = 0x10200),
        ("512 MiB", |entry| entry.table_entries = 8193),
        ("entry at least", |entry| entry.table_entries = 0),
    ];
    for (why, lie) in lies {
        let mut entry = good.clone();
        lie(&mut entry);
        let error = entry.check(&geometry, 3).unwrap_err().to_string();
        assert!(error.starts_with("bitmap 3") && error.contains(why), "{error}");
    }
    for word in [2, 0x10001, 0x10200, 1 << 63] {
        let error = TableEntry::parse(&geometry, 3, word).unwrap_err().to_string();
        assert!(error.contains("bitmap 3"), "{error}");
    }
    let mut long = vec![0; 512];
    long.extend(good.encode());
    long[512 + 20..512 + 24].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(read(&long, 1), Err(ReadError::Format(_))));
    assert_eq!(
        [table_entries(1, 9, 9), table_entries(0, 9, 9), table_entries((4096 << 9) + 1, 9, 9)],
        [Some(1), Some(1), Some(2)]
    );
    assert_eq!(table_entries(1 << 62, 9, 16), None);
}
