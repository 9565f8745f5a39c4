# SPDX-License-Identifier: Apache-2.0
"""Just enough of ZMTP 3.0 to speak to a ZeroMQ socket without ZeroMQ, so that a test can also say
what no library would."""
import socket
import struct

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)


def frame(data, more=False, command=False):
    flags = (1 if more else 0) | (4 if command else 0)
    if len(data) > 255:
        return struct.pack(">BQ", flags | 2, len(data)) + data
    return struct.pack("BB", flags, len(data)) + data


def ready(socket_type):
    name = b"Socket-Type"
    return frame(b"\x05READY" + bytes([len(name)]) + name + struct.pack(">I", len(socket_type)) + socket_type,
                 command=True)


def message(*parts):
    return b"".join(frame(part, more=i + 1 < len(parts)) for i, part in enumerate(parts))


class Peer:
    """A connection after the NULL handshake."""

    def __init__(self, port, socket_type=b"DEALER", host="127.0.0.1", timeout=10):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.sendall(GREETING)
        self.exactly(64)
        self.socket.sendall(ready(socket_type))
        flags, length = self.exactly(2)
        self.exactly(length)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("closed after %d of %d bytes" % (len(data), count))
            data += piece
        return data

    def send(self, data):
        self.socket.sendall(data)

    def receive(self):
        """The parts of one message."""
        parts = []
        while True:
            (flags,) = self.exactly(1)
            length = struct.unpack(">Q", self.exactly(8))[0] if flags & 2 else self.exactly(1)[0]
            parts.append(self.exactly(length))
            if not flags & 1:
                return parts

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
