# SPDX-License-Identifier: Apache-2.0
"""What a real NIXL agent needs for the transfer of push-bench: scattered blocks of one process to
scattered blocks of another on this host, from the post to DONE, with default transports.

Runs with the Python of an environment that has the wheel nixl-cu12 (tools/bench makes one). Each of
NIXL's settings is measured; the best is printed last. Every byte is compared after each round, and the
blocks that must not change too.

usage: nixl_bench.py BLOCKS BLOCK_BYTES REGIONS ROUNDS
"""
import mmap
import os
import resource
import socket
import subprocess
import sys
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

UNTOUCHED = 0xEE


class Pool:
    """Shared memory, so that the initiator can look at what the target has."""

    def __init__(self, fd, length):
        self.map = mmap.mmap(fd, length)
        self.bytes = numpy.frombuffer(self.map, numpy.uint8)
        self.base = self.bytes.ctypes.data


def make_agent(name, progress_thread, threads):
    config = nixl_agent_config(enable_prog_thread=progress_thread, num_threads=threads)
    return nixl_agent(name, config)


def register(agent, pool, regions):
    each = len(pool.bytes) // regions
    agent.register_memory([(pool.base + i * each, each, 0, "") for i in range(regions)], "DRAM")


def target(fd, length, regions, progress_thread):
    """The other process: registers, tells where, and collects notifications until it is told to end."""
    pool = Pool(fd, length)
    agent = make_agent("target", progress_thread, 0)
    register(agent, pool, regions)
    parent = socket.socket(fileno=0)
    parent.settimeout(0.001)
    blob = agent.get_agent_metadata()
    parent.sendall(b"%16d%16d" % (pool.base, len(blob)) + blob)
    while True:
        agent.get_new_notifs()
        try:
            word = parent.recv(1)
        except TimeoutError:
            continue
        if not word:
            break
        usage = resource.getrusage(resource.RUSAGE_SELF)
        parent.sendall(b"%32.6f" % (usage.ru_utime + usage.ru_stime))
    os._exit(0)


def receive(sock, length):
    data = b""
    while len(data) < length:
        part = sock.recv(length - len(data))
        if not part:
            sys.exit("nixl_bench: the target process has ended")
        data += part
    return data


class Pair:
    def __init__(self, blocks, block_bytes, regions, progress_thread, threads):
        self.shape = blocks, block_bytes, regions
        length = 2 * blocks * block_bytes * regions
        fds = [os.memfd_create("pool") for _ in range(2)]
        for fd in fds:
            os.ftruncate(fd, length)
        self.local, self.remote = (Pool(fd, length) for fd in fds)
        self.local.bytes[:] = numpy.random.default_rng(1).integers(0, 256, length, numpy.uint8)
        self.socket, theirs = socket.socketpair()
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--target", str(fds[1]), str(length), str(regions),
             str(int(progress_thread))], stdin=theirs, pass_fds=fds[1:])
        theirs.close()
        base, blob_len = (int(receive(self.socket, 16)) for _ in range(2))
        self.agent = make_agent("initiator", progress_thread, threads)
        register(self.agent, self.local, regions)
        self.peer = self.agent.add_remote_agent(receive(self.socket, blob_len))
        self.lists = [self.prepare("", self.local.base), self.prepare(self.peer, base)]

    def prepare(self, name, base):
        """All blocks of all regions, region by region."""
        blocks, block_bytes, regions = self.shape
        count = 2 * blocks * regions
        table = numpy.zeros((count, 3), numpy.uint64)
        table[:, 0] = base + numpy.arange(count, dtype=numpy.uint64) * block_bytes
        table[:, 1] = block_bytes
        return self.agent.prep_xfer_dlist(name or "NIXL_INIT_AGENT", table, "DRAM")

    def round(self, rng):
        blocks, block_bytes, regions = self.shape
        sides = []
        for _ in range(2):
            ids = rng.permutation(2 * blocks)[:blocks].astype(numpy.int32)
            sides.append(numpy.concatenate([ids + r * 2 * blocks for r in range(regions)]))
        self.remote.bytes[:] = UNTOUCHED
        began = time.perf_counter()
        handle = self.agent.make_prepped_xfer("WRITE", self.lists[0], sides[0], self.lists[1], sides[1],
                                              b"done")
        posted = time.perf_counter()
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        ended = time.perf_counter()
        if state != "DONE":
            sys.exit("nixl_bench: the transfer ended as %s" % state)
        self.agent.release_xfer_handle(handle)
        rows = [pool.bytes.reshape(-1, block_bytes) for pool in (self.local, self.remote)]
        if not numpy.array_equal(rows[0][sides[0]], rows[1][sides[1]]):
            sys.exit("nixl_bench: bytes differ")
        rest = numpy.delete(rows[1], sides[1], axis=0)
        if (rest != UNTOUCHED).any():
            sys.exit("nixl_bench: bytes changed that must not")
        return posted - began, ended - posted

    def cpu_s(self):
        self.socket.sendall(b"c")
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime, float(receive(self.socket, 32))

    def stop(self):
        self.socket.close()
        self.child.wait()


def main():
    blocks, block_bytes, regions, rounds = (int(word) for word in sys.argv[1:])
    rng = numpy.random.default_rng(2)
    total = blocks * block_bytes * regions
    best = None
    for progress_thread in (False, True):
        for threads in (0, 4):
            pair = Pair(blocks, block_bytes, regions, progress_thread, threads)
            for _ in range(2):
                pair.round(rng)
            times = sorted(pair.round(rng) for _ in range(rounds))
            pair.stop()
            make_s, write_s = (sorted(column)[rounds // 2] for column in zip(*times))
            name = "progress thread %s, num_threads %d" % ("on" if progress_thread else "off", threads)
            print("%-46s %9.3f GB/s  (%.1f us, plan %.1f us)"
                  % ("NIXL, " + name, total / write_s / 1e9, write_s * 1e6, make_s * 1e6), flush=True)
            if not best or write_s < best[0]:
                best = write_s, name
    print("%-46s %9.3f GB/s  (%.1f us), %s"
          % ("NIXL at its best, WRITE, post to DONE", total / best[0] / 1e9, best[0] * 1e6, best[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--target":
        target(*(int(word) for word in sys.argv[2:]))
    main()
