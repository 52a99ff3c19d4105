"""Delays what a host sends, as netem does, which not every kernel has: the kernel queues the packets for this process.

    python tests/cluster/delay.py SECONDS

It runs on the host until it is ended. A chain of nf_tables sends each IPv4 packet that leaves the host to an NFQUEUE,
and each gets its verdict when its time has come, in the order of leaving. Only their numbers pass through here, not
their bytes, and a packet is as large as the kernel makes it (GSO).

Source:
    linux/netfilter/nfnetlink_queue.h, nf_tables.h, xt_NFQUEUE.h; netlink(7).
"""

import contextlib
import ctypes
import os
import select
import socket
import struct
import sys
import time
from collections import deque

_NETFILTER = 12
_REQUEST, _ACK, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_NESTED = 0x8000
_TABLES, _QUEUE = 10 << 8, 3 << 8
_BATCH_BEGIN, _BATCH_END, _NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0x10, 0x11, _TABLES, _TABLES | 3, _TABLES | 6
_PACKET, _CONFIG, _VERDICT_BATCH = _QUEUE, _QUEUE | 2, _QUEUE | 3
_IPV4, _HOOK_OUTPUT, _ACCEPT = socket.AF_INET, 3, 1
_MAX_QUEUED, _GSO = 1 << 20, 1 << 2
_SO_RCVBUFFORCE = 33
_PR_SET_TIMERSLACK = 29


def attribute(kind, payload):
    """One attribute of netlink: its length, its kind, the payload, padded to 4 bytes."""
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)


def message(kind, flags, family, resource, attributes=b""):
    """One message of nfnetlink."""
    return struct.pack("=IHHIIBBH", 20 + len(attributes), kind, flags, 0, 0, family, 0, resource) + attributes


def rule():
    """The messages that send all IPv4 packets of this network namespace that leave a process to queue 0."""
    table, chain = b"delay\0", b"output\0"
    hook = attribute(1, struct.pack("!I", _HOOK_OUTPUT)) + attribute(2, struct.pack("!i", 0))
    chain_attributes = [
        attribute(1, table),
        attribute(3, chain),
        attribute(4 | _NESTED, hook),
        attribute(7, b"filter\0"),
    ]
    target = attribute(1, b"NFQUEUE\0") + attribute(2, struct.pack("!I", 0)) + attribute(3, struct.pack("=H6x", 0))
    expression = attribute(1 | _NESTED, attribute(1, b"target\0") + attribute(2 | _NESTED, target))
    rule_attributes = [attribute(1, table), attribute(2, chain), attribute(4 | _NESTED, expression)]
    flags = _REQUEST | _ACK | _CREATE
    return b"".join(
        [
            message(_BATCH_BEGIN, _REQUEST, 0, socket.htons(_TABLES >> 8)),
            message(_NEW_TABLE, flags, _IPV4, 0, attribute(1, table)),
            message(_NEW_CHAIN, flags, _IPV4, 0, b"".join(chain_attributes)),
            message(_NEW_RULE, flags | _APPEND, _IPV4, 0, b"".join(rule_attributes)),
            message(_BATCH_END, _REQUEST, 0, socket.htons(_TABLES >> 8)),
        ]
    )


def settings():
    """The messages that bind queue 0 to this process, which is told of packets as they are, without their bytes."""
    values = (
        attribute(1, struct.pack("!BxH", 1, _IPV4)),
        attribute(2, struct.pack("!IBxxx", 0, 1)[:5]) + attribute(3, struct.pack("!I", _MAX_QUEUED)),
        attribute(4, struct.pack("!I", _GSO)) + attribute(5, struct.pack("!I", _GSO)),
    )
    return [message(_CONFIG, _REQUEST | _ACK, 0, 0, value) for value in values]


def acknowledged(netlink, request, count):
    """Sends messages of which `count` are answered.

    Raises:
        OSError: The kernel refuses one.
    """
    netlink.send(request)
    while count:
        answer, place = netlink.recv(1 << 16), 0
        while place < len(answer):
            length, kind = struct.unpack_from("=IH", answer, place)
            if kind == 2:  # NLMSG_ERROR, whose 0 is an acknowledgement
                error, count = struct.unpack_from("=i", answer, place + 16)[0], count - 1
                if error:
                    raise OSError(-error, os.strerror(-error))
            place += length + -length % 4


def numbers(received):
    """The numbers of the packets that a datagram from the kernel names."""
    place = 0
    while place < len(received):
        length, kind = struct.unpack_from("=IH", received, place)
        if kind == _PACKET:
            yield struct.unpack_from("!I", received, place + 24)[0]  # the first attribute is the packet's header
        place += length + -length % 4


def delay(netlink, seconds):
    """Lets each packet go on `seconds` after it came, for ever."""
    waiting, received = deque(), bytearray(1 << 16)
    while True:
        rest = None if not waiting else max(0.0, waiting[0][0] - time.perf_counter())
        if select.select([netlink], [], [], rest)[0]:
            view = memoryview(received)[: netlink.recv_into(received)]
            due = time.perf_counter() + seconds
            waiting.extend((due, number) for number in numbers(view))
        last, now = None, time.perf_counter()
        while waiting and waiting[0][0] <= now:
            last = waiting.popleft()[1]
        if last is not None:  # all up to this number
            verdict = attribute(2, struct.pack("!II", _ACCEPT, last))
            netlink.send(message(_VERDICT_BATCH, _REQUEST, 0, 0, verdict))


def main():
    """Sets the queue up, prints "ready", and delays until it is ended."""
    seconds = float(sys.argv[1])
    with contextlib.suppress(PermissionError):  # so that ranks that poll do not keep it from a core
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    netlink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    for request in settings():
        acknowledged(netlink, request, 1)
    tables = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    acknowledged(tables, rule(), 3)
    print("ready", flush=True)
    delay(netlink, seconds)


if __name__ == "__main__":
    main()
