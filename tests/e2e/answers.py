# SPDX-License-Identifier: Apache-2.0
"""Prompts, their answers, and what must be true of the transfers between two engines."""
import concurrent.futures
import random

from rig import metric, post, wait_until

WAVES = (1, 2, 32, 4, 16, 8)  # how many requests are under way at a time, in turn
EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1024, 1499, 1500)  # around blocks and chunks

# Token ids of a tiny model that stand for one byte each: no special token is among them.
FIRST_BYTE_TOKEN, LAST_BYTE_TOKEN = 3, 258


class Prompt:
    """One request: the path it is sent to and its body."""

    def __init__(self, path, body):
        self.path = path
        self.body = {"model": "test", "temperature": 0, "logprobs": 1, "return_token_ids": True, **body}

    def __repr__(self):
        return "%s %.200r" % (self.path, self.body)


def tiny_prompts(rng, count, longest=1500):
    """Token ids of many lengths. Some begin as an earlier one does, so that prefix caches hit."""
    prompts, ids_before = [], []
    for i in range(count):
        if i < len(EDGES):
            length = min(EDGES[i], longest)
        else:
            length = min(longest, int(rng.paretovariate(0.5)) + rng.randrange(40))
        ids = [rng.randint(FIRST_BYTE_TOKEN, LAST_BYTE_TOKEN) for _ in range(length)]
        if ids_before and rng.random() < 0.25:
            shared = rng.choice(ids_before)
            shared = shared[: rng.randint(1, len(shared))][: length]
            ids[: len(shared)] = shared
        ids_before.append(ids)
        body = {"prompt": ids, "max_tokens": rng.choice((1, 2, 5, 16, 24)),
                "ignore_eos": rng.random() < 0.7}
        if rng.random() < 0.3:
            body.update(temperature=rng.choice((0.5, 0.9, 1.2)), top_p=rng.choice((1, 0.9)),
                        seed=rng.randrange(1 << 31))
        prompts.append(Prompt("/v1/completions", body))
    return prompts


SUBJECTS = ("the sea", "a lighthouse", "old maps", "winter", "the invention of paper", "tea",
            "bridges", "how bees find flowers", "the number seven", "a letter from home")


def real_prompts(rng, count):
    """Text for a real model: mostly short, one of about 400 and one of about 1,500 tokens."""
    prompts = []
    for i in range(count):
        subject = SUBJECTS[i % len(SUBJECTS)]
        body = {"max_tokens": rng.choice((4, 8, 12))}
        if i % 4 == 3:
            body.update(temperature=0.8, seed=rng.randrange(1 << 31))
        if i % 3 == 0:
            body["messages"] = [{"role": "user", "content": "Tell me about %s." % subject}]
            body["logprobs"] = True
            prompts.append(Prompt("/v1/chat/completions", body))
            continue
        body["prompt"] = "Once upon a time, %s was all that people spoke of." % subject
        repeats = {1: 30, 2: 115}.get(i, rng.randint(0, 3))
        for n in range(repeats):
            body["prompt"] += " In the year %d someone wrote a few more words." % (1800 + n)
        prompts.append(Prompt("/v1/completions", body))
    return prompts


def content(response):
    """What two engines must agree on, to the last bit of each token's log-probability."""
    if response.status != 200:
        raise AssertionError("HTTP %d: %s" % (response.status, response.body[:500]))
    answer = response.json()
    return [(c.get("text"), c.get("message"), c["token_ids"], c["finish_reason"], c["logprobs"])
            for c in answer["choices"]], answer["usage"]["completion_tokens"]


def ask(url, prompt, timeout=300):
    return content(post(url, prompt.path, prompt.body, timeout=timeout))


def ask_all(url, prompts, waves=WAVES):
    """Every answer, in the order of the prompts; waves of 1 to 32 requests at a time."""
    answers = []
    with concurrent.futures.ThreadPoolExecutor(max(waves)) as pool:
        turn = 0
        while len(answers) < len(prompts):
            # A wave lasts for a few rounds of its width: the requests overlap in all ways.
            width = waves[turn % len(waves)]
            turn += 1
            part = prompts[len(answers): len(answers) + max(4, width)]
            pending, done = [], []
            for prompt in part:
                if len(pending) == width:
                    done.append(pending.pop(0).result())
                pending.append(pool.submit(ask, url, prompt))
            answers += done + [future.result() for future in pending]
    return answers


def check_answers(case, prompts, expected, got):
    for prompt, want, have in zip(prompts, expected, got, strict=True):
        case.assertEqual(want, have, "the answer to %r differs from a single engine's" % prompt)


def checksums(servers, event):
    """Base request id -> SHA-256 of its blocks, from the records of one side."""
    found = {}
    for server in servers:
        for record in server.events.find(event):
            if record["base"] in found:
                raise AssertionError("%s was %s twice" % (record["base"], event))
            found[record["base"]] = record["sha256"]
    return found


def check_transfers(case, prefill, decode, at_least):
    """P4: both sides saw the same bytes, for every transfer; nothing expired or failed."""
    wait_until("as many transfers land as were posted",
               lambda: len(checksums(prefill, "posted")) == len(checksums(decode, "landed")), 30)
    posted, landed = checksums(prefill, "posted"), checksums(decode, "landed")
    case.assertEqual(posted, landed)
    case.assertGreaterEqual(len(posted), at_least)
    for server in prefill + decode:
        for name in ("vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_failed_transfers_total",
                     "kvferry:registrations_expired_total", "kvferry:bad_messages_total",
                     "kvferry:events_dropped_total"):
            case.assertEqual(0, metric(server, name), "%s of %s" % (name, server.name))


def random_source(text):
    """The same prompts in every run; the seed is part of what a failure prints."""
    return random.Random("kvferry " + text)
