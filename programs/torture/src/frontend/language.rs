//! What a frontend and its device speak: how requests look, and what answers mean. The load, its contents and whoever kills
//! the server know nothing of it.

use anyhow::Result;
use frontkit::Session;

use super::blk;
use super::request::{Question, Request};
use super::ring::{Answer, Wanted};
use super::scsi::Scsi;
use crate::rng::Rng;

/// What a disk is driven by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// virtio-blk
    #[default]
    Blk,
    /// virtio-scsi, one disk of the device
    Scsi,
}

/// How what a guest has written becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The driver flushes.
    Flushes,
    /// The disk has no write cache, or the driver turns it off: it never flushes.
    Cacheless,
    /// The driver says so with each write (FUA), and never flushes. Not for virtio-blk, which has no such thing.
    Forced,
}

/// The disk as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Capacity in sectors of 512 bytes.
    pub(crate) sectors: u64,
    /// Logical block size in sectors.
    pub(crate) block_sectors: u64,
    /// Whether ranges can be made zeroes.
    pub(crate) write_zeroes: bool,
    /// Whether ranges can be given up.
    pub(crate) discard: bool,
    /// Sectors that can be compared and written at once; 0 if none can.
    pub(crate) swap_sectors: u64,
    /// Whether it takes flushes.
    pub(crate) flush: bool,
}

/// Features of the device, beside those of every device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    /// Without these it is not driven.
    pub(super) required: u64,
    /// These are taken if they are offered.
    pub(super) optional: u64,
}

/// Makes one request and waits for its answer: that, what was delivered, and how many bytes the device says it wrote.
pub(super) type Ask<'a> = dyn FnMut(&Wanted, &[u8]) -> Result<(Answer, Vec<u8>, u32)> + 'a;

/// Whose answer it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Bytes that the device says it has written.
    pub(super) written: u32,
    /// It was given before the connection that there is now.
    pub(super) earlier: bool,
    /// A server was lost with the request in flight.
    pub(super) resubmitted: bool,
}

/// What an answer means for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is done.
    Done,
    /// It was not begun: the device had something else to say.
    NotBegun,
    /// It is done or not: a server was lost with it.
    MayBeDone,
}

/// What is spoken, with what has to be known for that.
#[derive(Debug)]
pub(super) enum Language {
    Blk(blk::Blk),
    Scsi(Box<Scsi>),
}

impl Language {
    /// What is spoken in this protocol. `run` tells keys of this run from another's.
    pub(super) fn new(protocol: Protocol, durability: Durability, run: u64) -> Self {
        match protocol {
            Protocol::Blk => Self::Blk(blk::Blk::new(durability)),
            Protocol::Scsi => Self::Scsi(Box::new(Scsi::new(run, durability))),
        }
    }

    /// Queues of the device before those for requests.
    pub(super) fn other_queues(&self) -> u16 {
        match self {
            Self::Blk(_) => 0,
            Self::Scsi(_) => super::scsi::OTHER_QUEUES,
        }
    }

    pub(super) fn features(&self) -> Features {
        match self {
            Self::Blk(blk) => blk.features(),
            Self::Scsi(_) => super::scsi::FEATURES,
        }
    }

    /// Reads what the configuration space says.
    ///
    /// # Errors
    /// It is not what an earlier server has shown.
    pub(super) fn read_config(&mut self, session: &mut Session) -> Result<()> {
        match self {
            Self::Blk(blk) => blk.read_config(session),
            Self::Scsi(scsi) => scsi.read_config(session),
        }
    }

    /// Turns the write cache off where that is done by the configuration space, once; whoever serves later must know of it.
    pub(super) fn settle_cache(&mut self, session: &mut Session) -> Result<()> {
        match self {
            Self::Blk(blk) => blk.settle_cache(session),
            Self::Scsi(_) => Ok(()),
        }
    }

    /// What the disk is; `ask` makes requests before all others.
    pub(super) fn describe(&mut self, ask: &mut Ask<'_>) -> Result<Geometry> {
        match self {
            Self::Blk(blk) => blk.geometry(),
            Self::Scsi(scsi) => scsi.begin(ask),
        }
    }

    /// Says how a request looks, and puts data into `data` that is not the disk's.
    pub(super) fn encode(&mut self, request: &Request, rng: &mut Rng, data: &mut [u8]) -> Wanted {
        match self {
            Self::Blk(_) => blk::encode(request, data),
            Self::Scsi(scsi) => scsi.encode(request, rng, data),
        }
    }

    /// Judges an answer.
    ///
    /// # Errors
    /// It is none that the device may give.
    pub(super) fn judge(&mut self, request: &Request, answer: &[u8], how: Answered) -> Result<Verdict> {
        match self {
            Self::Blk(_) => blk::judge(request, answer, how.written),
            Self::Scsi(scsi) => scsi.judge(request, answer, how),
        }
    }

    /// Judges what a question has brought that was asked at some moment; `earlier` as of [`Answered`].
    pub(super) fn judge_data(&mut self, question: Question, data: &[u8], moment: usize, earlier: bool) -> Result<()> {
        match self {
            Self::Blk(blk) => blk.judge_serial(data),
            Self::Scsi(scsi) => scsi.judge_data(question, data, moment, earlier),
        }
    }

    /// What is told apart in time by those that judge what they see late.
    pub(super) fn moment(&self) -> usize {
        match self {
            Self::Blk(_) => 0,
            Self::Scsi(scsi) => scsi.moment(),
        }
    }

    /// What a disk can be asked.
    pub(super) fn questions(&self) -> &'static [Question] {
        match self {
            Self::Blk(_) => &[Question::Serial],
            Self::Scsi(_) => super::scsi::QUESTIONS,
        }
    }

    /// Whether a change of reservations may be made now.
    pub(super) fn may_reserve(&self) -> bool {
        matches!(self, Self::Scsi(scsi) if scsi.may_reserve())
    }

    /// A connection begins; `power_lost`: another server's than before.
    pub(super) fn begin_life(&mut self, power_lost: bool) {
        if let Self::Scsi(scsi) = self {
            scsi.begin_life(power_lost);
        }
    }

    /// All answers from before this connection have been seen.
    pub(super) fn earlier_is_over(&mut self) {
        if let Self::Scsi(scsi) = self {
            scsi.earlier_is_over();
        }
    }

    /// Everything has come back: fails if something is missing that must have been said.
    pub(super) fn check_settled(&self) -> Result<()> {
        match self {
            Self::Blk(_) => Ok(()),
            Self::Scsi(scsi) => scsi.check_settled(),
        }
    }
}
