//! A virtio device behind registers in memory (virtio 1.3, section 4.2), as far as a device with one queue needs it.

use anyhow::{Result, bail, ensure};

use super::doorbell::Doorbell;
use super::qtest::Qtest;

/// Offsets of registers (4.2.2).
mod register {
    pub(super) const MAGIC_VALUE: u64 = 0x000;
    pub(super) const VERSION: u64 = 0x004;
    pub(super) const DEVICE_ID: u64 = 0x008;
    pub(super) const DEVICE_FEATURES: u64 = 0x010;
    pub(super) const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub(super) const DRIVER_FEATURES: u64 = 0x020;
    pub(super) const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub(super) const QUEUE_SEL: u64 = 0x030;
    pub(super) const QUEUE_SIZE_MAX: u64 = 0x034;
    pub(super) const QUEUE_SIZE: u64 = 0x038;
    pub(super) const QUEUE_READY: u64 = 0x044;
    pub(super) const QUEUE_NOTIFY: u64 = 0x050;
    pub(super) const STATUS: u64 = 0x070;
    /// The lower halves of the addresses of descriptors, available and used ring; each upper half is behind its lower.
    pub(super) const QUEUE_ADDRESSES: [u64; 3] = [0x080, 0x090, 0x0a0];
}

/// "virt", and what is not a legacy device.
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// Device id of 9P (5.15.1).
const ID_9P: u32 = 9;
/// Bits of the status (2.1).
const ACKNOWLEDGE: u32 = 1;
const DRIVER: u32 = 2;
const DRIVER_OK: u32 = 4;
const FEATURES_OK: u32 = 8;
/// Where QEMU's machine `microvm` has its virtio devices, how far apart, and how many at most (`hw/i386/microvm` in its
/// sources).
const FIRST: u64 = 0xfeb0_0000;
const STRIDE: u64 = 0x200;
const COUNT: u64 = 24;

/// A device.
pub(super) struct Transport {
    qtest: Qtest,
    base: u64,
    status: u32,
}

impl Transport {
    /// Finds the 9p device of a `microvm`.
    pub(super) fn find(mut qtest: Qtest) -> Result<Self> {
        for base in (0..COUNT).map(|index| FIRST + index * STRIDE) {
            let seen = [register::MAGIC_VALUE, register::VERSION, register::DEVICE_ID].map(|at| qtest.read(base + at));
            let [magic, version, id] = seen;
            if (magic?, version?, id?) == (MAGIC, VERSION, ID_9P) {
                return Ok(Self { qtest, base, status: 0 });
            }
        }
        bail!("QEMU's machine has no 9p device at {FIRST:#x} or above: is it a microvm?")
    }

    fn read(&mut self, register: u64) -> Result<u32> {
        self.qtest.read(self.base + register)
    }

    fn write(&mut self, register: u64, value: u32) -> Result<()> {
        self.qtest.write(self.base + register, value)
    }

    fn advance(&mut self, bit: u32) -> Result<()> {
        self.status |= bit;
        self.write(register::STATUS, self.status)
    }

    /// Resets the device, and takes of its features what is in `needed` or `wanted`; those are what it gives.
    ///
    /// # Errors
    /// It does not have all that is needed.
    pub(super) fn negotiate(&mut self, needed: u64, wanted: u64) -> Result<u64> {
        self.write(register::STATUS, 0)?;
        self.advance(ACKNOWLEDGE)?;
        self.advance(DRIVER)?;
        let mut offered = 0;
        for half in 0..2 {
            self.write(register::DEVICE_FEATURES_SEL, half)?;
            offered |= u64::from(self.read(register::DEVICE_FEATURES)?) << (32 * half);
        }
        ensure!(offered & needed == needed, "the device offers features {offered:#x}, of which {needed:#x} are needed");
        let taken = offered & (needed | wanted);
        for half in 0..2 {
            self.write(register::DRIVER_FEATURES_SEL, half)?;
            self.write(register::DRIVER_FEATURES, (taken >> (32 * half)) as u32)?;
        }
        self.advance(FEATURES_OK)?;
        ensure!(self.read(register::STATUS)? & FEATURES_OK != 0, "the device does not agree to features {taken:#x}");
        Ok(taken)
    }

