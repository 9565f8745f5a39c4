# SPDX-License-Identifier: Apache-2.0
"""Bad input of every kind: whoever caused it gets a clear error, everybody else is served."""
import contextlib
import os
import socket
import threading
import time

import rig
import zmtp
from answers import Prompt, ask, random_source, tiny_prompts
from rig import post, raw_exchange

ERROR_S = 10  # who made a mistake knows it this long after

PROBE = Prompt("/v1/completions", {"prompt": list(range(3, 60)), "max_tokens": 4})


def completion(**changes):
    return {"model": "test", "prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, **changes}


def chat(**changes):
    return {"model": "test", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2,
            **changes}


# Not HTTP, or not HTTP that a server should take.
BAD_HTTP = {
    "garbage": b"\x00\x01\x02\xff garbage\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "other protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "long head": b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 200000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(20000)) + b"\r\n",
    "length not a number": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n",
    "negative length": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "huge length": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999999\r\n\r\n",
    "overflowing length": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551617\r\n\r\n",
    "two lengths": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "length and chunks": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "huge chunk": b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "header without colon": b"GET /health HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
}

BAD_BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "an array": b"[]",
    "a string": b'"hello"',
    "deep": b'{"prompt":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "not UTF-8": b'{"model":"test","prompt":"\xff\xfe","max_tokens":2}',
    "twice": b'{"model":"test","prompt":"a"}{"model":"test","prompt":"a"}',
}

BAD_COMPLETIONS = {
    "no prompt": completion(prompt=None),
    "empty prompt": completion(prompt=""),
    "prompt is a number": completion(prompt=5),
    "prompt is an object": completion(prompt={}),
    "empty list": completion(prompt=[]),
    "mixed list": completion(prompt=[1, "a"]),
    "negative token": completion(prompt=[-1]),
    "token past the vocabulary": completion(prompt=[100000000]),
    "token past 64 bits": completion(prompt=[10 ** 30]),
    "token is a fraction": completion(prompt=[1.5]),
    "prompt too long": completion(prompt=[5] * 5000),
    "max_tokens negative": completion(max_tokens=-1),
    "max_tokens a string": completion(max_tokens="many"),
    "max_tokens too many": completion(max_tokens=10 ** 12),
    "temperature negative": completion(temperature=-1),
    "temperature a string": completion(temperature="hot"),
    "top_p above 1": completion(top_p=1.5),
    "stream a string": completion(stream="yes"),
    "other model": completion(model="another"),
    "n is 0": completion(n=0),
}

BAD_CHATS = {
    "no messages": chat(messages=None),
    "empty messages": chat(messages=[]),
    "messages a string": chat(messages="hello"),
    "message without role": chat(messages=[{"content": "hello"}]),
    "message without content": chat(messages=[{"role": "user"}]),
    "content a number": chat(messages=[{"role": "user", "content": 5}]),
}


class Pair(rig.Case):
    """A prefill engine, a decode engine, a proxy, and what they answer to a good request."""

    def start(self, **options):
        self.prefill = self.rig.engine("prefill", lease=4, registration_timeout=4, **options)
        self.decode = self.rig.engine("decode", lease=4, registration_timeout=4, **options)
        self.proxy = self.rig.proxy([self.prefill], [self.decode])
        self.servers = [self.prefill, self.decode, self.proxy]
        self.base = rig.Base(self.servers)
        self.expected = ask(self.prefill.url, PROBE)
        self.assertEqual(self.expected, ask(self.proxy.url, PROBE))

    def check_others_served(self):
        for server in self.servers:
            self.assertTrue(server.alive(), "%s ended" % server.name)
            self.assertEqual(self.expected, ask(server.url, PROBE, timeout=ERROR_S))

    def check_refused(self, answer, status=400):
        self.assertIn(answer.status, (status,) if isinstance(status, int) else status, answer.body)
        self.assertGreater(len(answer.error_text()), 10, answer.body)
        return answer.error_text()


