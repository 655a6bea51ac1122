#!/usr/bin/env python3
"""Frames for tests, as pcap files.

make FILE FROM TO COUNT SALT LENGTH…   COUNT frames of all the lengths in turn; no two are alike
same SENT… -- RECEIVED…                fails unless each of the second files has the frames of the first file in its place, and no others, in
                                       the same order
tcp FILE FROM TO COUNT BYTES           COUNT frames of TCP over IPv4 with so many bytes of data, each of a connection of its own
segments SENT RECEIVED SIZE            fails unless the second file has the segments of all frames of the first one, in order, each of SIZE bytes
                                       at most, with numbers, flags and checksums of its own
"""

import hashlib
import struct
import sys


def make(name, source, destination, count, salt, *lengths):
    addresses = bytes.fromhex((destination + source).replace(":", "")) + b"\x88\xb5"  # IEEE 802: local experiments
    made = []
    for number in range(int(count)):
        length = int(lengths[number % len(lengths)]) - 4  # the frame check sequence is not in a ring
        seed = f"{salt} {number} ".encode()
        made.append((addresses + seed + noise(seed, length))[:length])
    write(name, made)


def noise(seed, length):
    return b"".join(hashlib.sha256(seed + bytes([n & 255, n >> 8])).digest() for n in range(length // 32 + 1))[:length]


def write(name, made):
    with open(name, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(made):
            file.write(struct.pack("<IIII", 0, number, len(frame), len(frame)) + frame)


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


ADDRESSES = bytes([10, 0, 0, 1, 10, 0, 0, 2])
ACK, PUSH = 16, 8


def packet(port, identification, sequence, flags, data):
    """What is behind the Ethernet header."""
    header = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(data), identification, 0, 64, 6, 0) + ADDRESSES
    header = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
    tcp = struct.pack(">HHIIBBHHH", port, 80, sequence, 1, 0x50, flags, 8192, 0, 0) + data
    whole = checksum(ADDRESSES + struct.pack(">BBH", 0, 6, len(tcp)) + tcp)
    return header + tcp[:16] + struct.pack(">H", whole) + tcp[18:]


def connections(count, length):
    for number in range(int(count)):
        yield 10_000 + number, 0xFFF0, 0xFFFFF000 + number, noise(f"tcp {number}".encode(), int(length))


def tcp(name, source, destination, count, length):
    addresses = bytes.fromhex((destination + source).replace(":", "")) + b"\x08\x00"
    made = connections(count, length)
    write(name, [addresses + packet(port, first, start, ACK | PUSH, data) for port, first, start, data in made])


def segments(sent, received, size):
    wanted, size = [], int(size)
    for frame in frames(sent):
        (first,), (port,), (start,) = (struct.unpack_from(kind, frame, at) for kind, at in ((">H", 18), (">H", 34), (">I", 38)))
        data = frame[54:]
        for number, at in enumerate(range(0, len(data), size)):
            flags = ACK | PUSH if at + size >= len(data) else ACK
            part = packet(port, (first + number) & 0xFFFF, (start + at) & 0xFFFFFFFF, flags, data[at : at + size])
            wanted.append(part)
    got = [frame[14:] for frame in frames(received)]
    if not wanted or wanted != got:
        same = sum(one == other for one, other in zip(wanted, got))
        raise SystemExit(f"{len(wanted)} segments are to come, {len(got)} came, {same} of them right and in their place")


def frames(name):
    with open(name, "rb") as file:
        data = file.read()
    found, at = [], 24
    while at + 16 <= len(data):
        captured, length = struct.unpack_from("<II", data, at + 8)
        if captured != length or at + 16 + length > len(data):
            raise SystemExit(f"{name}: a frame of {length} bytes is there with {captured}")
        found.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return found


def same(*names):
    between = names.index("--")
    for one, other in zip(names[:between], names[between + 1 :], strict=True):
        wanted, got = frames(one), frames(other)
        if not wanted or wanted != got:
            missing, strange = len(set(wanted) - set(got)), len(set(got) - set(wanted))
            raise SystemExit(f"{one} has {len(wanted)} frames, {other} {len(got)}: {missing} lack, {strange} are none of it")


{"make": make, "same": same, "tcp": tcp, "segments": segments}[sys.argv[1]](*sys.argv[2:])
