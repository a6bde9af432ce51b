//! AES-XTS (IEEE 1619) with the sector's number as the tweak, as `aes-xts-plain64` of the kernel.
//!
//! All blocks of a batch go to the cipher at once: a processor with AES instructions works on eight or more of them side by side, and
//! one sector of 512 bytes has 32.

use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit, consts::U16};
use aes::{Aes128, Aes256};

/// Bytes of a block of AES.
const BLOCK_BYTES: usize = 16;
/// Blocks of a batch: 4 KiB, so that data and tweaks stay in the nearest cache.
const BATCH: usize = 256;
/// Unit in which tweaks count, in bytes, whatever the sector.
const TWEAK_UNIT: usize = 512;
/// Least sector, in bytes.
const SECTOR_MIN: usize = 512;
/// Largest sector, in bytes.
const SECTOR_MAX: usize = BATCH * BLOCK_BYTES;

/// Whether there are sectors of so many bytes.
pub fn is_sector(bytes: usize) -> bool {
    bytes.is_power_of_two() && (SECTOR_MIN..=SECTOR_MAX).contains(&bytes)
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To ciphertext.
    Encrypt,
    /// To plaintext.
    Decrypt,
}

/// Both keys of a container, expanded; they are wiped when it is dropped.
pub struct Xts(Keys);

enum Keys {
    Aes128(Box<Pair<Aes128>>),
    Aes256(Box<Pair<Aes256>>),
}

struct Pair<C> {
    data: C,
    tweak: C,
}

impl Xts {
    /// Lengths of keys, in bytes: both halves of AES-128, or of AES-256.
    pub const KEY_BYTES: [usize; 2] = [32, 64];

    /// With the two keys that `key` has; `None` for a length that is none of [`Xts::KEY_BYTES`].
    pub fn new(key: &[u8]) -> Option<Xts> {
        let (data, tweak) = key.split_at(key.len() / 2);
        let keys = match key.len() {
            32 => Keys::Aes128(Box::new(Pair::new(data, tweak)?)),
            64 => Keys::Aes256(Box::new(Pair::new(data, tweak)?)),
            _ => return None,
        };
        Some(Xts(keys))
    }

    /// Encrypts or decrypts, in place, whole sectors of `sector` bytes that begin with the tweak `first`, which counts in units of 512
    /// bytes.
    pub fn run(&self, direction: Direction, bytes: &mut [u8], first: u64, sector: usize) {
        debug_assert!(is_sector(sector));
        debug_assert!(bytes.len().is_multiple_of(sector));
        match &self.0 {
            Keys::Aes128(pair) => pair.run(direction, bytes, first, sector),
            Keys::Aes256(pair) => pair.run(direction, bytes, first, sector),
        }
    }
}

impl<C> Pair<C>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>,
{
    fn new(data: &[u8], tweak: &[u8]) -> Option<Pair<C>> {
        Some(Pair { data: C::new_from_slice(data).ok()?, tweak: C::new_from_slice(tweak).ok()? })
    }

    fn run(&self, direction: Direction, bytes: &mut [u8], first: u64, sector: usize) {
        let (of_sector, step) = (sector / BLOCK_BYTES, (sector / TWEAK_UNIT) as u64);
        let mut number = first;
        let mut tweaks = [0u128; BATCH];
        for batch in bytes.chunks_mut(BATCH * BLOCK_BYTES) {
            let mut firsts = [Block::<C>::default(); BATCH * BLOCK_BYTES / SECTOR_MIN];
            let firsts = &mut firsts[..batch.len() / sector];
            for first in &mut *firsts {
                first[..8].copy_from_slice(&number.to_le_bytes());
                number = number.wrapping_add(step);
            }
            self.tweak.encrypt_blocks(firsts);
            for (first, tweaks) in firsts.iter().zip(tweaks.chunks_exact_mut(of_sector)) {
                let mut tweak = u128::from_le_bytes((*first).into());
                for place in tweaks {
                    *place = tweak;
                    // Times the primitive element of the field.
                    tweak = (tweak << 1) ^ (0x87 * (tweak >> 127));
                }
            }
            let (blocks, _) = Block::<C>::slice_as_chunks_mut(batch);
            xor(blocks, &tweaks);
            match direction {
                Direction::Encrypt => self.data.encrypt_blocks(blocks),
                Direction::Decrypt => self.data.decrypt_blocks(blocks),
            }
            xor(blocks, &tweaks);
        }
    }
}