class BadHttp(Pair):
    def test_malformed_http(self):
        self.start()
        for server in self.servers:
            for name, data in BAD_HTTP.items():
                with self.subTest(server=server.name, case=name):
                    answer = raw_exchange(server.port, data, timeout=ERROR_S, half_close=True)
                    if answer:
                        self.assertRegex(answer.split(b"\r\n")[0], rb"^HTTP/1\.[01] (4|505|501)")
            self.assertEqual(404, post(server.url, "/nothing/here", {}).status)
            self.assertEqual(405, rig.request(server.url, "DELETE", "/health").status)
        self.check_others_served()
        self.base.wait(self.servers)

    def test_random_bytes(self):
        self.start()
        rng = random_source("bytes")
        for server in self.servers:
            for _ in range(20 if rig.SMALL else 100):
                data = rng.randbytes(rng.randrange(1, 300))
                if rng.random() < 0.5:
                    data = b"POST /v1/completions HTTP/1.1\r\n" + data
                raw_exchange(server.port, data, timeout=ERROR_S, half_close=True)
        self.check_others_served()
        self.base.wait(self.servers)

    def test_malformed_json(self):
        self.start()
        for server in self.servers:
            for path in ("/v1/completions", "/v1/chat/completions"):
                for name, body in BAD_BODIES.items():
                    with self.subTest(server=server.name, path=path, case=name):
                        self.check_refused(post(server.url, path, body, timeout=ERROR_S))
            for path, cases in (("/v1/completions", BAD_COMPLETIONS),
                                ("/v1/chat/completions", BAD_CHATS)):
                for name, body in cases.items():
                    with self.subTest(server=server.name, path=path, case=name):
                        body = {key: value for key, value in body.items() if value is not None}
                        self.check_refused(post(server.url, path, body, timeout=ERROR_S), (400, 404, 422))
        self.check_others_served()
        self.base.wait(self.servers)

    def test_clients_that_send_nothing(self):
        self.start()
        silent = []
        for server in self.servers:
            for n in range(40):
                silent.append(socket.create_connection(("127.0.0.1", server.port)))
                if n % 2:
                    silent[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        self.check_others_served()
        for peer in silent:
            peer.close()
        self.check_others_served()
        self.base.wait(self.servers)


class BadTransferParams(Pair):
    def leg(self, **changes):
        """A decode leg of a request whose prefill leg nobody sent."""
        coordinates = {"remote_engine_id": self.prefill.name, "remote_host": "127.0.0.1",
                       "remote_port": self.prefill.side_port, "tp_size": 1, "pp_size": 1}
        params = {"do_remote_decode": False, "do_remote_prefill": True,
                  "remote_request_id": "cmpl-nobody-0", **coordinates, **changes}
        return completion(prompt=[9] * 40, kv_transfer_params={
            key: value for key, value in params.items() if value != "absent"})

    def test_keys_missing_or_wrong(self):
        self.start()
        wrong = {
            "remote_engine_id": ("absent", None, "", 5, [], "e" * 1000),
            "remote_request_id": ("absent", None, "", 7, {}, "r" * 1000),
            "remote_host": ("absent", None, "", 1, "h" * 1000),
            "remote_port": ("absent", None, 0, -1, 65536, 10 ** 30, "5600x", 1.5, []),
            "tp_size": ("absent", None, 0, -1, 2, 10 ** 30, "one"),
            "pp_size": (0, -1, 2, "one"),
            "dcp_size": (0, 2, "one"),
            "do_remote_prefill": ("yes", 1),
            "do_remote_decode": (True,),
            "transfer_mode": ("pull", 5),
        }
        for key, values in wrong.items():
            for value in values:
                with self.subTest(key=key, value=str(value)[:20]):
                    answer = post(self.decode.url, "/v1/completions", self.leg(**{key: value}), timeout=ERROR_S)
                    text = self.check_refused(answer)
                    self.assertIn(key, text)
        for params in ("text", 5, [1]):
            with self.subTest(params=params):
                self.check_refused(post(self.decode.url, "/v1/completions",
                                        completion(kv_transfer_params=params), timeout=ERROR_S))
        self.check_others_served()
        self.base.wait(self.servers)

    def test_registration_for_an_unknown_request(self):
        self.start()
        answer = post(self.decode.url, "/v1/completions", self.leg(), timeout=ERROR_S)
        self.assertGreaterEqual(answer.status, 500)
        self.assertGreater(len(answer.error_text()), 10)
        self.check_others_served()
        self.base.wait(self.servers)

    def test_nobody_at_the_coordinates(self):
        self.start()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            closed = socket.create_server(("127.0.0.1", 0))
            nobody = closed.getsockname()[1]
            closed.close()
            cases = {
                "nobody listens": {"remote_port": nobody, "remote_engine_id": "nobody"},
                "listens, says nothing": {"remote_port": silent.getsockname()[1],
                                          "remote_engine_id": "silent"},
                "no such host": {"remote_host": "no-such-host.invalid", "remote_engine_id": "host"},
                "other engine there": {"remote_engine_id": "somebody-else"},
                "an HTTP port": {"remote_port": self.prefill.port, "remote_engine_id": "http"},
            }
            answers = {}

            def send(name, changes):
                answers[name] = post(self.decode.url, "/v1/completions", self.leg(**changes), timeout=30)

            started = time.monotonic()
            threads = [threading.Thread(target=send, args=case) for case in cases.items()]
            for thread in threads:
                thread.start()
            self.assertEqual(self.expected, ask(self.proxy.url, PROBE, timeout=ERROR_S))
            for thread in threads:
                thread.join()
            self.assertLess(time.monotonic() - started, ERROR_S)
        for name in cases:
            with self.subTest(case=name):
                self.assertGreaterEqual(answers[name].status, 500)
                self.assertGreater(len(answers[name].error_text()), 10)
        self.check_others_served()
        self.base.wait(self.servers)


class BadPeers(Pair):
    def test_garbage_on_the_side_channel(self):
        self.start()
        rng = random_source("side channel")
        request = b"\x92\xa4\x00"
        for port in (self.prefill.side_port, self.decode.side_port):
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, zmtp.GREETING, zmtp.GREETING[:11],
                         zmtp.GREETING + b"\x04\xff" * 100, zmtp.GREETING + zmtp.ready(b"PUB"),
                         zmtp.GREETING + zmtp.ready(b"DEALER") + b"\x02" + b"\xff" * 8):
                leave_bytes(port, data)
            for _ in range(50):
                leave_bytes(port, rng.randbytes(rng.randrange(1, 200)))
            with zmtp.Peer(port) as peer:
                for n in range(200):
                    parts = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 6))]
                    if n % 3 == 0:
                        parts = [b"", request + rng.randbytes(rng.randrange(20))]
                    peer.send(zmtp.message(*parts))
                with contextlib.suppress(ConnectionError):  # it need not read all of that
                    peer.send(zmtp.message(b"", b"x" * (8 << 20)))
        self.check_others_served()
        self.base.wait(self.servers)

    def test_garbage_on_every_port(self):
        """The data plane's ports too."""
        self.start()
        rng = random_source("ports")
        for engine in (self.prefill, self.decode):
            places = rig.listening(engine.pid)
            self.assertLessEqual({engine.port, engine.side_port}, {port for _, port in places})
            self.assertGreater(len(places), 2)
            for address, port in places:
                for _ in range(20):
                    leave_bytes(port, rng.randbytes(rng.randrange(1, 3000)), address)
        self.check_others_served()
        self.base.wait(self.servers)

    def test_wrong_model_on_one_side(self):
        prompts = tiny_prompts(random_source("wrong model"), 1)
        prompts[0].body.update(prompt=list(range(3, 103)), max_tokens=3)
        cases = {
            "more layers": ({}, {"model": self.rig.model(layers=3)}),
            "other name": ({}, {"model_name": "another"}),
            "other block size": ({}, {"block_size": 32}),
        }
        for name, (left, right) in cases.items():
            with self.subTest(case=name):
                prefill = self.rig.engine("prefill", lease=3, registration_timeout=4, **left)
                decode = self.rig.engine("decode", lease=3, registration_timeout=4, **right)
                proxy = self.rig.proxy([prefill], [decode])
                base = rig.Base([prefill, decode])
                started = time.monotonic()
                answer = post(proxy.url, "/v1/completions", prompts[0].body, timeout=30)
                self.assertLess(time.monotonic() - started, ERROR_S)
                self.assertGreaterEqual(answer.status, 400, answer.body)
                print("    %s: %s" % (name, answer.error_text()), flush=True)
                for engine, options in ((prefill, left), (decode, right)):
                    alone = dict(PROBE.body, model=options.get("model_name", "test"))
                    self.assertEqual(200, post(engine.url, PROBE.path, alone).status)
                base.wait([prefill, decode])


