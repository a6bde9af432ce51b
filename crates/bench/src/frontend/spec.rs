//! What a load does: the options of a run, checked against the disk it meets.

use std::time::Duration;

use serde::Serialize;
use values::Lun;

use super::protocol::Protocol;
use crate::parse;

/// Most blocks a verified queue keeps book of (one 32-bit word each).
const LEDGER_BLOCKS_MAX: u64 = 1 << 28;
/// Most bytes of buffers, which are all touched before the run.
const BUFFER_BYTES_MAX: u64 = 4 << 30;
/// What our own driver has before the data of a request: its head and its answer, on a page of their own.
pub(crate) const DRIVER_BYTES: usize = 4096;

/// Direction and order of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Rw {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Reads at random offsets
    RandRead,
    /// Writes at random offsets
    RandWrite,
    /// Sequential, reads and writes mixed by --mix
    Rw,
    /// At random offsets, reads and writes mixed by --mix
    RandRw,
}

impl Rw {
    /// Whether offsets are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandRw)
    }

    /// Whether anything is written.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }

    /// Share of reads, in percent, when a mixed load reads `mix` percent.
    pub fn read_percent(self, mix: u8) -> u8 {
        match self {
            Self::Read | Self::RandRead => 100,
            Self::Write | Self::RandWrite => 0,
            Self::Rw | Self::RandRw => mix,
        }
    }

    /// The word for it, which is fio's word too.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What a load does. The comments are what a person reads who asks for help.
#[derive(Debug, Clone, Serialize, clap::Args)]
pub struct Spec {
    /// What the servers speak, ours and the others
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t = Protocol::VhostUser)]
    pub protocol: Protocol,

    /// The disk of a SCSI device, such as 3, or 1:0 with its target [default: 0]
    #[arg(long, value_name = "LUN")]
    pub lun: Option<Lun>,

    /// Let servers of SCSI devices run a second time each, with a persistent reservation that this frontend has
    ///
    /// Write Exclusive (SPC-5). With --socket there is one run, with the reservation, which is left behind.
    #[arg(long)]
    pub reserve: bool,

    /// Direction and order of requests
    #[arg(long, value_enum, default_value_t = Rw::RandRead)]
    pub rw: Rw,

    /// Percentage of reads in rw and randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: u8,

    /// Size of a request; suffixes K, M, G are powers of 1024
    #[arg(long = "bs", value_name = "SIZE", default_value = "4K", value_parser = parse::block_size)]
    pub block_bytes: u32,

    /// Requests in flight on each queue
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub depth: u16,

    /// Queues, which are connections with --protocol nbd
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: u16,

    /// Submit so many requests at once, waiting until there is room for them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8192))]
    pub batch: u16,

    /// Threads that share the queues [default: one a queue]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Flush after so many writes of a queue; 0 for never
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub flush_every: u32,

    /// Let each request in flight be a writer that waits for its write, then for a flush; both are one request
    ///
    /// What a database's commit is: the flush is submitted when the write has completed. fio of --host-fio does the same with
    /// as many processes as requests in flight (psync, fdatasync).
    #[arg(long)]
    pub sync: bool,

    /// Write a pattern, and check it in every block that is read after it was written
    ///
    /// Every sector carries its offset, its generation and data computed from both, so that lost, torn, old and
    /// misplaced data shows. No two requests are in flight on one block, and each queue keeps to its own blocks.
    #[arg(long)]
    pub verify: bool,

    /// How long a run counts, such as 10, 500ms or 2m [default: 5s without --ops]
    #[arg(long, value_name = "TIME", value_parser = parse::positive_duration)]
    pub time: Option<Duration>,

    /// How many requests a run counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: Option<u64>,

    /// How long to run before counting
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub ramp: Duration,

    /// Draw the same offsets again
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Where the part of the disk that is used begins
    #[arg(long = "offset", value_name = "SIZE", default_value = "0", value_parser = parse::size)]
    pub offset_bytes: u64,

    /// How long that part is [default: to the end of the disk]
    #[arg(long = "size", value_name = "SIZE", value_parser = parse::positive_size)]
    pub size_bytes: Option<u64>,

    /// Look for completions all the time, as a polling guest does, instead of sleeping until one is announced
    #[arg(long)]
    pub poll: bool,

    /// Pid of the server behind --socket, to measure its CPU time and wake-ups
    #[arg(long, value_name = "PID", requires = "socket")]
    pub server_pid: Option<u32>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            protocol: Protocol::VhostUser,
            lun: None,
            reserve: false,
            rw: Rw::RandRead,
            mix: 70,
            block_bytes: 4096,
            depth: 128,
            queues: 1,
            batch: 1,
            threads: None,
            flush_every: 0,
            sync: false,
            verify: false,
            time: None,
            ops: None,
            ramp: Duration::ZERO,
            seed: 1,
            offset_bytes: 0,
            size_bytes: None,
            poll: false,
            server_pid: None,
        }
    }
}

