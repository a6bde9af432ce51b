//! The superblock: where things are, and from where the log counts.

use super::error::{FormatError, Loss, hint};
use super::field::{self, Field, MAGIC};
use super::{
    CAPACITY_BYTES_MAX, COUNTER_MAX, DATA_ALIGN_BYTES, EXTERNAL_LOG_OFFSET, INTERNAL_LOG_OFFSET, LOG_BYTES_MAX,
    LOG_BYTES_MIN, compatible, incompatible, log_seed, round_up,
};
use crate::units::{BLOCK_BYTES, SECTOR_BYTES};
use uuid::Uuid;

/// The fields, as `docs/formats/volume.md` lists them.
pub(super) mod at {
    use super::Field;

    pub(in crate::format) const INCOMPATIBLE: Field = Field::new("incompatible", 16, 8);
    pub(in crate::format) const COMPATIBLE: Field = Field::new("compatible", 24, 8);
    pub(in crate::format) const GENERATION: Field = Field::new("generation", 32, 8);
    pub(in crate::format) const VOLUME: Field = Field::new("volume", 40, 16);
    pub(in crate::format) const CAPACITY: Field = Field::new("capacity", 56, 8);
    pub(in crate::format) const DATA_OFFSET: Field = Field::new("data offset", 64, 8);
    pub(in crate::format) const BLOCK: Field = Field::new("block", 72, 4);
    pub(in crate::format) const FLAGS: Field = Field::new("flags", 76, 4);
    pub(in crate::format) const ROOM_OFFSET: Field = Field::new("room offset", 80, 8);
    pub(in crate::format) const ROOM_LEN: Field = Field::new("room length", 88, 8);
    pub(in crate::format) const LOG: Field = Field::new("log", 96, 16);
    pub(in crate::format) const LOG_OFFSET: Field = Field::new("log offset", 112, 8);
    pub(in crate::format) const LOG_LEN: Field = Field::new("log length", 120, 8);
    pub(in crate::format) const TAIL_POSITION: Field = Field::new("tail position", 128, 8);
    pub(in crate::format) const TAIL_SEQUENCE: Field = Field::new("tail sequence", 136, 8);
    pub(in crate::format) const TAIL_CHAIN: Field = Field::new("tail chain", 144, 8);
    pub(in crate::format) const EPOCH: Field = Field::new("epoch", 152, 8);
    pub(in crate::format) const CREATED_BY: Field = Field::new("created by", 160, 96);
    pub(in crate::format) const LOG_PATH: Field = Field::new("log path", 256, 1024);
    pub(in crate::format) const BOOT: Field = Field::new("boot", 1280, 16);
    pub(in crate::format) const MEMORY_PATH: Field = Field::new("memory path", 1296, 1024);

    #[cfg(test)]
    pub(in crate::format) const ALL: [Field; 21] = [
        INCOMPATIBLE,
        COMPATIBLE,
        GENERATION,
        VOLUME,
        CAPACITY,
        DATA_OFFSET,
        BLOCK,
        FLAGS,
        ROOM_OFFSET,
        ROOM_LEN,
        LOG,
        LOG_OFFSET,
        LOG_LEN,
        TAIL_POSITION,
        TAIL_SEQUENCE,
        TAIL_CHAIN,
        EPOCH,
        CREATED_BY,
        LOG_PATH,
        BOOT,
        MEMORY_PATH,
    ];
}

/// What a superblock begins with.
pub(super) const VOLUME_MAGIC: [u8; 8] = *b"VRINGVOL";
/// Flag: the volume was closed in order.
const FLAG_CLEAN: u32 = 1;

/// A range of bytes in a storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Region {
    /// Where it begins, in bytes; a multiple of 4096.
    pub offset: u64,
    /// How long it is, in bytes; a multiple of 4096.
    pub len: u64,
}

/// Where the log is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LogPlace {
    /// Names this log; a log that takes its place later has another name. The seed of its checksums.
    pub uuid: Uuid,
    /// Where its records lie: in the volume's storage, or in the log's own. Bytes.
    pub offset: u64,
    /// Length of the records' region in bytes.
    pub len: u64,
    /// The log has a storage of its own: where that was when it was added. Only for people; nothing is opened by it.
    pub external: Option<String>,
}