    /// Starts queue 0 with `size` descriptors, and the device. `addresses` are those of descriptors, available ring and
    /// used ring.
    pub(super) fn start(&mut self, size: u16, addresses: [u64; 3]) -> Result<()> {
        self.write(register::QUEUE_SEL, 0)?;
        let most = self.read(register::QUEUE_SIZE_MAX)?;
        ensure!(u32::from(size) <= most, "--depth: its queue has {most} descriptors, not {size}");
        self.write(register::QUEUE_SIZE, size.into())?;
        for (register, addr) in register::QUEUE_ADDRESSES.into_iter().zip(addresses) {
            self.write(register, addr as u32)?;
            self.write(register + 4, (addr >> 32) as u32)?;
        }
        self.write(register::QUEUE_READY, 1)?;
        self.advance(DRIVER_OK)
    }

    /// Leaves nothing but the register that tells the device of requests on queue 0.
    pub(super) fn into_doorbell(self) -> Doorbell {
        Doorbell::new(self.qtest, self.base + register::QUEUE_NOTIFY)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A machine whose device `index` is a 9p device with `features`, and what was written to it, in order.
    fn machine(index: u64, features: u64) -> (Qtest, JoinHandle<Vec<(u64, u32)>>) {
        let (here, there) = UnixStream::pair().unwrap();
        let base = FIRST + index * STRIDE;
        let qemu = thread::spawn(move || {
            let mut registers = BTreeMap::from([
                (register::MAGIC_VALUE, MAGIC),
                (register::VERSION, VERSION),
                (register::DEVICE_ID, ID_9P),
                (register::QUEUE_SIZE_MAX, 128),
            ]);
            let mut written = Vec::new();
            for line in BufReader::new(there.try_clone().unwrap()).lines() {
                let line = line.unwrap();
                let words: Vec<&str> = line.split(' ').collect();
                let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
                let at = number(words[1]).wrapping_sub(base);
                let answer = match (words[0], words.get(2)) {
                    ("writel", Some(value)) => {
                        let value = number(value) as u32;
                        registers.insert(at, value);
                        written.push((at, value));
                        "OK\n".to_owned()
                    }
                    ("readl", None) => {
                        let half = registers.get(&register::DEVICE_FEATURES_SEL).copied().unwrap_or(0);
                        registers.insert(register::DEVICE_FEATURES, (features >> (32 * half)) as u32);
                        format!("OK 0x{:016x}\n", registers.get(&at).copied().unwrap_or(0))
                    }
                    _ => "FAIL Unknown command\n".to_owned(),
                };
                (&there).write_all(answer.as_bytes()).unwrap();
            }
            written
        });
        (Qtest::new(here).unwrap(), qemu)
    }

    const NEEDED: u64 = 1 << 32;

    #[test]
    fn a_device_is_found_and_started_in_the_order_that_virtio_demands() {
        let (qtest, qemu) = machine(3, NEEDED | 0b101);
        let mut transport = Transport::find(qtest).unwrap();
        assert_eq!(transport.negotiate(NEEDED, 0b110).unwrap(), NEEDED | 0b100);
        transport.start(64, [0x20_0000, 0x1_0020_0400, 0x20_0800]).unwrap();
        drop(transport);
        let written = qemu.join().unwrap();
        let to = |wanted: u64| -> Vec<u32> {
            written.iter().filter(|(at, _)| *at == wanted).map(|(_, value)| *value).collect()
        };
        assert_eq!(to(register::STATUS), [0, 1, 3, 11, 15]);
        assert_eq!(to(register::DRIVER_FEATURES), [0b100, 1]);
        assert_eq!(to(register::QUEUE_SIZE), [64]);
        assert_eq!((to(0x080), to(0x090), to(0x094)), (vec![0x20_0000], vec![0x20_0400], vec![1]));
        let place = |wanted: (u64, u32)| written.iter().position(|seen| *seen == wanted).unwrap();
        assert!(place((register::QUEUE_READY, 1)) > place((0x0a0, 0x20_0800)));
        assert_eq!(written.last(), Some(&(register::STATUS, 15)), "the device starts last");
    }

    #[test]
    fn a_device_that_cannot_do_is_named_with_what_it_lacks() {
        let (qtest, _qemu) = machine(COUNT, NEEDED);
        let error = Transport::find(qtest).err().unwrap().to_string();
        assert!(error.contains("no 9p device"), "{error}");
        let (qtest, _qemu) = machine(0, 1);
        let error = Transport::find(qtest).unwrap().negotiate(NEEDED, 0).unwrap_err().to_string();
        assert!(error.contains("0x100000000"), "{error}");
        let (qtest, _qemu) = machine(0, NEEDED);
        let error = Transport::find(qtest).unwrap().start(256, [0; 3]).unwrap_err().to_string();
        assert!(error.contains("128 descriptors"), "{error}");
    }
}
