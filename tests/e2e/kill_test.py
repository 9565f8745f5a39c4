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
from answers import Prompt, ask, content, random_source, tiny_prompts
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
        self.ended = None
        self.first_chunk = threading.Event()
        self.tokens = []
        self.start()

    def run(self):
        outcome = self.ask()
        self.ended = time.monotonic()
        self.outcome = outcome

    def ask(self):
        try:
            with Stream(self.url, self.prompt.path, self.prompt.body) as stream:
                if stream.status != 200:
                    return "error", "HTTP %d %s" % (stream.status, stream.answer.read().decode())
                for event in stream.events():
                    if "error" in event:
                        return "error", event["error"]["message"]
                    for choice in event["choices"]:
                        self.tokens += choice["token_ids"]
                    self.first_chunk.set()
                return ("answer", self.tokens) if stream.done else ("error", "cut short")
        except (OSError, http.client.HTTPException) as error:
            return "error", repr(error)


def long_prompt(rng, max_tokens):
    ids = [rng.randint(3, 258) for _ in range(200 if rig.SMALL else 1500)]
    return Prompt("/v1/completions", {"prompt": ids, "max_tokens": max_tokens, "ignore_eos": True})


class Stages(rig.Case):
    """One prefill, one decode, a proxy; how to reach each stage, and what is true after a kill."""

    TRANSPORTS = "tcp"  # a WRITE needs the cooperation of the other side

    def setUp(self):
        super().setUp()
        if self.TRANSPORTS:
            self.rig.env["UCX_TLS"] = self.TRANSPORTS
            self.rig.env["KVFERRY_LANES"] = "ucx"
        self.rng = random_source(self.id())
        # 24 layers: 1,500 tokens are 9 MB of cache, more than the sockets' buffers hold.
        options = {"model": self.rig.model(layers=4 if rig.SMALL else 24), "lease": LEASE_S,
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
        if victim is self.prefill and stage == self.after_write:  # it is not needed any more
            alone = ask(self.decode.url, client.prompt)
            self.assertEqual(("answer", alone[0][0][2]), client.outcome)
        print("    %s after %.1f s: %.150s" % (client.outcome[0], max(0, client.ended - killed),
                                               client.outcome[1]), flush=True)

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


class SecondEngine(rig.Case):
    """Two engines of each role: the proxy goes on with those that live."""

    def test_one_of_each_role_dies(self):
        rng = random_source(self.id())
        prefill = [self.rig.engine("prefill", lease=LEASE_S) for _ in range(2)]
        decode = [self.rig.engine("decode", registration_timeout=8) for _ in range(2)]
        proxy = self.rig.proxy(prefill, decode)
        bases = [rig.Base([server]) for server in prefill + decode]
        prompts = tiny_prompts(rng, 12, longest=300)
        expected = [ask(prefill[0].url, prompt) for prompt in prompts]
        for prompt, answer in zip(prompts[:4], expected):
            self.assertEqual(answer, ask(proxy.url, prompt))
        for dead, alive in ((prefill, bases[1]), (decode, bases[3])):
            dead[0].kill()
            # One request may find out that it is dead; the others must not notice.
            errors = 0
            for prompt, answer in zip(prompts, expected):
                response = post(proxy.url, prompt.path, prompt.body, timeout=CLIENT_S)
                if response.status == 200:
                    self.assertEqual(answer, content(response))
                else:
                    errors += 1
            self.assertLessEqual(errors, 1)
            alive.wait([dead[1]], LEASE_S + 15)
        for engines in (prefill, decode):
            engines[0] = engines[0].restart().wait_ready()
        for server in prefill + decode:
            wait_until("%s is used" % server.name, lambda: ask(proxy.url, prompts[0])
                       and server.events.find("received"), 30)


class Kill(Stages):
    """Over TCP."""


class KillSharedMemory(Stages):
    """The same with our own choice of lanes, which is the mapped pool. A WRITE there needs nothing of
    the other side, so no stage inside it."""

    TRANSPORTS = None


def add_cases():
    stages = ("before_registration", "before_finish", "after_write")
    for case, victims, stages in ((Kill, ("prefill", "decode", "proxy"), stages + ("during_write",)),
                                  (KillSharedMemory, ("prefill", "decode"), stages)):
        for victim in victims:
            for stage in stages:
                def test(self, victim=victim, stage=stage):
                    self.story(victim, getattr(self, stage))
                setattr(case, "test_%s_%s" % (victim, stage), test)


add_cases()

if __name__ == "__main__":
    rig.main()
