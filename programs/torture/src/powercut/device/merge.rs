//! What a load says that it asked for, and what a kernel says that it wrote, in one order.
//!
//! Each event of the load's tape has left its number as a mark in the kernel's log. Requests are marked before the volume knows of
//! them, answers once they were given: in the log the former stand in front of all that they have caused, the latter behind all
//! that they promise.

use anyhow::{Context, Result, bail, ensure};

use super::log::{Entry, What};
use crate::powercut::stamp::SECTOR_BYTES;
use crate::powercut::trace::{Event, LowerWrite, Trace};

/// The longest piece of a range that was given back, in bytes: what a trace can say in one write.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// The tape of a load, whose only device it does not tell of, with what the device's log tells.
pub(super) fn merge(mut tape: Trace, log: Vec<Entry>) -> Result<Trace> {
    let own = std::mem::take(&mut tape.events);
    let mut own = (1_u32..).zip(own);
    let mut flushes = 0;
    for entry in log {
        if entry.flush {
            tape.events.push(Event::Flushing { device: 0, flush: flushes });
            tape.events.push(Event::FlushDone { device: 0, flush: flushes });
            flushes += 1;
        }
        match entry.what {
            What::Nothing => {}
            What::Mark(text) => {
                let (number, event) = own.next().with_context(|| format!("nobody knows of the mark `{text}`"))?;
                ensure!(text == number.to_string(), "the mark {number} is missing: `{text}` stands in its place");
                tape.events.push(event);
            }
            What::Write { offset, data, durable } => {
                let start = tape.data.len() as u64;
                let bytes = u32::try_from(data.len()).context("a write that is too long for a trace")?;
                tape.data.extend_from_slice(&data);
                write(&mut tape, LowerWrite { device: 0, offset, bytes, data: Some(start), durable })?;
            }
            What::Discard { offset, bytes } => {
                // The device below gives zeroes back, as `check_end` sees.
                let end = offset.checked_add(bytes).context("a range behind any device's end")?;
                for from in (offset..end).step_by(DISCARD_BYTES_MAX as usize) {
                    let bytes = DISCARD_BYTES_MAX.min(end - from) as u32;
                    write(&mut tape, LowerWrite { device: 0, offset: from, bytes, data: None, durable: false })?;
                }
            }
        }
    }
    let missing = own.count();
    ensure!(missing == 0, "the last {missing} events of the load are not in the log");
    Ok(tape)
}

fn write(trace: &mut Trace, write: LowerWrite) -> Result<()> {
    let LowerWrite { offset, bytes, .. } = write;
    let len = trace.before.first().map_or(0, Vec::len) as u64;
    let inside = offset.checked_add(u64::from(bytes)).is_some_and(|end| end <= len);
    let whole = (offset | u64::from(bytes)).is_multiple_of(SECTOR_BYTES as u64);
    ensure!(inside && whole, "a write of {bytes} bytes at {offset} to a device of {len}");
    let number = trace.writes.len() as u32;
    trace.writes.push(write);
    trace.events.push(Event::Written { write: number });
    trace.events.push(Event::WriteDone { write: number });
    Ok(())
}

/// Fails unless all that the trace tells leads to what the device holds at the end: else a cut would be made from a log that
/// tells something else than what has happened.
pub(super) fn check_end(trace: &Trace, after: &[u8]) -> Result<()> {
    let mut device = trace.before.first().cloned().unwrap_or_default();
    for write in &trace.writes {
        let range = &mut device[write.offset as usize..][..write.bytes as usize];
        match trace.data_of(write) {
            Some(data) => range.copy_from_slice(data),
            None => range.fill(0),
        }
    }
    ensure!(device.len() == after.len(), "the device had {} bytes and has {}", device.len(), after.len());
    let sectors = device.chunks(SECTOR_BYTES).zip(after.chunks(SECTOR_BYTES));
    let mut others = sectors.enumerate().filter(|(_, (told, found))| told != found);
    match others.find(|(sector, (_, found))| !may_hold(trace, *sector, found)) {
        None => Ok(()),
        Some((sector, _)) => {
            bail!("the kernel's log does not lead to what the device holds: sector {sector} is another")
        }
    }
}

