# SPDX-License-Identifier: Apache-2.0
"""Two prefill and two decode engines behind one proxy: every answer is a single engine's."""
import rig
from answers import ask_all, check_answers, check_transfers, random_source, tiny_prompts


class ManyEngines(rig.Case):
    def test_two_and_two(self):
        count = 24 if rig.SMALL else 100
        prompts = tiny_prompts(random_source("many"), count, longest=200 if rig.SMALL else 1500)
        single = self.rig.engine("both", blocks=4096)
        expected = ask_all(single.url, prompts)
        self.assertEqual(0, single.terminate())

        prefill = [self.rig.engine("prefill", blocks=2048) for _ in range(2)]
        decode = [self.rig.engine("decode", blocks=2048) for _ in range(2)]
        proxy = self.rig.proxy(prefill, decode)
        base = rig.Base(prefill + decode)
        check_answers(self, prompts, expected, ask_all(proxy.url, prompts))
        check_transfers(self, prefill, decode, count // 2)
        for server in prefill + decode:
            self.assertTrue(server.events.find("received"), "%s had no request" % server.name)
        base.wait(prefill + decode)


if __name__ == "__main__":
    rig.main()
