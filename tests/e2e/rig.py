# SPDX-License-Identifier: Apache-2.0
"""Starts real kvferry processes for a test and makes sure that none outlives it.

Everything a test needs to play a story with several processes: engines and proxies on ports the
kernel picks, signals, the event records they write, HTTP with and without streaming, and the wait
until every count is back to its base. Standard library only.

Waiting is always for a condition with a deadline; a deadline bounds liveness, never speed.

Environment (set by tests/meson.build):
  KVF_BIN          the kvferry command
  KVF_TINY_BIN     the program that writes a tiny model
  KVF_TEST_MODEL   a real model's GGUF; tests that need it are skipped without it
  KVF_E2E_SMALL    set: smaller counts, for builds that run slowly (sanitizers)
"""
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

KVFERRY = os.environ.get("KVF_BIN", "")
TINY_MODEL = os.environ.get("KVF_TINY_BIN", "")
REAL_MODEL = os.environ.get("KVF_TEST_MODEL", "")
SMALL = bool(os.environ.get("KVF_E2E_SMALL"))

START_S = 60  # a process becomes ready, or the test fails
STOP_S = 20  # a process ends after SIGTERM, or the test fails
SETTLE_S = 60  # counts return to base, or the test fails
SANITIZER_MARKS = ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error:")


def wait_until(what, condition, timeout=SETTLE_S, pause=0.005):
    """Returns the first true value of condition(); fails with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s: not within %g s" % (what() if callable(what) else what, timeout))
        time.sleep(pause)


# ---- HTTP ------------------------------------------------------------------------------------


class Response:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    def error_text(self):
        """The message of an error body; fails when it is not one."""
        return self.json()["error"]["message"]


def split_url(url):
    host, port = url.split("://", 1)[1].rstrip("/").rsplit(":", 1)
    return host, int(port)


def request(url, method, path, body=None, headers=None, timeout=120):
    """One request on a connection of its own. Raises OSError or HTTPException when it is cut."""
    host, port = split_url(url)
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        sent = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        return Response(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def get(url, path, timeout=30):
    return request(url, "GET", path, timeout=timeout)


def post(url, path, body, headers=None, timeout=120):
    return request(url, "POST", path, body, headers, timeout)


class Stream:
    """A streamed answer: events as they come; close() in the middle is a client that leaves."""

    def __init__(self, url, path, body, headers=None, timeout=120):
        host, port = split_url(url)
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout)
        sent = {"Content-Type": "application/json"}
        sent.update(headers or {})
        try:
            self.connection.request("POST", path, json.dumps(dict(body, stream=True)).encode(), sent)
            self.socket = self.connection.sock
            self.answer = self.connection.getresponse()
        except BaseException:
            self.connection.close()
            raise
        self.status = self.answer.status
        self.done = False  # "[DONE]" was seen

    def events(self):
        """Yields the parsed data of each event until [DONE] or the end of the answer."""
        for line in self.answer:
            line = line.strip()
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
                continue
            yield json.loads(data)

    def close(self, reset=False):
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.answer.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def raw_exchange(port, data, timeout=30, half_close=False):
    """Sends bytes and returns all that comes back until the other side closes (or resets)."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as peer:
        try:
            peer.sendall(data)
            if half_close:
                peer.shutdown(socket.SHUT_WR)
            while chunk := peer.recv(65536):
                answer += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
    return answer


# ---- event records ---------------------------------------------------------------------------


class EventFile:
    """Reads the complete lines of a file that a process is still appending to."""

    def __init__(self, path):
        self.path = path
        self.records = []
        self._offset = 0
        self._lock = threading.Lock()

    def fresh(self):
        """The records that came since the last look."""
        with self._lock:
            new = []
            with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._offset += len(whole)
                new = [json.loads(line) for line in whole.splitlines()]
                for record in new:  # some speak of a peer and of no request
                    record["request"] = record.get("request") or ""
                self.records += new
            return new

    def read(self):
        """All records so far."""
        self.fresh()
        return list(self.records)

    def find(self, event, text=""):
        """Records of this kind whose request id contains `text`."""
        return [r for r in self.read() if r["event"] == event and text in r["request"]]

    def wait(self, event, text="", timeout=30):
        return wait_until(
            lambda: "no record '%s' for '%s' in %s, which has %s"
            % (event, text, self.path, [r["event"] for r in self.records if text in r["request"]]),
            lambda: self.find(event, text), timeout, pause=0.001)[0]


# ---- processes -------------------------------------------------------------------------------


