//! Volumes made and changed, and the document compared with the code.

use super::*;
use crate::blocks::{Blocks, Progress};
use crate::ram::Ram;
use crate::recover::recover;
use crate::testing::{LOG_BYTES, quiet, storage, volume};
use crate::units::BLOCK_BYTES;
use std::io;

/// Goes out of service before the given write.
struct Dying<'a> {
    ram: &'a mut Ram,
    writes_left: usize,
}

impl Blocks for Dying<'_> {
    fn len(&self) -> u64 {
        self.ram.len()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.ram.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.writes_left = self.writes_left.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(5))?;
        self.ram.write_at(offset, buf)
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(offset, &vec![0; len as usize])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_new_volume_is_closed_and_whole() {
    for external in [false, true] {
        let (mut data, mut log, superblock) = volume(external);
        assert_eq!(read_superblock(&mut data).expect("read"), superblock);
        let slots = read_slots(&mut data).expect("read");
        assert_eq!(slots, [Slot::Whole { generation: 2 }, Slot::Whole { generation: 1 }]);
        assert!(superblock.clean && superblock.epoch == 0);
        assert_eq!((superblock.data_offset, superblock.log.len), (1 << 20, LOG_BYTES));
        superblock.check_log(storage(&mut log)).expect("its log");
        superblock.check_length(data.len()).expect("long enough");
        assert_eq!(superblock.storage_bytes(), data.len());
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_by_name() {
    let (_, _, made) = volume(false);
    let options = CreateOptions {
        capacity_bytes: 1 << 20,
        log_bytes: LOG_BYTES,
        volume: made.volume,
        log: made.log.uuid,
        log_path: None,
        apart: false,
        created_by: String::new(),
    };
    let refuse = |options: &CreateOptions, len: usize| {
        let mut data = Ram::new(len);
        let error = create(&mut data, None, options, &mut quiet()).expect_err("refused");
        assert!(data.0.iter().all(|byte| *byte == 0), "a refusal changes nothing");
        error.to_string()
    };
    let text = refuse(&CreateOptions { capacity_bytes: 1000, ..options.clone() }, 4 << 20);
    assert_eq!(text, "size: 1000 is out of range: use 512 bytes to 2^60, a multiple of 512");
    let text = refuse(&CreateOptions { log_bytes: 1000, ..options.clone() }, 4 << 20);
    assert_eq!(text, "log size: 1000 is out of range: use 64 KiB to 1 TiB");
    let text = refuse(&options, 1 << 20);
    assert!(text.starts_with("the volume has 1048576 bytes and needs 2097152"), "{text}");
    let mut data = Ram::new(2 << 20);
    let error = create(&mut data, Some(&mut Ram::new(4096)), &options, &mut quiet()).expect_err("refused");
    assert!(error.to_string().starts_with("the log has 4096 bytes and needs 69632"), "{error}");
}

#[test]
fn creation_shows_how_far_it_is_and_writes_the_log_out() {
    let (mut data, _, superblock) = volume(false);
    data.0.fill(0xaa);
    let options = CreateOptions {
        capacity_bytes: superblock.capacity_bytes,
        log_bytes: LOG_BYTES,
        volume: superblock.volume,
        log: superblock.log.uuid,
        log_path: None,
        apart: false,
        created_by: "again".to_string(),
    };
    let mut seen = Vec::new();
    create(&mut data, None, &options, &mut |progress| seen.push(progress)).expect("made");
    assert_eq!(seen.last(), Some(&Progress { done_bytes: LOG_BYTES, total_bytes: LOG_BYTES }));
    let log = &data.0[superblock.log.offset as usize..][..LOG_BYTES as usize];
    assert!(log.iter().all(|byte| *byte == 0));
    // The disk is left as it was: a new file is a hole there.
    assert!(data.0[superblock.data_offset as usize..].iter().all(|byte| *byte == 0xaa));
}

/// Plays a change with the storage going out of service at every write of it: the superblock is the old one or the new one.
fn at_every_write(data: &Ram, change: &mut dyn FnMut(&mut dyn Blocks) -> Result<Superblock, FormatError>) -> Ram {
    let old = read_superblock(&mut data.clone()).expect("read");
    for writes_left in 0.. {
        let mut ram = data.clone();
        let result = change(&mut Dying { ram: &mut ram, writes_left });
        let found = read_superblock(&mut ram).expect("one is whole");
        match result {
            Ok(new) => {
                assert_eq!(found, new);
                return ram;
            }
            Err(FormatError::Io { .. }) if found == old => {}
            Err(FormatError::Io { what: "clear what was cut off", .. }) => {}
            Err(error) => panic!("{error}, superblock {found:?}"),
        }
    }
    unreachable!("a change has an end")
}

#[test]
fn a_log_comes_and_goes() {
    let (mut data, _, superblock) = volume(false);
    let mut log = Ram::new(200 << 10);
    let (first, second) = (Uuid::from_u128(11), Uuid::from_u128(12));
    data =
        at_every_write(&data, &mut |data| log_add(data, &mut log, first, Some("/dev/fast".to_string()), &mut quiet()));
    let added = read_superblock(&mut data).expect("read");
    assert_eq!((added.log.uuid, added.log.len), (first, 196 << 10));
    assert_eq!(added.room, superblock.room, "there is always a way back");
    let again = log_add(&mut data, &mut log, second, None, &mut quiet()).expect_err("it has one");
    assert!(matches!(again, FormatError::LogPresent { .. }));
    // Not while it holds something.
    let opened = recover(&mut data, Some(&mut log), &mut quiet()).expect("opens").superblock;
    let refusal = log_remove(&mut data, Some(&mut log), second, &mut quiet()).expect_err("open");
    assert!(matches!(refusal, FormatError::NotClean));
    let refusal = log_remove(&mut data, Some(&mut Ram::new(4096)), second, &mut quiet()).expect_err("foreign");
    assert!(matches!(refusal, FormatError::LogForeign { .. }));
    // Lost: the volume goes on without.
    let mut lost = data.clone();
    let without = log_remove(&mut lost, None, second, &mut quiet()).expect("goes on");
    assert!(without.clean && without.log.external.is_none() && without.log.uuid == second);
    recover(&mut lost, None, &mut quiet()).expect("opens");
    // Closed: it is taken back, and the device belongs to nobody.
    let mut closed = opened;
    close(&mut data, &mut closed).expect("closed");
    data = at_every_write(&data, &mut |data| log_remove(data, Some(&mut log.clone()), second, &mut quiet()));
    log_remove(&mut data, None, second, &mut quiet()).expect_err("it has none");
    assert!(LogHeader::read(&mut log).expect("read").is_some_and(|header| header.log == first));
    let opened = recover(&mut data, None, &mut quiet()).expect("opens").superblock;
    assert_eq!(opened.log.offset, INTERNAL_LOG_OFFSET);
    assert!(opened.tail.sequence >= added.tail.sequence, "a sequence is not used twice");
}

#[test]
fn a_disk_grows_and_shrinks() {
    let (data, _, made) = volume(false);
    let mut data = Ram([data.0, vec![0x77; 1 << 20]].concat());
    let offset = made.data_offset as usize;
    data.0[offset..offset + (256 << 10)].fill(0x11);
    let data = at_every_write(&data, &mut |data| resize(data, 1 << 20));
    assert!(data.0[offset..offset + (256 << 10)].iter().all(|byte| *byte == 0x11));
    let mut data = at_every_write(&data, &mut |data| resize(data, 100 << 10));
    let disk = &data.0[offset..];
    assert!(disk[..100 << 10].iter().all(|byte| *byte == 0x11));
    assert!(disk[100 << 10..1 << 20].iter().all(|byte| *byte == 0), "what was cut off comes back");
    let before = data.clone();
    assert!(matches!(resize(&mut data, 1 << 30).expect_err("long"), FormatError::TooShort { .. }));
    assert!(matches!(resize(&mut data, 0).expect_err("nothing"), FormatError::Option { field: "size", .. }));
    assert_eq!(data, before);
    recover(&mut data, None, &mut quiet()).expect("opens");
    assert!(matches!(resize(&mut data, 1 << 20).expect_err("open"), FormatError::NotClean));
}

/// Offset, bytes, name.
type Row = (usize, usize, String);

/// The rows `| offset | bytes | field |` of the document's tables, by the heading above.
fn tables() -> Vec<(String, Vec<Row>)> {
    let text = include_str!("../../../../docs/formats/volume.md");
    let mut tables: Vec<(String, Vec<Row>)> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            tables.push((heading.to_string(), Vec::new()));
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let [_, offset, bytes, name, ..] = cells[..]
            && let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse())
            && let Some((_, rows)) = tables.last_mut()
        {
            rows.push((offset, bytes, name.to_string()));
        }
    }
    tables
}