/// A load that cannot run. Each message names the option and the fix.
#[derive(Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum SpecError {
    /// --bs {bytes}: not a multiple of the disk's block size, {block_bytes} bytes; use a multiple of it
    BlockSize {
        /// What was asked for.
        bytes: u32,
        /// What the disk requires.
        block_bytes: u32,
    },
    /// --bs {bytes}: the server takes at most {most} bytes a request; use that or less
    BlockTooLarge {
        /// What was asked for.
        bytes: u32,
        /// `size_max` of the server.
        most: u32,
    },
    /// --{option} {value}: must be {least} to {most}
    Range {
        /// The option's name.
        option: &'static str,
        /// What was asked for.
        value: u64,
        /// The smallest value allowed.
        least: u64,
        /// The largest value allowed.
        most: u64,
    },
    /// --sync: nothing is written: use --rw write, randwrite, rw or randrw
    SyncReads,
    /// --sync: flushes behind each write by itself: leave --flush-every out
    SyncFlushes,
    /// --queues {queues}: the server offers {offered}; use {offered} or less, or start it with more queues
    Queues {
        /// What was asked for.
        queues: u16,
        /// What the server offers.
        offered: u16,
    },
    /// --offset {offset}: must be a multiple of --bs ({block_bytes} bytes)
    Offset {
        /// What was asked for.
        offset: u64,
        /// The size of a request.
        block_bytes: u32,
    },
    /// --offset {offset} and --size {size} reach past the end of the disk ({capacity} bytes)
    PastEnd {
        /// What was asked for.
        offset: u64,
        /// What was asked for.
        size: u64,
        /// The size of the disk.
        capacity: u64,
    },
    /// --size: each queue needs {needed} blocks of --bs for itself, but gets {blocks}; use a larger disk or --size, or a smaller --depth
    TooSmall {
        /// Blocks a queue gets.
        blocks: u64,
        /// Blocks a queue needs.
        needed: u64,
    },
    /// --verify: keeps book of at most {most} blocks a queue, not {blocks}; use a smaller --size or a larger --bs
    TooManyBlocks {
        /// Blocks a queue gets.
        blocks: u64,
        /// Blocks a queue may have.
        most: u64,
    },
    /// --depth, --bs and --queues need {bytes} bytes of buffers, more than {most}; use smaller ones
    Buffers {
        /// What would be needed.
        bytes: u64,
        /// What is allowed.
        most: u64,
    },
}

/// What a server's disk allows.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Limits {
    /// Size of the disk.
    pub capacity_bytes: u64,
    /// Requests are multiples of this.
    pub block_bytes: u32,
    /// Longest buffer of a request; 0 for no limit.
    pub segment_bytes_max: u32,
    /// Queues offered; with a protocol that has no word for it, as many as can be asked for.
    pub queues: u16,
}

/// The blocks one queue works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Byte offset of its first block.
    pub(crate) offset_bytes: u64,
    /// How many blocks of `Spec::block_bytes`.
    pub(crate) blocks: u64,
}

