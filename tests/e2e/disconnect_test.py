# SPDX-License-Identifier: Apache-2.0
"""Clients leave at each stage of a request, 1,000 in a row under load: counts return to base."""
import collections
import concurrent.futures
import json
import re
import socket
import struct
import threading

import rig
from answers import Prompt, ask, random_source

CLIENTS = 60 if rig.SMALL else 1000
AT_A_TIME = 24
# Where a client leaves: a record of its request that it waits for, or a point of its own.
STAGES = ("half_sent", "sent", "received", "prefill_start", "registered", "prefill_end", "posted",
          "landed", "first_token", "first_chunk", "third_chunk")


class Watcher(threading.Thread):
    """Follows the records of all engines and wakes the clients that wait for one."""

    def __init__(self, servers):
        super().__init__(daemon=True)
        self.files = [server.events for server in servers]
        self.cond = threading.Condition()
        self.seen = set()
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.002):
            new = [r for file in self.files for r in file.fresh()]
            if new:
                with self.cond:
                    for record in new:
                        tag = re.search(r"leaver-\d+x", record["request"])
                        if tag:
                            self.seen.add((tag.group(), record["event"]))
                            if record["event"] == "end" and record["role"] == "decode":
                                self.seen.add((tag.group(), "over"))
                    self.cond.notify_all()

    def wait(self, tag, event, timeout=60):
        """Until the record is there (true), or the request is over without it (false)."""
        with self.cond:
            if not self.cond.wait_for(lambda: {(tag, event), (tag, "over")} & self.seen, timeout):
                raise AssertionError("no record '%s' of %s within %d s" % (event, tag, timeout))
            return (tag, event) in self.seen


class Leaver:
    """One client. Leaves by closing, or by closing with a reset."""

    def __init__(self, url, watcher, number, rng):
        self.url = url
        self.watcher = watcher
        self.tag = "leaver-%dx" % number
        self.stage = STAGES[number % len(STAGES)]
        self.reset = rng.random() < 0.5
        stream = self.stage.endswith("chunk") or rng.random() < 0.5
        ids = [rng.randint(3, 258) for _ in range(rng.choice((1, 40, 200, 600)))]
        body = json.dumps({"model": "test", "prompt": ids, "max_tokens": 300, "ignore_eos": True,
                           "temperature": 0, "stream": stream}).encode()
        head = ("POST /v1/completions HTTP/1.1\r\nHost: kvferry\r\nContent-Type: application/json\r\n"
                "X-Request-Id: %s\r\nContent-Length: %d\r\n\r\n" % (self.tag, len(body))).encode()
        self.bytes = head + body

    def go(self):
        """The stage at which it left; None when its request was over before."""
        reached = True
        with socket.create_connection(rig.split_url(self.url), timeout=60) as peer:
            if self.stage == "half_sent":
                peer.sendall(self.bytes[: len(self.bytes) // 2])
            else:
                peer.sendall(self.bytes)
                if self.stage.endswith("chunk"):
                    self.read_chunks(peer, 1 if self.stage == "first_chunk" else 3)
                elif self.stage != "sent":
                    reached = self.watcher.wait(self.tag, self.stage)
            if self.reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self.stage if reached else None

    def read_chunks(self, peer, count):
        got = b""
        while got.count(b"data:") < count:
            piece = peer.recv(4096)
            if not piece:
                raise AssertionError("%s: the answer ended: %r" % (self.tag, got))
            got += piece
            if b"HTTP/1.1 200" not in got[:20]:
                raise AssertionError("%s: %r" % (self.tag, got[:300]))


class Disconnect(rig.Case):
    def test_leaving_at_each_stage(self):
        rng = random_source("disconnect")
        model = self.rig.model(layers=4)
        prefill = self.rig.engine("prefill", model=model, lease=4, max_batch_tokens=64)
        decode = self.rig.engine("decode", model=model, registration_timeout=20)
        proxy = self.rig.proxy([prefill], [decode])
        probe = Prompt("/v1/completions", {"prompt": list(range(3, 100)), "max_tokens": 8})
        expected = ask(prefill.url, probe)
        self.assertEqual(expected, ask(proxy.url, probe))
        base = rig.Base([prefill, decode, proxy])

        watcher = Watcher([prefill, decode])
        watcher.start()
        self.addCleanup(watcher.join)
        self.addCleanup(watcher.ended.set)
        left = collections.Counter()
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            leavers = [Leaver(proxy.url, watcher, n, rng) for n in range(CLIENTS)]
            answers = []
            try:
                for n, future in enumerate([pool.submit(leaver.go) for leaver in leavers]):
                    left[future.result()] += 1
                    if n % 50 == 0:  # those who stay are served all the while
                        answers.append(ask(proxy.url, probe))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        print("    left at: %s" % dict(left), flush=True)
        self.assertEqual(set(STAGES), set(left) - {None})
        for answer in answers:
            self.assertEqual(expected, answer)

        base.wait([prefill, decode, proxy])
        self.assertEqual(expected, ask(proxy.url, probe))
        base.wait([prefill, decode, proxy])


if __name__ == "__main__":
    rig.main()
