//! The anti-forensic splitter: a key becomes stripes of which every one is needed, so that it is gone when any is overwritten.

use crate::kdf::Hash;
use zeroize::Zeroizing;

/// Mixes a block so that each of its bits depends on all bits of its part.
fn diffuse(hash: Hash, block: &mut [u8]) {
    let mut mixed = Zeroizing::new(vec![0; hash.bytes()]);
    for (number, part) in block.chunks_mut(hash.bytes()).enumerate() {
        hash.of(&[&(number as u32).to_be_bytes(), part], &mut mixed[..part.len()]);
        part.copy_from_slice(&mixed[..part.len()]);
    }
}

fn xor(block: &mut [u8], other: &[u8]) {
    block.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}

/// What all but the last stripe come to.
fn accumulated(hash: Hash, stripes: &[u8], key_bytes: usize) -> Zeroizing<Vec<u8>> {
    let mut block = Zeroizing::new(vec![0; key_bytes]);
    for stripe in stripes.chunks_exact(key_bytes) {
        xor(&mut block, stripe);
        diffuse(hash, &mut block);
    }
    block
}

/// The key that stripes are of, which has `key_bytes` bytes.
pub(crate) fn merge(hash: Hash, stripes: &[u8], key_bytes: usize) -> Zeroizing<Vec<u8>> {
    debug_assert!(key_bytes > 0 && stripes.len() >= key_bytes && stripes.len().is_multiple_of(key_bytes));
    let (rest, last) = stripes.split_at(stripes.len() - key_bytes);
    let mut key = accumulated(hash, rest, key_bytes);
    xor(&mut key, last);
    key
}

/// Makes the last stripe of a key; those before it are random.
pub(crate) fn split(hash: Hash, key: &[u8], stripes: &mut [u8]) {
    let (rest, last) = stripes.split_at_mut(stripes.len() - key.len());
    last.copy_from_slice(&accumulated(hash, rest, key.len()));
    xor(last, key);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Of keys as long as ciphers have them: a part of a key that is shorter than its hash by much has two inputs alike.
        #[test]
        fn what_is_split_is_merged_and_every_bit_counts(
            key in prop_oneof![Just(16usize), Just(24), Just(32), Just(48), Just(64)]
                .prop_flat_map(|bytes| proptest::collection::vec(any::<u8>(), bytes)),
            count in 1usize..20, seed: u64, flip: usize,
        ) {
            for hash in [Hash::Sha1, Hash::Sha256, Hash::Sha384, Hash::Sha512] {
                let mut random = testkit::Rng(seed | 1);
                let mut stripes: Vec<u8> = (0..key.len() * count).map(|_| random.below(256) as u8).collect();
                split(hash, &key, &mut stripes);
                prop_assert_eq!(&**merge(hash, &stripes, key.len()), &key[..]);
                let bit = flip % (stripes.len() * 8);
                stripes[bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(&**merge(hash, &stripes, key.len()), &key[..]);
            }
        }
    }
}