impl LogPlace {
    /// The seed of the checksums in this log.
    pub(crate) fn seed(&self) -> u64 {
        log_seed(&self.uuid)
    }
}

/// Where the log begins to count: everything before is in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tail {
    /// Bytes ever written to this log, laps included; the place in its region is this modulo the region's length.
    pub position: u64,
    /// The next record has at least this sequence.
    pub sequence: u64,
    /// What the next record names as the one before: the checksum of that, or any number that no record has named so far.
    pub chain: u64,
}

/// The memory file of an opening. It lives as long as the kernel runs, and belongs to the opening whose epoch it names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryAt {
    /// The boot of the machine (Linux's boot_id) in which the volume was opened; not zero.
    pub boot: Uuid,
    /// Where the file was then. Only for people; nothing is opened by it. At most 1024 bytes are kept.
    pub path: String,
}

/// Where everything is in a volume, and from where its log counts.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Superblock {
    /// Names the volume.
    pub volume: Uuid,
    /// Bytes of the guest's disk; a multiple of 512.
    pub capacity_bytes: u64,
    /// Where block 0 of the disk lies in the storage, in bytes; a multiple of 1 MiB.
    pub data_offset: u64,
    /// Room for a log inside the volume, also while the log is elsewhere.
    pub room: Region,
    /// Where the log is.
    pub log: LogPlace,
    /// Where the log begins to count.
    pub tail: Tail,
    /// Rises whenever the volume is opened for writing, by any step. Records carry it.
    pub epoch: u64,
    /// The volume was closed in order: there is nothing to replay.
    pub clean: bool,
    /// Counted up with each superblock written.
    pub generation: u64,
    /// The disk is a storage of its own, which has all of `capacity_bytes`, and here is only its log.
    pub apart: bool,
    /// What guests wrote and nobody flushed may be in this memory file alone. None when that was written back in order.
    pub memory: Option<MemoryAt>,
    /// Features that may be passed over without harm and that this version does not know; it does not write them.
    pub compatible: u64,
    /// The program that made the volume; at most 96 bytes are kept.
    pub created_by: String,
}

impl Superblock {
    /// The slot that this superblock belongs in, as an offset in bytes: 0 or 4096.
    pub fn slot_offset(&self) -> u64 {
        (self.generation % 2) * BLOCK_BYTES as u64
    }

    /// Bytes that the volume's storage has at least: the last block of the disk is there as a whole.
    pub fn storage_bytes(&self) -> u64 {
        if self.apart {
            return self.room.offset.saturating_add(self.room.len);
        }
        self.data_offset.saturating_add(round_up(self.capacity_bytes, BLOCK_BYTES as u64))
    }

    /// What is lost when the log is.
    pub fn loss(&self) -> Loss {
        if self.clean {
            Loss::Nothing
        } else {
            Loss::SinceCheckpoint { sequence: self.tail.sequence, epoch: self.epoch }
        }
    }