class Process:
    """One kvferry process. Its log is kept until the rig closes."""

    def __init__(self, rig, name, argv, netns=None, env=None):
        self.rig = rig
        self.name = name
        self.argv = argv
        self.netns = netns
        self.env = env
        self.killed = False  # on purpose
        self.log_path = os.path.join(rig.dir, name + ".log")
        # The kernel ends the process when the test program is gone, however that went.
        command = ["setpriv", "--pdeathsig", "KILL"] + argv
        if netns:
            command = ["ip", "netns", "exec", netns] + command
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **rig.env, **(env or {})}, cwd=rig.dir)
        self.pid = self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def signal(self, number):
        self.popen.send_signal(number)

    def pause(self):
        """SIGSTOP, and waits until every thread has stopped."""
        self.signal(signal.SIGSTOP)
        tasks = "/proc/%d/task" % self.pid

        def all_stopped():
            for task in os.listdir(tasks):
                with open("%s/%s/stat" % (tasks, task)) as file:
                    if file.read().rsplit(")", 1)[1].split()[0] not in "Tt":
                        return False
            return True

        wait_until("%s stops" % self.name, all_stopped, 10, pause=0.001)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """kill -9."""
        self.killed = True
        self.popen.kill()
        self.popen.wait()

    def terminate(self, timeout=STOP_S):
        """SIGTERM, and the exit code; None when it did not end and had to be killed."""
        if self.alive():
            self.resume()
            self.signal(signal.SIGTERM)
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            return None

    def log(self):
        with open(self.log_path, "r", errors="replace") as file:
            return file.read()

    def cpu_seconds(self):
        """User and system time of all its threads, ended ones included."""
        with open("/proc/%d/stat" % self.pid) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(Process):
    """An engine or a proxy: has a ready file, event records and an HTTP port."""

    def __init__(self, rig, name, command, options, host="127.0.0.1", **process):
        self.command = command
        self.options = options
        self.host = host
        self.process = process
        self.ready_path = os.path.join(rig.dir, name + ".ready")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.ready_path)
        self.events = EventFile(os.path.join(rig.dir, name + ".events"))
        argv = [KVFERRY, command, *options, "--host", host, "--events", self.events.path,
                "--ready-file", self.ready_path]
        super().__init__(rig, name, argv, **process)
        self.ready = None

    def wait_ready(self, timeout=START_S):
        def is_ready():
            if not self.alive():
                raise AssertionError("%s ended with %d before it was ready:\n%s"
                                     % (self.name, self.popen.returncode, self.log()[-4000:]))
            return os.path.exists(self.ready_path)

        wait_until("%s is ready" % self.name, is_ready, timeout)
        with open(self.ready_path) as file:
            self.ready = json.load(file)
        self.port = self.ready["port"]
        self.url = "http://%s:%d" % (self.host, self.port)
        self.side_port = self.ready.get("side_port")
        return self

    def usage(self):
        answer = get(self.url, "/kvferry/usage")
        if answer.status != 200:
            raise AssertionError("%s: usage answers %d" % (self.name, answer.status))
        return answer.json()

    def restart(self):
        """The same command again on the ports it had; the caller waits until it is ready."""
        options = list(self.options)
        options[options.index("--port") + 1] = str(self.port)
        if "--side-port" in options:
            options[options.index("--side-port") + 1] = str(self.side_port)
        again = type(self)(self.rig, self.name + "-again", self.command, options, self.host,
                           **self.process)
        self.rig.processes.append(again)
        return again


