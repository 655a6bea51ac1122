#!/usr/bin/env python3
"""Sends numbered frames through an interface to somebody who sends them back, and tells what became of them.

echo.py INTERFACE SOURCE DESTINATION AGE      until SIGTERM; then it waits for what is on its way

One frame a millisecond at most, and never more than 32 that have neither come back nor become older than AGE seconds: no ring or buffer on
their way overflows, however slow the machine is. Prints "begun", and at the end {"sent", "lost", "twice", "disordered", "gap_ms"}; the last is the longest time
between two frames that came back.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time

TYPE = 0x88B5  # IEEE 802: local experiments
WINDOW = 32
STRAGGLERS = 3.0  # seconds without a frame at the end, before those that lack are lost


RUN = os.urandom(8)  # no frame of an earlier run is taken for one of this


def numbers(link):
    """The numbers of the frames that have come."""
    while select.select([link], [], [], 0)[0]:
        frame, where = link.recvfrom(2048)
        if where[2] != socket.PACKET_OUTGOING and frame[14:22] == RUN:
            yield struct.unpack_from("!Q", frame, 22)[0]


def main(interface, source, destination, age):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(TYPE))
    link.bind((interface, TYPE))
    head = bytes.fromhex((destination + source).replace(":", "")) + struct.pack("!H", TYPE) + RUN
    now = last = time.monotonic()
    sent, back, twice, disordered, highest, gap, waiting = 0, set(), 0, 0, -1, 0.0, {}
    print("begun", flush=True)
    while not told or (waiting and now < last + max(age, STRAGGLERS)):
        waiting = {number: at for number, at in waiting.items() if now < at + age}
        if not told and len(waiting) < WINDOW:
            link.send(head + struct.pack("!Q", sent) + bytes(34))
            waiting[sent] = now
            sent += 1
        time.sleep(0.001)
        now = time.monotonic()
        for number in numbers(link):
            gap, last = max(gap, now - last), now
            twice += number in back
            disordered += number < highest and number not in back
            highest = max(highest, number)
            back.add(number)
            waiting.pop(number, None)
    lost = sent - len(back)
    print(json.dumps({"sent": sent, "lost": lost, "twice": twice, "disordered": disordered, "gap_ms": round(gap * 1000, 1)}))


main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