def leave_bytes(port, data, address="127.0.0.1"):
    """Sends bytes and leaves after the other side had a chance to say something."""
    with socket.create_connection((address, port), timeout=0.02) as peer:
        try:
            peer.sendall(data)
            peer.recv(4096)
        except (ConnectionError, TimeoutError):
            pass


class BadStart(rig.Case):
    def engine_fails(self, *options, text, model=None):
        run = self.rig.run("engine", "--model", model or self.rig.model(), "--role", "both",
                           "--port", "0", "--side-port", "0", *options, timeout=30)
        said = run.stderr + run.stdout
        self.assertGreater(run.returncode, 0, "ended with %d: %s" % (run.returncode, said))
        self.assertRegex(said, text)
        return said

    def test_model_file(self):
        good = self.rig.model()
        with open(good, "rb") as file:
            data = file.read()
        rng = random_source("model")
        cases = {"missing": None, "empty": b"", "short": data[:3], "text": b"hello " * 1000,
                 "random": rng.randbytes(100000), "only random after magic": data[:4] + rng.randbytes(5000)}
        for share in (0.001, 0.1, 0.5, 0.999):
            cases["cut at %g" % share] = data[: int(len(data) * share)]
        for name, content in cases.items():
            path = self.rig.path("bad.gguf")
            if content is None:
                path = self.rig.path("missing.gguf")
            else:
                with open(path, "wb") as file:
                    file.write(content)
            with self.subTest(case=name):
                self.engine_fails(text=os.path.basename(path), model=path)
        with self.subTest(case="directory"):
            self.engine_fails(text=".", model=self.rig.dir)

    def test_damaged_heads_never_crash(self):
        """Bytes of the head changed at random: refused or served, no signal."""
        with open(self.rig.model(), "rb") as file:
            data = file.read()
        rng = random_source("damage")
        path = self.rig.path("damaged.gguf")
        refused = 0
        for _ in range(10 if rig.SMALL else 60):
            changed = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(4, 3000)] = rng.randrange(256)
            with open(path, "wb") as file:
                file.write(changed)
            server = self.rig.engine("both", model=path, wait=False)
            rig.wait_until("the engine ends or is ready", lambda: not server.alive()
                           or os.path.exists(server.ready_path), rig.START_S)
            if server.alive():
                self.assertEqual(0, server.terminate())
            else:
                refused += 1
                self.assertGreater(server.popen.returncode, 0, server.log())
            self.rig.processes.remove(server)
        self.assertGreater(refused, 0)

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            said = self.engine_fails("--port", port, text=port)
            self.assertRegex(said, "(?i)in use")
            said = self.engine_fails("--side-port", port, text=port)
            self.assertRegex(said, "(?i)in use")
            run = self.rig.run("proxy", "--port", port, "--prefill", "http://127.0.0.1:9",
                               "--decode", "http://127.0.0.1:9", timeout=30)
            self.assertGreater(run.returncode, 0)
            self.assertRegex(run.stderr, "(?i)%s.*in use|in use.*%s" % (port, port))

    def test_options(self):
        for options in (("--role", "both-ish"), ("--block-size", "3"), ("--blocks", "0"),
                        ("--max-seqs", "0"), ("--threads", "many"), ("--no-such-option", "1"),
                        ("--port", "65536"), ("--lease", "-1"), ("--kv-load-failure-policy", "hope")):
            with self.subTest(options=options):
                self.engine_fails(*options, text=options[0].lstrip("-"))
        for arguments in (("engine",), ("proxy",), ("chat",), ("nonsense",), ()):
            with self.subTest(arguments=arguments):
                run = self.rig.run(*arguments, timeout=30)
                self.assertGreater(run.returncode, 0)
                self.assertTrue(run.stderr)


if __name__ == "__main__":
    rig.main()
