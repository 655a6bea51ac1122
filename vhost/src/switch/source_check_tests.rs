//! Frames of guests that give themselves out as others, in all the places where they can.

use super::super::frame_head::HEAD_BYTES;
use super::*;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Whether a frame of OWN with this behind the source address passes.
fn passes(behind: &[u8]) -> bool {
    let frame = [&[0xff; 6], &OWN[..], behind].concat();
    let head = FrameHead::read(&frame[..frame.len().min(HEAD_BYTES)]).unwrap();
    check(&head, Some(number(OWN))).is_ok()
}

fn arp_of(sender: [u8; 6]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, 1], &sender[..], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat()
}

/// An IPv6 packet with its EtherType; `next` is the first header's kind.
fn ipv6_with(hop_limit: u8, next: u8, behind: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(behind.len()).unwrap().to_be_bytes();
    [&[0x86, 0xdd, 0x60, 0, 0, 0, high, low, next, hop_limit][..], &[0xfe; 32], behind].concat()
}

fn message(kind: u8, before_options: usize, options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; before_options];
    message[0] = kind;
    [&message, options].concat()
}

fn link_layer_option(kind: u8, address: [u8; 6]) -> Vec<u8> {
    [&[kind, 1], &address[..]].concat()
}

#[test]
fn a_group_address_as_source_never_passes() {
    let frame = [&OWN[..], &[3, 0, 0, 0, 0, 1, 8, 0]].concat();
    let head = FrameHead::read(&frame).unwrap();
    assert_eq!(check(&head, None), Err(Spoofed));
    assert_eq!(check(&head, Some(head.source)), Err(Spoofed));
}

#[test]
fn another_source_passes_only_where_it_is_not_checked() {
    let frame = [&OWN[..], &OTHER[..], &[8, 0]].concat();
    let head = FrameHead::read(&frame).unwrap();
    assert_eq!(check(&head, None), Ok(()));
    assert_eq!(check(&head, Some(number(OWN))), Err(Spoofed));
}

#[test]
fn arp_names_its_sender_truly_also_behind_tags() {
    for before in [&[][..], &[0x81, 0, 0, 5], &[0x81, 0, 0, 5, 0x81, 0, 0, 6]] {
        for ethertype in [&[0x08, 0x06], &[0x80, 0x35]] {
            assert!(passes(&[before, ethertype, &arp_of(OWN)].concat()));
            assert!(!passes(&[before, ethertype, &arp_of(OTHER)].concat()));
        }
    }
    assert!(!passes(&[&[0x08, 0x06][..], &arp_of(OWN)[..13]].concat()), "it ends in the sender's address");
    let mut long = arp_of(OWN);
    long[4] = 8;
    assert!(
        !passes(&[&[0x08, 0x06][..], &long].concat()),
        "with other lengths the sender's address lies elsewhere"
    );
}

#[test]
fn each_message_of_neighbour_discovery_names_its_own_link_layer_address() {
    for (kind, before, option) in [(133, 8, 1), (134, 16, 1), (135, 24, 1), (136, 24, 2), (137, 40, 2)] {
        let with = |address| {
            passes(&ipv6_with(255, 58, &message(kind, before, &link_layer_option(option, address))))
        };
        assert!(with(OWN), "type {kind}");
        assert!(!with(OTHER), "type {kind}");
        assert!(passes(&ipv6_with(255, 58, &message(kind, before, &[]))), "type {kind} without options");
        let nonce_first = [&[14, 1, 0, 0, 0, 0, 0, 0], &link_layer_option(option, OTHER)[..]].concat();
        assert!(
            !passes(&ipv6_with(255, 58, &message(kind, before, &nonce_first))),
            "type {kind}, second option"
        );
    }
}

#[test]
fn packets_that_receivers_do_not_take_for_discovery_pass() {
    let spoofed = message(136, 24, &link_layer_option(2, OTHER));
    assert!(passes(&ipv6_with(64, 58, &spoofed)), "routed packets are no discovery");
    assert!(passes(&ipv6_with(255, 17, &spoofed)), "UDP");
    assert!(passes(&ipv6_with(255, 58, &message(128, 8, &[0; 56]))), "an echo request");
}

#[test]
fn headers_before_the_message_do_not_hide_it() {
    let spoofed = message(136, 24, &link_layer_option(2, OTHER));
    let own = message(136, 24, &link_layer_option(2, OWN));
    for (kind, header) in [
        (0, vec![58, 0, 1, 4, 0, 0, 0, 0]),
        (60, vec![58, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (43, vec![58, 0, 0, 0, 0, 0, 0, 0]),
        (51, vec![58, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        assert!(!passes(&ipv6_with(255, kind, &[&header[..], &spoofed].concat())), "header {kind}");
        assert!(passes(&ipv6_with(255, kind, &[&header[..], &own].concat())), "header {kind}");
    }
    let beyond_the_head = [&[58, 20][..], &[0; 166], &own].concat();
    assert!(!passes(&ipv6_with(255, 60, &beyond_the_head)), "what can't be seen does not pass");
}

#[test]
fn discovery_in_fragments_is_dropped_and_other_fragments_pass() {
    let own = message(136, 24, &link_layer_option(2, OWN));
    let first = [&[58, 0, 0, 1, 0, 0, 0, 9][..], &own].concat();
    assert!(!passes(&ipv6_with(255, 44, &first)));
    let echo = [&[58, 0, 0, 1, 0, 0, 0, 9][..], &message(128, 8, &[])].concat();
    assert!(passes(&ipv6_with(255, 44, &echo)));
    let later = [&[58, 0, 0, 8, 0, 0, 0, 9][..], &own].concat();
    assert!(passes(&ipv6_with(255, 44, &later)));
}

#[test]
fn options_that_are_void_or_cut_off_do_not_pass() {
    assert!(!passes(&ipv6_with(255, 58, &message(135, 24, &[14, 0, 0, 0, 0, 0, 0, 0]))), "no length");
    assert!(!passes(&ipv6_with(255, 58, &message(135, 24, &[14, 9, 0, 0]))), "longer than the packet");
    let prefixes = [3, 4].into_iter().chain([0; 30]).cycle().take(96).collect::<Vec<u8>>();
    let far = [&prefixes[..], &link_layer_option(1, OWN)].concat();
    assert!(!passes(&ipv6_with(255, 58, &message(134, 16, &far))), "an option behind the head");
    assert!(!passes(&[0x86, 0xdd, 0x60, 0, 0]), "half a header");
}
