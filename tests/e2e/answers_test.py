# SPDX-License-Identifier: Apache-2.0
"""Prompts of 1 to 1,500 tokens, 1 to 32 at a time, through proxy, prefill and decode: every answer
is a single engine's, every transferred byte is prefill's, and afterwards nothing is left."""
import unittest

import rig
from answers import (ask_all, check_answers, check_transfers, random_source, real_prompts,
                     tiny_prompts)


class Answers(rig.Case):
    def through_two_engines(self, prompts, transfers_min, waves, model=None, model_name="test",
                            **options):
        options.update(model=model, model_name=model_name)
        single = self.rig.engine("both", **options)
        expected = ask_all(single.url, prompts)
        self.assertEqual(0, single.terminate())

        prefill = self.rig.engine("prefill", **options)
        decode = self.rig.engine("decode", **options)
        proxy = self.rig.proxy([prefill], [decode])
        base = rig.Base([prefill, decode])
        got = ask_all(proxy.url, prompts, waves)
        check_answers(self, prompts, expected, got)
        check_transfers(self, [prefill], [decode], transfers_min)
        base.wait([prefill, decode])

    def test_tiny_model(self):
        count = 30 if rig.SMALL else 180
        prompts = tiny_prompts(random_source("tiny"), count, longest=400 if rig.SMALL else 1500)
        self.through_two_engines(prompts, count // 2, (1, 2, 32, 4, 16, 8), blocks=4096)

    def test_tiny_model_other_block_sizes(self):
        prompts = tiny_prompts(random_source("blocks"), 16, longest=300)
        for block_size in (1, 64):
            with self.subTest(block_size=block_size):
                self.through_two_engines(prompts, 6, (8,), block_size=block_size,
                                         blocks=16384 // block_size, max_batch_tokens=96)

    def test_quantised_models(self):
        prompts = tiny_prompts(random_source("types"), 12, longest=120)
        for kind in ("f16", "q8_0", "q4_1", "q6_k"):
            with self.subTest(kind=kind):
                self.through_two_engines(prompts, 4, (4,), model=self.rig.model(kind=kind))

    @unittest.skipUnless(rig.REAL_MODEL, "KVF_TEST_MODEL names no model")
    @unittest.skipIf(rig.SMALL, "KVF_E2E_SMALL: the real model is too slow in this build")
    def test_real_model(self):
        prompts = real_prompts(random_source("real"), 20)
        self.through_two_engines(prompts, 16, (1, 4, 8), model=rig.REAL_MODEL, blocks=512,
                                 model_name="test")


if __name__ == "__main__":
    rig.main()
