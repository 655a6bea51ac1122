//! A hash of a text that is the same for every daemon, whatever it was built with: for names whose own text is too long. It is no
//! protection from somebody who looks for two texts with one hash.

/// The 64-bit FNV-1a hash (IETF draft-eastlake-fnv).
pub fn fnv1a(text: &str) -> u64 {
    let next = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_those_of_the_draft() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv1a(text), hash);
        }
    }
}