fn xor<B>(blocks: &mut [B], tweaks: &[u128])
where
    B: Copy + Into<[u8; BLOCK_BYTES]> + From<[u8; BLOCK_BYTES]>,
{
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        let bytes: [u8; BLOCK_BYTES] = (*block).into();
        *block = (u128::from_le_bytes(bytes) ^ tweak).to_le_bytes().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::cipher::{Array, BlockCipherEncrypt};
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// The standard's text, block by block.
    fn slowly(key: &[u8], bytes: &mut [u8], tweak: u64) {
        let (data, second) = key.split_at(key.len() / 2);
        let encrypt = |key: &[u8], block: &[u8; 16]| {
            let mut block = Array::from(*block);
            match key.len() {
                16 => Aes128::new_from_slice(key).unwrap().encrypt_block(&mut block),
                _ => Aes256::new_from_slice(key).unwrap().encrypt_block(&mut block),
            }
            <[u8; 16]>::from(block)
        };
        let mut tweak = encrypt(second, &u128::from(tweak).to_le_bytes());
        for block in bytes.chunks_mut(16) {
            let mixed: [u8; 16] = std::array::from_fn(|at| block[at] ^ tweak[at]);
            let out = encrypt(data, &mixed);
            block.iter_mut().enumerate().for_each(|(at, byte)| *byte = out[at] ^ tweak[at]);
            let mut carry = 0;
            for byte in &mut tweak {
                let next = *byte >> 7;
                *byte = (*byte << 1) | carry;
                carry = next;
            }
            tweak[0] ^= if carry == 1 { 0x87 } else { 0 };
        }
    }

    /// IEEE 1619-2007, annex B: vectors 1 to 3 have 32 bytes, and none is a whole sector, so that the slow way is checked with them, and
    /// the fast one with that; vector 4 and 10 are the first blocks of sectors of 512 bytes.
    #[test]
    fn the_standards_vectors_come_out() {
        let ones = [[0x11; 16], [0x22; 16]].concat();
        for (key, tweak, plain, cipher) in [
            (vec![0; 32], 0, vec![0; 32], "917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e"),
            (ones, 0x33_3333_3333, vec![0x44; 32], "c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0"),
            (
                hex("fffefdfcfbfaf9f8f7f6f5f4f3f2f1f022222222222222222222222222222222"),
                0x33_3333_3333,
                vec![0x44; 32],
                "af85336b597afc1a900b2eb21ec949d292df4c047e0b21532186a5971a227a89",
            ),
        ] {
            let mut bytes = plain;
            slowly(&key, &mut bytes, tweak);
            assert_eq!(bytes, hex(cipher));
        }
        let counting: Vec<u8> = (0..512).map(|at| at as u8).collect();
        for (key, tweak, cipher) in [
            (
                "2718281828459045235360287471352631415926535897932384626433832795",
                0,
                "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c",
            ),
            (
                "27182818284590452353602874713526624977572470936999595749669676273141592653589793238462643383279502884197169399375105820974944592",
                0xff,
                "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
            ),
        ] {
            let mut bytes = counting.clone();
            let xts = Xts::new(&hex(key)).unwrap();
            xts.run(Direction::Encrypt, &mut bytes, tweak, 512);
            assert_eq!(bytes[..32], hex(cipher));
            xts.run(Direction::Decrypt, &mut bytes, tweak, 512);
            assert_eq!(bytes, counting);
        }
    }

    #[test]
    fn keys_have_two_lengths() {
        for bytes in 0..100 {
            assert_eq!(Xts::new(&vec![1; bytes]).is_some(), Xts::KEY_BYTES.contains(&bytes), "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn sectors_come_out_as_block_by_block(
            wide: bool, sector in 9u32..13, sectors in 1usize..20, first: u64, seed in 1u64..,
        ) {
            let mut random = testkit::Rng(seed);
            let mut noise = |bytes: usize| (0..bytes).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
            let (key, sector) = (noise(if wide { 64 } else { 32 }), 1usize << sector);
            let plain = noise(sector * sectors);
            let xts = Xts::new(&key).unwrap();
            let mut fast = plain.clone();
            xts.run(Direction::Encrypt, &mut fast, first, sector);
            let mut slow = plain.clone();
            for (number, sector_bytes) in slow.chunks_mut(sector).enumerate() {
                slowly(&key, sector_bytes, first.wrapping_add((number * sector / 512) as u64));
            }
            prop_assert_eq!(&fast, &slow);
            xts.run(Direction::Decrypt, &mut fast, first, sector);
            prop_assert_eq!(fast, plain);
        }

        #[test]
        fn two_places_never_encrypt_alike(one: u64, other: u64, fill: u8) {
            prop_assume!(one != other);
            let xts = Xts::new(&[[1; 32], [2; 32]].concat()).unwrap();
            let at = |tweak| {
                let mut bytes = [fill; 512];
                xts.run(Direction::Encrypt, &mut bytes, tweak, 512);
                bytes
            };
            let (one, other) = (at(one), at(other));
            prop_assert!(one.chunks(16).zip(other.chunks(16)).all(|(one, other)| one != other));
        }
    }
}
