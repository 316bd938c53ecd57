#!/usr/bin/python3
"""Shows RoCE v2 packets over IPv4 that pass an interface: `roce_packets.py INTERFACE`. A line says `ready`, and each packet has a line
with the address that it is from and its traffic class."""

import socket
import struct
import sys

_ALL_PROTOCOLS = 3
_IPV4 = b"\x08\x00"
_UDP = 17
_ROCE_V2 = 4791


def main(interface: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as packets:
        packets.bind((interface, 0))
        print("ready", flush=True)
        while True:
            frame = packets.recv(65536)
            header = frame[14:]
            if frame[12:14] != _IPV4 or len(header) < 28 or header[9] != _UDP:
                continue
            (port,) = struct.unpack_from("!H", header, (header[0] & 15) * 4 + 2)
            if port == _ROCE_V2:
                print(socket.inet_ntoa(header[12:16]), header[1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
