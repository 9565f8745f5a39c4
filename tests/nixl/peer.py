# SPDX-License-Identifier: Apache-2.0
"""A real NIXL agent as a process of its own, driven over standard input, which is a socket.

A command is one line: words, then the length of the bytes that follow it. An answer is u32 1 or 0,
u32 length, and bytes; 0 says that NIXL raised an exception, whose class the bytes name. Standard
output is UCX's and NIXL's own and nobody reads it. Between commands the agent is progressed.

usage: peer.py NAME POOL_FD POOL_LEN REGIONS PROGRESS_THREAD WORKERS
"""
import mmap
import select
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
from nixl_cu12 import _bindings
from nixl_cu12._api import nixl_agent, nixl_agent_config

POLL_MS = 1
PAUSE_S = 0.0001  # between two looks, so that the other side gets a core


class Peer:
    def __init__(self, name, pool_fd, pool_len, regions, progress_thread, workers):
        self.commands = socket.socket(fileno=0)
        self.pool = mmap.mmap(pool_fd, pool_len)
        self.base = numpy.frombuffer(self.pool, numpy.uint8).ctypes.data
        self.agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=progress_thread, backends=[]))
        self.agent.create_backend("UCX", {"num_workers": str(workers)})
        each = pool_len // regions
        self.regions = [(self.base + i * each, each, 0, "") for i in range(regions)]
        self.registered = self.agent.register_memory(self.regions, "DRAM")
        self.loaded = set()
        self.notifs = []
        # NIXL binds a thread to a worker, so each worker needs a thread to be used at all.
        self.threads = [ThreadPoolExecutor(1) for _ in range(workers)]

    def collect(self):
        for name, messages in self.agent.get_new_notifs().items():
            self.notifs += [(name.encode(), message) for message in messages]

    # ---- commands: (words, bytes) -> bytes ----

    def do_hello(self, words, data):
        return struct.pack("<Q", self.base)

    def do_metadata(self, words, data):
        return self.agent.get_agent_metadata()

    def do_partial(self, words, data):
        first, count, connection = (int(word) for word in words)
        some = _bindings.nixlRegDList(_bindings.DRAM_SEG)
        if count > 0:
            some = self.agent.get_reg_descs(self.regions[first:first + count], "DRAM")
        return self.agent.get_partial_agent_metadata(some, bool(connection))

    def do_load(self, words, data):
        name = self.agent.add_remote_agent(data)
        self.loaded.add(name.decode())
        return name

    def do_remove(self, words, data):
        self.agent.remove_remote_agent(words[0])
        self.loaded.discard(words[0])
        return b""

    def do_notify(self, words, data):
        self.agent.send_notif(words[0], data)
        return b""

    def do_notifs(self, words, data):
        """Waits for that many, and hands out all there are."""
        self.collect()
        while len(self.notifs) < int(words[0]):
            time.sleep(PAUSE_S)
            self.collect()
        taken, self.notifs = self.notifs, []
        return b"".join(struct.pack("<QQ", len(name), len(message)) + name + message
                        for name, message in taken)

    def prepare(self, words, data):
        operation, name, how, count = words[0], words[1], words[2], int(words[3])
        table = numpy.frombuffer(data[:24 * count], numpy.uint64).reshape(count, 3)
        message = data[24 * count:]
        zeros = numpy.zeros(count, numpy.uint64)
        sides = [numpy.ascontiguousarray(numpy.stack((table[:, i], table[:, 2], zeros), 1)) for i in (0, 1)]
        local, remote = (self.agent.get_xfer_descs(side, "DRAM") for side in sides)
        if how == "list":
            return self.agent.initialize_xfer(operation, local, remote, name, message)
        # Prepared in the order of addresses, as frameworks do; the indices bring the pairs together.
        orders = [numpy.argsort(side[:, 0]) for side in sides]
        ready = [self.agent.prep_xfer_dlist(owner, numpy.ascontiguousarray(side[order]), "DRAM")
                 for owner, side, order in zip(("NIXL_INIT_AGENT", name), sides, orders)]
        places = [numpy.argsort(order).astype(numpy.int32) for order in orders]
        return self.agent.make_prepped_xfer(operation, ready[0], places[0], ready[1], places[1], message)

    def run(self, handle):
        state = self.agent.transfer(handle)
        while state == "PROC":
            time.sleep(PAUSE_S)
            state = self.agent.check_xfer_state(handle)
        return state.encode()

    def do_transfer(self, words, data):
        """OPERATION NAME list|prepared COUNT WORKER; COUNT times u64 here, there, length; message"""
        def work():
            handle = self.prepare(words, data)
            try:
                return self.run(handle)
            finally:
                self.agent.release_xfer_handle(handle)
        return self.threads[int(words[4])].submit(work).result()

    def do_hammer(self, words, data):
        """As transfer, again and again until the process is killed. Answers first."""
        handle = self.prepare(words, data)
        self.answer(1, b"")
        while True:
            self.run(handle)

    def do_leave(self, words, data):
        for name in self.loaded:
            self.agent.remove_remote_agent(name)
        self.agent.deregister_memory(self.registered)
        del self.agent
        sys.exit(0)

    # ---- the loop ----

    def answer(self, ok, data):
        self.commands.sendall(struct.pack("<II", ok, len(data)) + data)

    def serve(self):
        waiter = select.poll()
        waiter.register(self.commands, select.POLLIN)
        stream = self.commands.makefile("rb")
        while True:
            while not waiter.poll(POLL_MS):
                self.collect()
            line = stream.readline().decode().split()
            if not line:
                return
            data = stream.read(int(line[-1]))
            try:
                answer = getattr(self, "do_" + line[0])(line[1:-1], data)
            except Exception as problem:
                print("peer: %s: %r" % (line[0], problem), file=sys.stderr, flush=True)
                self.answer(0, type(problem).__name__.encode())
                continue
            self.answer(1, answer)


Peer(sys.argv[1], *(int(word) for word in sys.argv[2:])).serve()