impl Spec {
    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// A value is out of range; the message names the option.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |option, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            fits.then_some(()).ok_or(SpecError::Range { option, value, least, most })
        };
        range("depth", u64::from(self.depth), 1, 8192)?;
        range("queues", u64::from(self.queues), 1, 256)?;
        range("batch", u64::from(self.batch), 1, u64::from(self.depth))?;
        range("mix", u64::from(self.mix), 0, 100)?;
        range("threads", u64::from(self.threads.unwrap_or(1)), 1, u64::from(self.queues))?;
        if self.sync && !self.rw.writes() {
            return Err(SpecError::SyncReads);
        }
        if self.sync && self.flush_every != 0 {
            return Err(SpecError::SyncFlushes);
        }
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(512) {
            return Err(SpecError::BlockSize { bytes: self.block_bytes, block_bytes: 512 });
        }
        if !self.offset_bytes.is_multiple_of(u64::from(self.block_bytes)) {
            return Err(SpecError::Offset { offset: self.offset_bytes, block_bytes: self.block_bytes });
        }
        let bytes = self.buffer_bytes();
        if bytes > BUFFER_BYTES_MAX {
            return Err(SpecError::Buffers { bytes, most: BUFFER_BYTES_MAX });
        }
        Ok(())
    }

    /// How long a run is that ends by its time.
    pub(crate) fn length(&self) -> Option<Duration> {
        self.time.map(|time| time + self.ramp)
    }

    /// Distance between buffers: whole pages, as O_DIRECT servers need them aligned. Our own driver has more there.
    pub(crate) fn buffer_stride_bytes(&self) -> u64 {
        let driver_bytes = if self.protocol.is_driven_here() { DRIVER_BYTES as u64 } else { 0 };
        driver_bytes + u64::from(self.block_bytes).next_multiple_of(4096)
    }

    /// Bytes of all buffers.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.buffer_stride_bytes() * u64::from(self.depth) * u64::from(self.queues)
    }

    /// Whether anything is flushed.
    pub(crate) fn flushes(&self) -> bool {
        self.sync || (self.flush_every != 0 && self.rw.writes())
    }

    /// Checks the rest against the disk, and cuts it up: one part a queue.
    pub(crate) fn parts(&self, limits: &Limits) -> Result<Vec<Part>, SpecError> {
        self.check()?;
        if !self.block_bytes.is_multiple_of(limits.block_bytes.max(1)) {
            return Err(SpecError::BlockSize { bytes: self.block_bytes, block_bytes: limits.block_bytes });
        }
        if limits.segment_bytes_max != 0 && self.block_bytes > limits.segment_bytes_max {
            return Err(SpecError::BlockTooLarge { bytes: self.block_bytes, most: limits.segment_bytes_max });
        }
        if self.queues > limits.queues {
            return Err(SpecError::Queues { queues: self.queues, offered: limits.queues });
        }
        let capacity = limits.capacity_bytes;
        let size = self.size_bytes.unwrap_or(capacity.saturating_sub(self.offset_bytes));
        if self.offset_bytes.checked_add(size).is_none_or(|end| end > capacity) {
            return Err(SpecError::PastEnd { offset: self.offset_bytes, size, capacity });
        }
        self.cut(size / u64::from(self.block_bytes))
    }

    fn cut(&self, blocks: u64) -> Result<Vec<Part>, SpecError> {
        // Random queues may meet on a block unless they have to know what is in it.
        let apart = self.verify || !self.rw.is_random();
        let each = if apart { blocks / u64::from(self.queues) } else { blocks };
        let needed = if self.verify { u64::from(self.depth) } else { 1 };
        if each < needed {
            return Err(SpecError::TooSmall { blocks: each, needed });
        }
        if self.verify && each > LEDGER_BLOCKS_MAX {
            return Err(SpecError::TooManyBlocks { blocks: each, most: LEDGER_BLOCKS_MAX });
        }
        let step_bytes = if apart { each * u64::from(self.block_bytes) } else { 0 };
        let part = |queue| Part { offset_bytes: self.offset_bytes + u64::from(queue) * step_bytes, blocks: each };
        Ok((0..self.queues).map(part).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { capacity_bytes: 1 << 20, block_bytes: 512, segment_bytes_max: 0, queues: 4 };

    #[test]
    fn random_queues_share_the_disk_and_others_divide_it() {
        let whole = Part { offset_bytes: 0, blocks: 256 };
        let spec = Spec { queues: 2, ..Spec::default() };
        assert_eq!(spec.parts(&LIMITS).unwrap(), [whole, whole]);

        let halves = [Part { offset_bytes: 0, blocks: 128 }, Part { offset_bytes: 1 << 19, blocks: 128 }];
        let verified = Spec { verify: true, ..spec.clone() };
        assert_eq!(verified.parts(&LIMITS).unwrap(), halves);
        let sequential = Spec { rw: Rw::Write, ..spec };
        assert_eq!(sequential.parts(&LIMITS).unwrap(), halves);
    }

    #[test]
    fn offset_and_size_choose_a_part() {
        let spec = Spec { offset_bytes: 8192, size_bytes: Some(16384), ..Spec::default() };
        assert_eq!(spec.parts(&LIMITS).unwrap(), [Part { offset_bytes: 8192, blocks: 4 }]);
        let spec = Spec { offset_bytes: 8192, ..Spec::default() };
        assert_eq!(spec.parts(&LIMITS).unwrap(), [Part { offset_bytes: 8192, blocks: 254 }]);
        let past = Spec { offset_bytes: 8192, size_bytes: Some(1 << 20), ..Spec::default() };
        assert!(past.parts(&LIMITS).unwrap_err().to_string().contains("past the end"));
        let over = Spec { offset_bytes: 4096, size_bytes: Some(u64::MAX), ..Spec::default() };
        assert!(over.parts(&LIMITS).is_err());
    }

    #[test]
    fn bad_values_name_the_option_and_the_fix() {
        let cases = [
            (Spec { depth: 0, ..Spec::default() }, "--depth 0: must be 1 to 8192"),
            (Spec { batch: 129, ..Spec::default() }, "--batch 129: must be 1 to 128"),
            (Spec { mix: 101, ..Spec::default() }, "--mix 101: must be 0 to 100"),
            (Spec { threads: Some(2), ..Spec::default() }, "--threads 2: must be 1 to 1"),
            (
                Spec { block_bytes: 1000, ..Spec::default() },
                "--bs 1000: not a multiple of the disk's block size, 512 bytes; use a multiple of it",
            ),
            (
                Spec { queues: 5, ..Spec::default() },
                "--queues 5: the server offers 4; use 4 or less, or start it with more queues",
            ),
            (
                Spec { sync: true, ..Spec::default() },
                "--sync: nothing is written: use --rw write, randwrite, rw or randrw",
            ),
            (
                Spec { sync: true, rw: Rw::Write, flush_every: 1, ..Spec::default() },
                "--sync: flushes behind each write by itself: leave --flush-every out",
            ),
            (Spec { offset_bytes: 512, ..Spec::default() }, "--offset 512: must be a multiple of --bs (4096 bytes)"),
        ];
        for (spec, message) in cases {
            assert_eq!(spec.parts(&LIMITS).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn limits_of_the_server_are_kept() {
        let coarse = Limits { block_bytes: 8192, ..LIMITS };
        assert!(matches!(Spec::default().parts(&coarse), Err(SpecError::BlockSize { .. })));
        let narrow = Limits { segment_bytes_max: 2048, ..LIMITS };
        assert!(matches!(Spec::default().parts(&narrow), Err(SpecError::BlockTooLarge { .. })));
        let tight = Spec { verify: true, queues: 4, ..Spec::default() };
        assert_eq!(tight.parts(&LIMITS), Err(SpecError::TooSmall { blocks: 64, needed: 128 }));
    }

    #[test]
    fn buffers_are_bounded() {
        let greedy = Spec { block_bytes: 64 << 20, depth: 8192, ..Spec::default() };
        assert!(matches!(greedy.check(), Err(SpecError::Buffers { .. })));
    }
}
