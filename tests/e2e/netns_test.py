# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two network namespaces joined by a veth pair, UCX over TCP: nothing but
the network joins them, and every answer is still a single engine's."""
import ctypes
import os
import shutil
import subprocess
import unittest

import rig
from answers import ask_all, check_answers, check_transfers, random_source, tiny_prompts

SPACES = ("p", "d")


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def must_ip(*arguments):
    run = ip(*arguments)
    if run.returncode:
        raise unittest.SkipTest("ip %s: %s" % (" ".join(arguments), run.stderr.strip()))


class Inside:
    """The calling thread, and threads it starts, use the network of a namespace."""

    CLONE_NEWNET = 0x40000000

    def __init__(self, name):
        self.path = "/run/netns/" + name

    def enter(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        with open(path) as space:
            if libc.setns(space.fileno(), self.CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns to " + path)

    def __enter__(self):
        self.outside = open("/proc/thread-self/ns/net")
        self.enter(self.path)

    def __exit__(self, *_):
        self.enter("/proc/self/fd/%d" % self.outside.fileno())
        self.outside.close()


class Namespaces(rig.Case):
    """A namespace for each engine. Clients and the proxy live in prefill's."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("network namespaces need root")
        if not shutil.which("ip"):
            self.skipTest("the ip command (package iproute2) is not installed")
        # Unique on this machine while this process lives; interface names are 15 bytes at most.
        self.tag = "kvf%d" % os.getpid()
        for side in SPACES:
            self.addCleanup(ip, "netns", "del", self.tag + side)
            must_ip("netns", "add", self.tag + side)
        p, d = self.space("p"), self.space("d")
        must_ip("link", "add", "kvf0", "netns", p, "type", "veth", "peer", "name", "kvf0", "netns", d)
        for number, side in enumerate((p, d), 1):
            must_ip("-n", side, "addr", "add", "10.91.0.%d/24" % number, "dev", "kvf0")
            must_ip("-n", side, "link", "set", "lo", "up")
            must_ip("-n", side, "link", "set", "kvf0", "up")
        for side in (p, d):  # the kernel notices a moment later
            rig.wait_until("kvf0 is up", lambda: " UP " in ip("-n", side, "-br", "link", "show", "kvf0").stdout)

    def space(self, side):
        return self.tag + side

    def test_answers_over_veth(self):
        count = 16 if rig.SMALL else 60
        prompts = tiny_prompts(random_source("netns"), count, longest=200 if rig.SMALL else 1500)
        single = self.rig.engine("both", blocks=4096)
        expected = ask_all(single.url, prompts)
        self.assertEqual(0, single.terminate())

        over_tcp = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "kvf0", "KVFERRY_LANES": "ucx"}
        with Inside(self.space("p")):
            prefill = self.rig.engine("prefill", host="10.91.0.1", netns=self.space("p"),
                                      env=over_tcp, blocks=2048)
            decode = self.rig.engine("decode", host="10.91.0.2", netns=self.space("d"),
                                     env=over_tcp, blocks=2048)
            proxy = self.rig.proxy([prefill], [decode], host="10.91.0.1", netns=self.space("p"))
            base = rig.Base([prefill, decode])
            check_answers(self, prompts, expected, ask_all(proxy.url, prompts))
            check_transfers(self, [prefill], [decode], count // 2)
            base.wait([prefill, decode])


if __name__ == "__main__":
    rig.main()