#[test]
fn the_document_says_where_the_fields_are() {
    use crate::log::at as record;
    use field::{CHECKSUM, Field, MAGIC};
    let start = [MAGIC, CHECKSUM];
    let with_start = |fields: &[Field]| [&start[..], fields].concat();
    let expected = [
        ("Superblock", with_start(&superblock::at::ALL)),
        ("Header of a log on a storage of its own", with_start(&header::at::ALL)),
        ("Record", with_start(&record::ALL)),
        ("Entry", record::ENTRY.to_vec()),
    ];
    let tables = tables();
    for (heading, fields) in expected {
        let rows = &tables.iter().find(|(found, _)| found == heading).expect(heading).1;
        let fields: Vec<_> = fields.iter().map(|field| (field.at, field.bytes, field.name.to_string())).collect();
        assert_eq!(*rows, fields, "{heading}");
    }
}

/// The example in the document: a new volume's first superblock, and a record in the way of `hexdump -C`.
#[test]
fn the_document_shows_real_bytes() {
    use crate::testing::{Change, Writer};
    use crate::units::SectorMask;
    let (mut data, _, _) = volume(false);
    let opened = recover(&mut data, None, &mut quiet()).expect("opens").superblock;
    let changes = [
        Change::Data { block: 5, sectors: SectorMask::ALL, fill: 0x5a },
        Change::Data { block: 9, sectors: SectorMask(0b0000_1100), fill: 0x5a },
        Change::Zeroes { block: 16, count: 8 },
    ];
    let built = Writer::new(&opened).commit(&mut data, &changes).expect("room");
    let shown = |offset: usize, len: usize| {
        let mut text = String::new();
        let mut repeated = false;
        for (line, bytes) in data.0[offset..offset + len].chunks(16).enumerate() {
            if line > 0 && bytes.iter().all(|byte| *byte == 0) {
                text += if repeated { "" } else { "*\n" };
                repeated = true;
                continue;
            }
            repeated = false;
            let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let words: String =
                bytes.iter().map(|&byte| if (32..127).contains(&byte) { byte as char } else { '.' }).collect();
            let at = offset + line * 16;
            text += &format!("{at:08x}  {}  {}  |{words}|\n", hex[..8].join(" "), hex[8..].join(" "));
        }
        text
    };
    let text = include_str!("../../../../docs/formats/volume.md");
    for example in [shown(opened.slot_offset() as usize, BLOCK_BYTES), shown(built.offset as usize, built.header_len)] {
        assert!(text.contains(&example), "docs/formats/volume.md does not show:\n{example}");
    }
}