/// Whether a sector may hold this at the end although the last that the kernel's log tells of it is something else.
///
/// Between two flushes the log has the order in which things were complete, and the device may have had another for what was
/// under way at once. Of one sector only a discard and a write are: the guest asks for both before one is answered, and
/// promises itself nothing of it.
fn may_hold(trace: &Trace, sector: usize, found: &[u8]) -> bool {
    let start = (sector * SECTOR_BYTES) as u64;
    // What was done to the sector since the last flush in front of the last of it.
    let (mut since, mut flushed) = (Vec::new(), false);
    for event in &trace.events {
        match event {
            Event::FlushDone { .. } => flushed = true,
            Event::Written { write } => {
                let write = &trace.writes[*write as usize];
                if (write.offset..write.offset + u64::from(write.bytes)).contains(&start) {
                    if std::mem::take(&mut flushed) {
                        since.clear();
                    }
                    since.push(
                        trace.data_of(write).map(|data| &data[(start - write.offset) as usize..][..SECTOR_BYTES]),
                    );
                }
            }
            _ => {}
        }
    }
    let holds = |done: &Option<&[u8]>| done.map_or_else(|| found.iter().all(|byte| *byte == 0), |data| data == found);
    since.iter().any(Option::is_none) && since.iter().any(Option::is_some) && since.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::powercut::trace::tests::trace;

    const DEVICE_BYTES: usize = 4 * SECTOR_BYTES;

    fn tape(events: &[Event]) -> Trace {
        let mut tape = trace(&[vec![1; DEVICE_BYTES]]);
        tape.events = events.to_vec();
        tape
    }

    fn entry(what: What) -> Entry {
        Entry { flush: false, what }
    }

    fn mark(number: u32) -> Entry {
        entry(What::Mark(number.to_string()))
    }

    #[test]
    fn events_stand_where_their_marks_do() {
        let own = [Event::Asked { operation: 1 }, Event::Answered { operation: 1 }];
        let log = vec![
            mark(1),
            entry(What::Write { offset: 512, data: vec![2; 512], durable: false }),
            Entry { flush: true, what: What::Discard { offset: 1024, bytes: 1024 } },
            mark(2),
        ];
        let merged = merge(tape(&own), log).unwrap();
        let expected = [
            Event::Asked { operation: 1 },
            Event::Written { write: 0 },
            Event::WriteDone { write: 0 },
            Event::Flushing { device: 0, flush: 0 },
            Event::FlushDone { device: 0, flush: 0 },
            Event::Written { write: 1 },
            Event::WriteDone { write: 1 },
            Event::Answered { operation: 1 },
        ];
        assert_eq!(format!("{:?}", merged.events), format!("{expected:?}"));

        let mut after = vec![1; DEVICE_BYTES];
        after[512..1024].fill(2);
        after[1024..].fill(0);
        check_end(&merged, &after).unwrap();
        after[0] = 9;
        assert!(check_end(&merged, &after).unwrap_err().to_string().contains("sector 0"));
    }

    #[test]
    fn a_discard_and_a_write_at_once_have_no_order() {
        let write = |byte| entry(What::Write { offset: 512, data: vec![byte; 512], durable: false });
        let discard = || entry(What::Discard { offset: 512, bytes: 512 });
        let flush = || Entry { flush: true, what: What::Nothing };
        let leads_to = |log: Vec<Entry>, byte: u8| {
            let merged = merge(tape(&[]), log).unwrap();
            let mut after = vec![1; DEVICE_BYTES];
            after[512..1024].fill(byte);
            check_end(&merged, &after).is_ok()
        };
        assert!(leads_to(vec![discard(), write(2), flush()], 2));
        assert!(leads_to(vec![discard(), write(2), flush()], 0), "the discard was the last at the device");
        assert!(leads_to(vec![write(2), discard(), flush()], 2), "the write was");
        assert!(!leads_to(vec![discard(), write(2), flush()], 3), "nobody wrote that");
        assert!(!leads_to(vec![discard(), flush(), write(2), flush()], 0), "a flush was between them");
        assert!(!leads_to(vec![write(2), flush(), discard()], 2));
        assert!(!leads_to(vec![write(2), write(3), flush()], 2), "two writes are never under way at once");
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let own = [Event::Asked { operation: 1 }, Event::Closed];
        let complaint = |log: Vec<Entry>| format!("{:#}", merge(tape(&own), log).unwrap_err());
        assert!(complaint(vec![mark(1)]).contains("the last 1 events"));
        assert!(complaint(vec![mark(2), mark(1)]).contains("the mark 1 is missing"));
        assert!(complaint(vec![mark(1), mark(2), mark(3)]).contains("nobody knows of the mark `3`"));
        let write = |offset, bytes| entry(What::Write { offset, data: vec![0; bytes], durable: true });
        assert!(complaint(vec![write(2048, 512)]).contains("to a device of 2048"));
        assert!(complaint(vec![write(u64::MAX - 511, 512)]).contains("to a device of 2048"));
        assert!(complaint(vec![write(100, 512)]).contains("to a device of 2048"));
    }
}