class Rig:
    """A temporary folder and the processes that were started in it."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="kvferry-e2e-")
        self.processes = []
        self.env = {"UCX_LOG_LEVEL": "warn"}
        self._models = {}
        self._names = {}

    # -- what is in it

    def model(self, layers=2, seed=1, kind="f32"):
        """Path of a tiny model; the same arguments give the same file."""
        key = (layers, seed, kind)
        if key not in self._models:
            path = os.path.join(self.dir, "tiny-%d-%d-%s.gguf" % key)
            subprocess.run([TINY_MODEL, path, "--seed", str(seed), "--layers", str(layers),
                            "--type", kind], check=True, stdout=subprocess.DEVNULL)
            self._models[key] = path
        return self._models[key]

    def path(self, name):
        return os.path.join(self.dir, name)

    def _name(self, stem):
        self._names[stem] = self._names.get(stem, 0) + 1
        return "%s-%d" % (stem, self._names[stem])

    def run(self, *argv, timeout=60, **kwargs):
        """Runs `kvferry ARGV...` to its end."""
        return subprocess.run([KVFERRY, *argv], capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL, env={**os.environ, **self.env},
                              cwd=self.dir, **kwargs)

    def engine(self, role, model=None, wait=True, host="127.0.0.1", netns=None, env=None,
               **options):
        """Options by their names with underscores; True gives a flag."""
        name = self._name(role)
        values = {"port": 0, "side_port": 0, "side_host": host, "role": role, "engine_id": name,
                  "model": model or self.model(), "model_name": "test", "threads": 1,
                  "blocks": 1024, "max_batch_tokens": 256, "max_model_len": 2048, "max_seqs": 32,
                  "log_level": "info", "debug_kv": True, **options}
        return self._start(Server(self, name, "engine", to_options(values), host, netns=netns,
                                  env=env), wait)

    def proxy(self, prefill, decode, wait=True, host="127.0.0.1", netns=None, **options):
        arguments = to_options({"port": 0, "log_level": "info", **options})
        for engine in prefill:
            arguments += ["--prefill", engine.url]
        for engine in decode:
            arguments += ["--decode", engine.url]
        return self._start(Server(self, self._name("proxy"), "proxy", arguments, host,
                                  netns=netns), wait)

    def _start(self, server, wait):
        self.processes.append(server)
        return server.wait_ready() if wait else server

    # -- its end

    def close(self, failed=False):
        """Stops everything. Returns what was wrong with how the processes ended."""
        wrong = []
        for process in reversed(self.processes):
            if process.killed:
                continue
            ended_before = not process.alive()
            code = process.terminate()
            if code is None:
                wrong.append("%s did not end within %d s of SIGTERM" % (process.name, STOP_S))
            elif code != 0:
                wrong.append("%s ended with %d%s" % (
                    process.name, code, ", before it was asked to" if ended_before else ""))
        for process in self.processes:
            log = process.log()
            wrong += ["%s: %s in its log" % (process.name, mark) for mark in SANITIZER_MARKS if mark in log]
        if failed or wrong:
            for name in sorted(os.listdir(self.dir)):
                if name.endswith((".log", ".events")):
                    with open(self.path(name), "r", errors="replace") as file:
                        lines = file.read().splitlines()
                    print("---- %s, last of %d lines" % (name, len(lines)), file=sys.stderr)
                    print("\n".join(line[:400] for line in lines[-40:]), file=sys.stderr)
        if os.environ.get("KVF_E2E_KEEP"):
            print("kept: %s" % self.dir, file=sys.stderr)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
        return wrong


def to_options(values):
    arguments = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments += [option, str(value)]
    return arguments


# ---- counts ----------------------------------------------------------------------------------

# Not counts of work under way: they stay or grow when everything is at rest.
NOT_BASE = ("peers", "tombstones", "cached", "cached_blocks", "free_blocks")


def counts(tree, prefix=""):
    """The numbers of a usage answer that must be the same whenever nothing is under way."""
    found = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict):
            found.update(counts(value, name + "."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key not in NOT_BASE:
            found[name] = value
    return found


def off_base(before, server):
    """What differs from the counts taken at rest."""
    now = counts(server.usage())
    return ["%s: %s is %s, was %s" % (server.name, k, now.get(k), v)
            for k, v in before.items() if now.get(k) != v]


class Base:
    """The counts of some servers at rest; wait() until they are that again."""

    def __init__(self, servers):
        self.before = {server.name: counts(server.usage()) for server in servers}

    def wait(self, servers, timeout=SETTLE_S):
        for server in servers:
            wait_until(lambda: "; ".join(off_base(self.before[server.name], server)),
                       lambda: not off_base(self.before[server.name], server), timeout, pause=0.05)


def listening(pid):
    """(address, port) of each TCP socket on which a process listens over IPv4."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    with open("/proc/%d/net/tcp" % pid) as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16)))
    return found


def metric(server, name):
    """Sum over all label sets of a counter or gauge in /metrics; 0 when it is not there."""
    total = 0.0
    for line in get(server.url, "/metrics").body.decode().splitlines():
        if line.startswith(name + "{") or line.startswith(name + " "):
            total += float(line.rsplit(" ", 1)[1])
    return total


# ---- test programs ---------------------------------------------------------------------------


class Case(unittest.TestCase):
    """A test with a rig that is closed, and whose logs are shown, when it fails."""

    maxDiff = 4000

    def run(self, result=None):
        self._result = result
        self._bad_before = len(result.failures) + len(result.errors) if result else 0
        return super().run(result)

    def setUp(self):
        self.rig = Rig()
        self.addCleanup(self._close)

    def _close(self):
        bad = len(self._result.failures) + len(self._result.errors) if self._result else 0
        wrong = self.rig.close(failed=bad > self._bad_before)
        if wrong:
            self.fail("; ".join(wrong))


def main():
    """Runs the tests of the calling program. Exit code 77 when every one was skipped."""
    def stop(number, _frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit("stopped by signal %d" % number)

    signal.signal(signal.SIGTERM, stop)
    if not (os.path.exists(KVFERRY) and os.path.exists(TINY_MODEL)):
        sys.exit("KVF_BIN and KVF_TINY_BIN must name the built programs")
    program = unittest.main(module="__main__", verbosity=2, exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun and len(result.skipped) == result.testsRun else 0)
