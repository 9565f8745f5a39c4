# SPDX-License-Identifier: Apache-2.0
"""kill -9 of prefill, of decode and of the proxy at each stage of a request.

The stages are held open by SIGSTOP: a stopped decode engine cannot register, a stopped prefill
engine cannot finish, and over TCP a WRITE towards a stopped engine stays under way. So the kill
hits the stage that the test names, however fast or slow the machine is.
"""
import http.client
import threading
import time

import rig
from answers import Prompt, ask, random_source, tiny_prompts
from rig import Stream, post, wait_until

CLIENT_S = 10  # a client has its answer or its error this long after the kill
LEASE_S = 3


class Client(threading.Thread):
    """A streaming client; `outcome` is ("answer" | "error", what) when it has ended."""

    def __init__(self, url, prompt):
        super().__init__(daemon=True)
        self.url = url
        self.prompt = prompt
        self.outcome = None
        self.first_chunk = threading.Event()
        self.text = ""
        self.start()

    def run(self):
        try:
            with Stream(self.url, self.prompt.path, self.prompt.body) as stream:
                if stream.status != 200:
                    self.outcome = "error", "HTTP %d %s" % (stream.status, stream.answer.read()[:300])
                    return
                for event in stream.events():
                    if "error" in event:
                        self.outcome = "error", event["error"]
                        return
                    self.text += "".join(c["text"] for c in event["choices"])
                    self.first_chunk.set()
                self.outcome = ("answer", self.text) if stream.done else ("error", "cut short")
        except (OSError, http.client.HTTPException) as error:
            self.outcome = "error", repr(error)
        finally:
            self.ended = time.monotonic()


def long_prompt(rng, max_tokens):
    ids = [rng.randint(3, 258) for _ in range(1500)]
    return Prompt("/v1/completions", {"prompt": ids, "max_tokens": max_tokens, "ignore_eos": True})


class Kill(rig.Case):
    def setUp(self):
        super().setUp()
        self.rig.env["UCX_TLS"] = "tcp"  # else a WRITE needs no cooperation of the other side
        self.rng = random_source(self.id())
        # 24 layers: 1,500 tokens are 9 MB of cache, more than the sockets' buffers hold.
        options = {"model": self.rig.model(layers=24), "lease": LEASE_S,
                   "registration_timeout": 8}
        self.prefill = self.rig.engine("prefill", **options)
        self.decode = self.rig.engine("decode", **options)
        self.proxy = self.rig.proxy([self.prefill], [self.decode])
        self.base = rig.Base([self.prefill, self.decode])
        self.warm_up()

    def servers(self):
        return [self.prefill, self.decode, self.proxy]

    def engines(self):
        return [self.prefill, self.decode]

    def warm_up(self):
        """One request each way: the engines are connected and the answer is known."""
        self.probe = tiny_prompts(self.rng, 1)[0]
        self.probe.body.update(prompt=[self.rng.randint(3, 258) for _ in range(70)], max_tokens=6,
                               temperature=0, ignore_eos=True)
        self.probe_answer = ask(self.prefill.url, self.probe)
        self.assertEqual(self.probe_answer, ask(self.proxy.url, self.probe))
        self.base.wait(self.engines())

    def mark(self):
        """Records before this call do not count for saw()."""
        self.seen = {server.name: len(server.events.read()) for server in self.engines()}

    def saw(self, server, event):
        return any(r["event"] == event for r in server.events.read()[self.seen[server.name]:])

    def await_record(self, server, event):
        wait_until("%s records '%s'" % (server.name, event), lambda: self.saw(server, event), 30,
                   pause=0.001)

    # -- the stages: each returns when it is reached and will not pass by itself

    def before_registration(self):
        self.decode.pause()
        client = Client(self.proxy.url, long_prompt(self.rng, 4))
        self.await_record(self.prefill, "prefill_end")
        self.assertFalse(self.saw(self.decode, "registered"))
        return client

    def before_finish(self):
        self.prefill.pause()
        client = Client(self.proxy.url, long_prompt(self.rng, 4))
        self.await_record(self.decode, "registered")
        self.assertFalse(self.saw(self.prefill, "prefill_end"))
        return client

    def during_write(self):
        """Decode stops between its registration, which prefill has, and the WRITE."""
        for _ in range(20):
            self.mark()
            client = Client(self.proxy.url, long_prompt(self.rng, 4))
            self.await_record(self.prefill, "registered")
            self.decode.pause()
            self.await_record(self.prefill, "posted")
            if not self.saw(self.decode, "landed") and not self.saw(self.prefill, "sent"):
                return client
            self.decode.resume()  # too late: this one was through already
            wait_until("the client is answered", lambda: client.outcome, 60)
        self.fail("the WRITE was never caught under way")

    def after_write(self):
        client = Client(self.proxy.url, long_prompt(self.rng, 400))
        self.assertTrue(client.first_chunk.wait(30))
        self.assertIsNone(client.outcome)
        return client

    # -- what must be true afterwards

    def story(self, victim_name, stage):
        self.mark()
        client = stage()
        victim = getattr(self, victim_name)
        victim.kill()
        killed = time.monotonic()
        survivors = [s for s in self.servers() if s is not victim]
        for server in survivors:
            server.resume()
        wait_until("the client has an answer or an error", lambda: client.outcome, CLIENT_S + 1)
        self.assertLess(client.ended - killed, CLIENT_S)
        print("    %s: %.100s after %.1f s" % ((client.outcome[0], client.outcome[1],
                                               client.ended - killed)), flush=True)

        for server in survivors:
            if server is not self.proxy:
                self.assertEqual(self.probe_answer, ask(server.url, self.probe, timeout=CLIENT_S))
            else:
                # One leg has nobody to go to. Refused or served by the other leg, but not hung.
                post(server.url, self.probe.path, self.probe.body, timeout=CLIENT_S)
        self.base.wait([s for s in survivors if s is not self.proxy], LEASE_S + 15)

        again = victim.restart().wait_ready()
        self.assertEqual(victim.port, again.port)
        setattr(self, victim_name, again)
        if again is not self.proxy:
            self.base.before[again.name] = rig.counts(again.usage())
        fresh = Prompt(self.probe.path, dict(self.probe.body, prompt=self.probe.body["prompt"][::-1]))
        expected = ask(self.prefill.url, fresh)
        self.mark()
        self.assertEqual(expected, ask(self.proxy.url, fresh, timeout=CLIENT_S))
        self.await_record(self.decode, "landed")
        self.base.wait(self.engines(), LEASE_S + 15)


def add_cases():
    for victim in ("prefill", "decode", "proxy"):
        for stage in ("before_registration", "before_finish", "during_write", "after_write"):
            def test(self, victim=victim, stage=stage):
                self.story(victim, getattr(self, stage))
            setattr(Kill, "test_%s_%s" % (victim, stage), test)


add_cases()


if __name__ == "__main__":
    rig.main()
