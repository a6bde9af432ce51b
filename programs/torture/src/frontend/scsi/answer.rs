//! Responses of virtio-scsi (virtio 1.3, 5.6.6.1) and sense data (SPC-5, "Sense data"), taken apart here and not by the server's rooms.

use std::fmt;

use anyhow::{Context, Result, ensure};
use frontkit::scsi::response::{RESIDUAL_AT, RESPONSE_AT, SENSE_AT, SENSE_LEN_AT, STATUS_AT};

use crate::frontend::ring::UNANSWERED;

/// Where the status qualifier stands, of 16 bits.
const QUALIFIER_AT: usize = 8;
/// Fixed format, of a command that has just ended, and its length.
const FIXED_CURRENT: u8 = 0x70;
const FIXED_BYTES: usize = 18;
/// Status codes (SAM-5, "Status codes").
pub(super) const GOOD: u8 = 0x00;
pub(super) const CHECK_CONDITION: u8 = 0x02;

/// Key, additional code and qualifier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sense {
    pub(super) key: u8,
    pub(super) code: (u8, u8),
}

/// What a device has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) code: u8,
    pub(super) status: u8,
    pub(super) residual: u32,
    /// Of CHECK CONDITION.
    pub(super) sense: Option<Sense>,
}

impl fmt::Debug for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}h {:02x}h/{:02x}h", self.key, self.code.0, self.code.1)
    }
}

impl Response {
    /// Takes an answer apart.
    ///
    /// # Errors
    /// It is none, or says one thing here and another there.
    pub(super) fn of(answer: &[u8]) -> Result<Self> {
        let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let byte = |at: usize| answer.get(at).copied();
        let (code, status) = byte(RESPONSE_AT).zip(byte(STATUS_AT)).context("has no response")?;
        ensure!(code != UNANSWERED, "was completed without a response: it came before it was served");
        let (len, residual) = word(SENSE_LEN_AT).zip(word(RESIDUAL_AT)).context("has no response")?;
        ensure!(answer[QUALIFIER_AT..][..2] == [0, 0], "has a status qualifier: {answer:02x?}");
        let sense = &answer[SENSE_AT..];
        let (told, rest) = sense.split_at_checked(len as usize).context("has more sense data than there is room")?;
        ensure!(rest.iter().all(|byte| *byte == 0), "has something behind its sense data: {answer:02x?}");
        let has_sense = (code, status) == (0, CHECK_CONDITION);
        ensure!(
            has_sense != told.is_empty(),
            "has {len} bytes of sense data with response {code}, status {status:02x}h"
        );
        let sense = if has_sense { Some(Sense::of(told)?) } else { None };
        Ok(Self { code, status, residual, sense })
    }
}

impl Sense {
    fn of(data: &[u8]) -> Result<Self> {
        let data: &[u8; FIXED_BYTES] = data.try_into().with_context(|| format!("has sense data {data:02x?}"))?;
        // INFORMATION may be valid (bit 7). FILEMARK, EOM, ILI and SDAT_OVFL are no disk's.
        ensure!(data[0] & 0x7f == FIXED_CURRENT, "has sense data in another format than the fixed one: {data:02x?}");
        ensure!(data[2] & 0xf0 == 0, "has flags of other devices in its sense data: {data:02x?}");
        ensure!(usize::from(data[7]) + 8 == FIXED_BYTES, "has sense data that lies about its length: {data:02x?}");
        Ok(Self { key: data[2], code: (data[12], data[13]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u8, status: u8, residual: u32, sense: &[u8]) -> Vec<u8> {
        let mut answer = vec![0; SENSE_AT + 96];
        answer[SENSE_LEN_AT] = sense.len() as u8;
        answer[RESIDUAL_AT..][..4].copy_from_slice(&residual.to_le_bytes());
        (answer[RESPONSE_AT], answer[STATUS_AT]) = (code, status);
        answer[SENSE_AT..][..sense.len()].copy_from_slice(sense);
        answer
    }

    const RESET: [u8; 18] = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];

    #[test]
    fn what_an_answer_says_is_found() {
        let good = Response::of(&answer(0, GOOD, 7, &[])).unwrap();
        assert_eq!(good, Response { code: 0, status: GOOD, residual: 7, sense: None });
        let told = Response::of(&answer(0, CHECK_CONDITION, 0, &RESET)).unwrap();
        assert_eq!(told.sense, Some(Sense { key: 6, code: (0x29, 0) }));
    }

    #[test]
    fn answers_that_contradict_themselves_are_none() {
        let with = |at: usize, value: u8| {
            let mut answer = answer(0, CHECK_CONDITION, 0, &RESET);
            answer[at] = value;
            answer
        };
        for wrong in [
            answer(0, GOOD, 0, &RESET),
            answer(0, CHECK_CONDITION, 0, &[]),
            answer(3, CHECK_CONDITION, 0, &RESET),
            vec![UNANSWERED; SENSE_AT + 96],
            with(QUALIFIER_AT, 1),
            with(SENSE_AT, 0x72),
            with(SENSE_AT + 7, 11),
            with(SENSE_AT + 2, 0x86),
            with(SENSE_AT + 18, 1),
            with(SENSE_LEN_AT, 200),
            Vec::new(),
        ] {
            assert!(Response::of(&wrong).is_err(), "{wrong:02x?}");
        }
    }
}