    /// The bytes of a slot.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let slot = &mut bytes[..];
        MAGIC.put(slot, &VOLUME_MAGIC);
        let external = if self.log.external.is_some() { incompatible::EXTERNAL_LOG } else { 0 };
        let features = external | if self.apart { incompatible::DISK_APART } else { 0 };
        at::INCOMPATIBLE.put_u64(slot, features);
        if let Some(memory) = &self.memory {
            at::COMPATIBLE.put_u64(slot, compatible::MEMORY);
            at::BOOT.put(slot, memory.boot.as_bytes());
            at::MEMORY_PATH.put(slot, memory.path.as_bytes());
        }
        at::GENERATION.put_u64(slot, self.generation);
        at::VOLUME.put(slot, self.volume.as_bytes());
        at::CAPACITY.put_u64(slot, self.capacity_bytes);
        at::DATA_OFFSET.put_u64(slot, self.data_offset);
        at::BLOCK.put_u32(slot, BLOCK_BYTES as u32);
        at::FLAGS.put_u32(slot, if self.clean { FLAG_CLEAN } else { 0 });
        at::ROOM_OFFSET.put_u64(slot, self.room.offset);
        at::ROOM_LEN.put_u64(slot, self.room.len);
        at::LOG.put(slot, self.log.uuid.as_bytes());
        at::LOG_OFFSET.put_u64(slot, self.log.offset);
        at::LOG_LEN.put_u64(slot, self.log.len);
        at::TAIL_POSITION.put_u64(slot, self.tail.position);
        at::TAIL_SEQUENCE.put_u64(slot, self.tail.sequence);
        at::TAIL_CHAIN.put_u64(slot, self.tail.chain);
        at::EPOCH.put_u64(slot, self.epoch);
        at::CREATED_BY.put(slot, self.created_by.as_bytes());
        at::LOG_PATH.put(slot, self.log.external.as_deref().unwrap_or_default().as_bytes());
        field::seal(0, slot);
        // The pair of what an opening reads, but for texts, of which not all is kept.
        debug_assert!(
            Superblock::decode(slot).is_ok_and(|read| read.is_about(self)) || self.validate().is_err(),
            "{self:?}"
        );
        bytes
    }

    /// Whether the other says the same of where the volume's parts are and what counts of them.
    fn is_about(&self, other: &Superblock) -> bool {
        let log = |of: &Superblock| (of.log.uuid, of.log.offset, of.log.len, of.log.external.is_some());
        let disk =
            |of: &Superblock| (of.volume, of.capacity_bytes, of.data_offset, of.room, of.apart, of.memory.is_some());
        let life = |of: &Superblock| (of.tail, of.epoch, of.clean, of.generation);
        log(self) == log(other) && disk(self) == disk(other) && life(self) == life(other)
    }

    /// Reads a slot whose magic and checksum are right.
    pub(super) fn decode(slot: &[u8]) -> Result<Superblock, FormatError> {
        let features = at::INCOMPATIBLE.u64(slot);
        let unknown = features & !incompatible::KNOWN;
        if unknown != 0 {
            return Err(FormatError::Newer { unknown });
        }
        if at::BLOCK.u32(slot) as usize != BLOCK_BYTES {
            let value = u64::from(at::BLOCK.u32(slot));
            return Err(FormatError::Impossible { field: at::BLOCK.name, value, rule: "4096" });
        }
        let external = (features & incompatible::EXTERNAL_LOG != 0).then(|| at::LOG_PATH.text(slot));
        let harmless = at::COMPATIBLE.u64(slot);
        let memory = (harmless & compatible::MEMORY != 0)
            .then(|| MemoryAt { boot: at::BOOT.uuid(slot), path: at::MEMORY_PATH.text(slot) });
        let superblock = Superblock {
            volume: at::VOLUME.uuid(slot),
            capacity_bytes: at::CAPACITY.u64(slot),
            data_offset: at::DATA_OFFSET.u64(slot),
            room: Region { offset: at::ROOM_OFFSET.u64(slot), len: at::ROOM_LEN.u64(slot) },
            log: LogPlace {
                uuid: at::LOG.uuid(slot),
                offset: at::LOG_OFFSET.u64(slot),
                len: at::LOG_LEN.u64(slot),
                external,
            },
            tail: Tail {
                position: at::TAIL_POSITION.u64(slot),
                sequence: at::TAIL_SEQUENCE.u64(slot),
                chain: at::TAIL_CHAIN.u64(slot),
            },
            epoch: at::EPOCH.u64(slot),
            clean: at::FLAGS.u32(slot) & FLAG_CLEAN != 0,
            generation: at::GENERATION.u64(slot),
            apart: features & incompatible::DISK_APART != 0,
            memory,
            compatible: harmless & !compatible::KNOWN,
            created_by: at::CREATED_BY.text(slot),
        };
        superblock.validate()?;
        Ok(superblock)
    }

    /// Checks everything that arithmetic relies on later.
    pub(super) fn validate(&self) -> Result<(), FormatError> {
        const BLOCK: u64 = BLOCK_BYTES as u64;
        let (room, log) = (&self.room, &self.log);
        let in_room = log.offset == room.offset && log.len == room.len;
        let place = if log.external.is_some() { log.offset == EXTERNAL_LOG_OFFSET } else { in_room };
        let length = |len: u64| (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&len) && len.is_multiple_of(BLOCK);
        let rules: [(bool, &'static str, u64, &'static str); 12] = [
            (
                (SECTOR_BYTES as u64..=CAPACITY_BYTES_MAX).contains(&self.capacity_bytes)
                    && self.capacity_bytes.is_multiple_of(SECTOR_BYTES as u64),
                at::CAPACITY.name,
                self.capacity_bytes,
                "512 to 2^60, a multiple of 512",
            ),
            (
                self.data_offset.is_multiple_of(DATA_ALIGN_BYTES) && self.data_offset <= CAPACITY_BYTES_MAX,
                at::DATA_OFFSET.name,
                self.data_offset,
                "a multiple of 1 MiB, 2^60 at most",
            ),
            (room.offset == INTERNAL_LOG_OFFSET, at::ROOM_OFFSET.name, room.offset, "65536"),
            (
                length(room.len) && room.offset.saturating_add(room.len) <= self.data_offset,
                at::ROOM_LEN.name,
                room.len,
                "64 KiB to 1 TiB, a multiple of 4096, ending before the data",
            ),
            (
                place,
                at::LOG_OFFSET.name,
                log.offset,
                "where the volume's room for a log is, or 4096 on a device of its own",
            ),
            (
                !(self.apart && log.external.is_some()),
                at::INCOMPATIBLE.name,
                incompatible::EXTERNAL_LOG | incompatible::DISK_APART,
                "a log without a disk lies in its own room",
            ),
            (length(log.len), at::LOG_LEN.name, log.len, "64 KiB to 1 TiB, a multiple of 4096"),
            (
                self.tail.position.is_multiple_of(BLOCK) && self.tail.position < COUNTER_MAX,
                at::TAIL_POSITION.name,
                self.tail.position,
                "a multiple of 4096 below 2^62",
            ),
            (self.tail.sequence < COUNTER_MAX, at::TAIL_SEQUENCE.name, self.tail.sequence, "below 2^62"),
            (self.epoch < COUNTER_MAX, at::EPOCH.name, self.epoch, "below 2^62"),
            (self.generation < COUNTER_MAX, at::GENERATION.name, self.generation, "below 2^62"),
            (!self.volume.is_nil(), at::VOLUME.name, 0, "not zero"),
        ];
        match rules.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, value, rule)) => Err(FormatError::Impossible { field, value, rule }),
            None => Ok(()),
        }
    }

    /// Whether all that the superblock speaks of lies in a storage of `len` bytes.
    ///
    /// # Errors
    /// [`FormatError::TooShort`].
    pub fn check_length(&self, len: u64) -> Result<(), FormatError> {
        let needed_bytes = self.storage_bytes();
        if len < needed_bytes {
            return Err(FormatError::TooShort { what: "volume", present_bytes: len, needed_bytes });
        }
        Ok(())
    }

    /// Whether the disk is here, and not apart.
    ///
    /// # Errors
    /// [`FormatError::Apart`].
    pub fn check_whole(&self) -> Result<(), FormatError> {
        if self.apart { Err(FormatError::Apart) } else { Ok(()) }
    }

    /// The superblock of a volume that is opened with its log replayed up to `tail`; it is written twice.
    ///
    /// # Errors
    /// [`FormatError::Impossible`]: a counter is at its end, which only an attacker gets it to.
    pub(crate) fn opened(&self, tail: Tail) -> Result<Superblock, FormatError> {
        let opened = Superblock { tail, epoch: self.epoch + 1, clean: false, ..self.clone() };
        Superblock { generation: self.generation + 2, ..opened.clone() }.validate()?;
        Ok(opened)
    }

    /// " (PATH)" of the log's own storage, for errors.
    pub(super) fn log_hint(&self) -> String {
        hint(self.log.external.as_deref())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::field::CHECKSUM;
    use super::*;
    use proptest::prelude::*;

    pub(in crate::format) fn sample(external: bool) -> Superblock {
        let room = Region { offset: INTERNAL_LOG_OFFSET, len: 960 << 10 };
        Superblock {
            volume: Uuid::from_u128(0x1234),
            capacity_bytes: 3 << 20 | 512,
            data_offset: 1 << 20,
            room,
            log: LogPlace {
                uuid: Uuid::from_u128(7),
                offset: if external { EXTERNAL_LOG_OFFSET } else { room.offset },
                len: room.len,
                external: external.then(|| "/dev/fast".to_string()),
            },
            tail: Tail { position: 4096 * 77, sequence: 9, chain: u64::MAX },
            epoch: 3,
            clean: true,
            generation: 12,
            apart: false,
            memory: None,
            compatible: 0,
            created_by: "vringd 0.1.0".to_string(),
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            external: bool, clean: bool, sectors in 1u64..1 << 40, sequence in 0..COUNTER_MAX, position in 0..COUNTER_MAX >> 12,
            chain: u64, epoch in 0..COUNTER_MAX, generation in 0..COUNTER_MAX, path in "[a-z/]{0,1024}", by in "[ -~]{0,96}",
            boot in 0u128..3,
        ) {
            let mut superblock = sample(external);
            superblock.capacity_bytes = sectors * 512;
            superblock.clean = clean;
            superblock.tail = Tail { position: position << 12, sequence, chain };
            (superblock.epoch, superblock.generation, superblock.created_by) = (epoch, generation, by);
            superblock.memory = (boot > 0).then(|| MemoryAt { boot: Uuid::from_u128(boot), path: path.clone() });
            superblock.log.external = superblock.log.external.map(|_| path);
            let bytes = superblock.encode();
            prop_assert!(field::is_sealed(0, &bytes[..]));
            prop_assert_eq!(Superblock::decode(&bytes[..]).expect("decodes"), superblock);
        }

        /// Bytes that nobody wrote are a verdict, never a panic, and what passes can be counted with.
        #[test]
        fn any_bytes_have_a_verdict(changes in prop::collection::vec((0usize..288, any::<u8>()), 0..12), external: bool) {
            let mut bytes = sample(external).encode();
            for (at, value) in changes {
                bytes[at] = value;
            }
            if let Ok(superblock) = Superblock::decode(&bytes[..]) {
                prop_assert!(superblock.room.offset + superblock.room.len <= superblock.data_offset);
                prop_assert!(superblock.storage_bytes() < u64::MAX);
                prop_assert!(superblock.tail.position + superblock.log.len < 1 << 63);
            }
        }
    }

    #[test]
    fn unknown_features_are_refused_and_harmless_ones_are_not() {
        let mut bytes = sample(false).encode();
        at::INCOMPATIBLE.put_u64(&mut bytes[..], 1 << 17);
        let refusal = Superblock::decode(&bytes[..]).expect_err("refused");
        assert!(matches!(refusal, FormatError::Newer { unknown: 0x20000 }));
        assert!(refusal.to_string().contains("incompatible 0x20000"), "{refusal}");
        let mut bytes = sample(false).encode();
        at::COMPATIBLE.put_u64(&mut bytes[..], 1 << 3);
        let superblock = Superblock::decode(&bytes[..]).expect("decodes");
        assert_eq!(superblock.compatible, 8);
        // What this version does not know it does not keep up: it takes the mark away.
        assert_eq!(at::COMPATIBLE.u64(&superblock.encode()[..]), 0);
        let memory = Some(MemoryAt { boot: Uuid::from_u128(5), path: "/run/memory".to_string() });
        let mut bytes = Superblock { memory: memory.clone(), ..sample(false) }.encode();
        at::COMPATIBLE.put_u64(&mut bytes[..], 1 << 3 | 1);
        let superblock = Superblock::decode(&bytes[..]).expect("decodes");
        assert_eq!((superblock.compatible, &superblock.memory), (8, &memory));
        // An older version writes zeroes there.
        at::COMPATIBLE.put_u64(&mut bytes[..], 0);
        assert_eq!(Superblock::decode(&bytes[..]).expect("decodes").memory, None);
    }

    #[test]
    fn fields_do_not_overlap() {
        let mut end = CHECKSUM.at + CHECKSUM.bytes;
        for field in at::ALL {
            assert!(field.at >= end, "{field:?} begins in the field before");
            end = field.at + field.bytes;
        }
        assert!(end <= BLOCK_BYTES);
    }
}
