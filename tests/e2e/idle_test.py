# SPDX-License-Identifier: Apache-2.0
"""A pair of connected engines with nothing to do uses under 1 % of a core, also while it holds 100
finished prompts that nobody registered for."""
import os
import time

import rig
from answers import Prompt, ask
from rig import post, wait_until

WINDOW_S = float(os.environ.get("KVF_IDLE_WINDOW_S", 10))  # `make bench` looks longer
CORE_SHARE_MAX = 0.01


class Idle(rig.Case):
    def share(self, servers, seconds=WINDOW_S):
        """CPU time of each over a window in which the test does nothing either."""
        before = [server.cpu_seconds() for server in servers]
        started = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - started
        return {s.name: (s.cpu_seconds() - b) / elapsed for s, b in zip(servers, before)}

    def check_idle(self, servers):
        shares = self.share(servers)
        print("    %s" % ", ".join("%s %.2f %%" % (n, 100 * s) for n, s in shares.items()), flush=True)
        for name, share in shares.items():
            self.assertLess(share, CORE_SHARE_MAX, name)

    def test_idle_pair(self):
        prefill = self.rig.engine("prefill", lease=3600)
        decode = self.rig.engine("decode")
        proxy = self.rig.proxy([prefill], [decode])
        base = rig.Base([prefill, decode])
        probe = Prompt("/v1/completions", {"prompt": list(range(3, 100)), "max_tokens": 4})
        ask(proxy.url, probe)
        base.wait([prefill, decode])
        self.check_idle([prefill, decode, proxy])

        for n in range(100):
            answer = post(prefill.url, "/v1/completions", {
                "model": "test", "prompt": [3 + n] * 40, "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}})
            self.assertEqual(200, answer.status, answer.body)
            self.assertTrue(answer.json()["kv_transfer_params"]["remote_engine_id"])
        wait_until("100 leases are held", lambda: prefill.usage()["worker"]["leases"] == 100)
        self.check_idle([prefill, decode, proxy])
        self.assertEqual(100, prefill.usage()["worker"]["leases"])
        self.assertEqual(200, post(proxy.url, probe.path, probe.body).status)


if __name__ == "__main__":
    rig.main()
