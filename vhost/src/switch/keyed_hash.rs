//! The hash of the address tables: multiply and shift with a secret key.
//!
//! Guests choose the addresses that are hashed. With a hash that they can compute they could fill one chain of the table and have
//! every neighbour's frame wait for its end; so the factor and the summand are secret and random for each table. The function
//! `(a·x + b mod 2¹²⁸) >> 64` for 64-bit `x` is strongly universal (Dietzfelbinger, "Universal hashing and k-wise independent random
//! variables via integer arithmetic without primes", 1996): whatever two addresses a guest takes, they collide as rarely as chance has
//! it. It costs two multiplications, where std's SipHash takes some 20 ns.
//!
//! It hashes one `u64` and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table by `u64` whose hash is keyed.
pub(super) type KeyedMap<V> = HashMap<u64, V, HashKey>;

/// The secret of one table.
#[derive(Clone)]
pub(super) struct HashKey {
    factor: u128,
    summand: u128,
}

impl HashKey {
    /// A new secret, of the random numbers that std gives its tables (getrandom(2), once in a thread).
    pub(super) fn random() -> HashKey {
        HashKey { factor: random_number(), summand: random_number() }
    }
}

fn random_number() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0_u8));
    half() << 64 | half()
}

impl BuildHasher for HashKey {
    type Hasher = KeyedHasher;

    #[inline]
    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { factor: self.factor, sum: self.summand }
    }
}

/// The hash of one `u64` in the making.
pub(super) struct KeyedHasher {
    factor: u128,
    sum: u128,
}

impl Hasher for KeyedHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.sum = self.factor.wrapping_mul(u128::from(number)).wrapping_add(self.sum);
    }

    /// Not used: a key is one `u64`. Other bytes are hashed one by one, so that the trait is kept.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[allow(clippy::cast_possible_truncation)] // the upper half of 128 bits has 64
    #[inline]
    fn finish(&self) -> u64 {
        (self.sum >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tables_hash_the_same_address_differently() {
        let (one, other) = (HashKey::random(), HashKey::random());
        let equal = (0..1_000_u64).filter(|n| one.hash_one(n) == other.hash_one(n)).count();
        assert_eq!(equal, 0);
        assert_eq!(one.hash_one(7_u64), one.hash_one(7_u64));
    }

    #[test]
    fn addresses_in_a_row_spread_over_both_ends_of_the_hash_with_most_keys() {
        let fullest_of_128 = |key: &HashKey, shift: u32| {
            let mut filled = [0_u32; 128];
            for address in 0..12_800_u64 {
                filled[(key.hash_one(0x0200_0000_0000_u64 + address) >> shift & 127) as usize] += 1;
            }
            filled.into_iter().max()
        };
        for shift in [0, 57] {
            let keys = (0..32).map(|_| HashKey::random());
            let even = keys.filter(|key| fullest_of_128(key, shift) < Some(400)).count();
            assert!(even >= 28, "with {even} of 32 keys no part has four times its share (shift {shift})");
        }
    }
}
