//! The packet filter of an announcement's socket: only what claims one of its own addresses wakes the daemon. Without it
//! every announced pod would read every other pod's broadcasts.

use std::net::IpAddr;

use libc::sock_filter;

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Of a frame that is taken, this much is read.
const TAKEN: u32 = 128;
/// Further addresses of one interface are announced and not listened for: jumps reach 255 instructions.
const MOST: usize = 60;

const ETHERTYPE: u32 = 12;
const ARP_SENDER: u32 = 28;
const NEXT_HEADER: u32 = 20;
const ICMPV6_TYPE: u32 = 54;
const ADVERTISED: u32 = 62;

const fn load(code: u16, at: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k: at }
}

/// Skips so many instructions unless it is this value.
const fn unless(value: u32, skip: u8) -> sock_filter {
    sock_filter { code: JUMP_IF, jt: 0, jf: skip, k: value }
}

/// Skips the next instruction if it is this value.
const fn only(value: u32) -> sock_filter {
    sock_filter { code: JUMP_IF, jt: 1, jf: 0, k: value }
}

const fn answer(bytes: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: bytes }
}

/// ARP from one of these addresses, or a neighbour advertisement of one.
pub(super) fn claims_of(addresses: &[IpAddr]) -> Vec<sock_filter> {
    let mut arp = vec![load(LOAD_WORD, ARP_SENDER)];
    let mut advertised = vec![
        only(0x86dd),
        answer(0),
        load(LOAD_BYTE, NEXT_HEADER),
        unless(58, 2),
        load(LOAD_BYTE, ICMPV6_TYPE),
        only(136),
        answer(0),
    ];
    for address in addresses.iter().take(MOST) {
        match address {
            IpAddr::V4(v4) => arp.extend([unless(u32::from(*v4), 1), answer(TAKEN)]),
            IpAddr::V6(v6) => {
                let bits = v6.to_bits();
                for (word, (at, skip)) in [(ADVERTISED, 7), (66, 5), (70, 3), (74, 1)].into_iter().enumerate()
                {
                    let value = u32::try_from((bits >> (96 - 32 * word)) & 0xffff_ffff).unwrap_or(0);
                    advertised.extend([load(LOAD_WORD, at), unless(value, skip)]);
                }
                advertised.push(answer(TAKEN));
            }
        }
    }
    arp.push(answer(0));
    advertised.push(answer(0));
    let over_arp = u8::try_from(arp.len()).unwrap_or(u8::MAX);
    let mut program = vec![load(LOAD_HALF, ETHERTYPE), unless(0x0806, over_arp)];
    program.extend(arp);
    program.extend(advertised);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The few instructions that the filter is made of.
    fn run(program: &[sock_filter], frame: &[u8]) -> u32 {
        let (mut at, mut register) = (0, 0u32);
        loop {
            let op = program[at];
            let from = op.k as usize;
            at += 1;
            match op.code {
                LOAD_WORD => register = u32::from_be_bytes(frame[from..from + 4].try_into().unwrap()),
                LOAD_HALF => register = u16::from_be_bytes(frame[from..from + 2].try_into().unwrap()).into(),
                LOAD_BYTE => register = frame[from].into(),
                JUMP_IF => at += usize::from(if register == op.k { op.jt } else { op.jf }),
                _ => return op.k,
            }
        }
    }

    fn arp(sender: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; 128];
        frame[12..14].copy_from_slice(&[8, 6]);
        frame[28..32].copy_from_slice(&sender);
        frame
    }

    fn advertisement(kind: u8, target: &str) -> Vec<u8> {
        let mut frame = vec![0; 128];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[20] = 58;
        frame[54] = kind;
        frame[62..78].copy_from_slice(&target.parse::<std::net::Ipv6Addr>().unwrap().octets());
        frame
    }

    #[test]
    fn only_what_claims_one_of_the_addresses_is_taken() {
        let addresses = ["10.1.0.5", "fd00::5", "10.1.0.6", "fd00:1::6"].map(|a| a.parse().unwrap());
        let program = claims_of(&addresses);
        for (frame, taken) in [
            (arp([10, 1, 0, 5]), true),
            (arp([10, 1, 0, 6]), true),
            (arp([10, 1, 0, 7]), false),
            (arp([0, 0, 0, 0]), false),
            (advertisement(136, "fd00::5"), true),
            (advertisement(136, "fd00:1::6"), true),
            (advertisement(136, "fd00::6"), false),
            (advertisement(135, "fd00::5"), false),
            (vec![0; 128], false),
        ] {
            assert_eq!(run(&program, &frame) > 0, taken, "{frame:?}");
        }
    }

    #[test]
    fn a_great_many_addresses_make_a_filter_that_the_kernel_can_jump_through() {
        let many: Vec<IpAddr> = (0..500).map(|n| IpAddr::V4((0x0a01_0000u32 + n).into())).collect();
        let program = claims_of(&many);
        assert!(run(&program, &arp([10, 1, 0, 59])) > 0);
        assert_eq!(run(&program, &arp([10, 1, 0, 70])), 0);
    }
}
