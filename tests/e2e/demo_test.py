# SPDX-License-Identifier: Apache-2.0
"""tools/demo with a tiny model: a good run, a model that is not there, and Ctrl-C."""
import os
import signal
import subprocess

import rig

LAST_LINE = "demo: answer identical to a single engine's"


class Demo(rig.Case):
    def demo(self, **environment):
        return subprocess.Popen(
            [os.environ["KVF_DEMO"], os.environ["KVF_BUILD"]], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TMPDIR": self.rig.dir, **environment})

    def leftovers(self):
        return [name for name in os.listdir(self.rig.dir) if name.startswith("kvferry-demo-")]

    def test_good_run(self):
        run = self.demo(MODEL=self.rig.model())
        said, _ = run.communicate(timeout=300)
        self.assertEqual(0, run.returncode, said)
        self.assertEqual(LAST_LINE, said.rstrip().splitlines()[-1])
        for text in ("push", "blocks", "bytes", "runs", "first decode token"):
            self.assertIn(text, said)
        self.assertEqual([], self.leftovers())

    def test_model_that_is_not_there(self):
        run = self.demo(MODEL=self.rig.path("nothing.gguf"))
        said, _ = run.communicate(timeout=60)
        self.assertEqual(1, run.returncode, said)
        self.assertIn("nothing.gguf", said)

    def test_model_that_is_damaged(self):
        path = self.rig.path("damaged.gguf")
        with open(path, "wb") as file:
            file.write(b"GGUF" + bytes(1000))
        run = self.demo(MODEL=path)
        said, _ = run.communicate(timeout=300)
        self.assertEqual(1, run.returncode, said)
        self.assertIn("damaged.gguf", said)
        self.assertEqual([], self.leftovers())

    def test_interrupted(self):
        run = self.demo(MODEL=self.rig.model())
        said = ""
        for line in run.stdout:
            said += line
            if "proxy " in line and "pid" in line:
                break
        run.send_signal(signal.SIGINT)
        rest, _ = run.communicate(timeout=60)
        self.assertEqual(130, run.returncode, said + rest)
        self.assertEqual([], self.leftovers())
        pids = [line.split("pid")[1].split()[0] for line in said.splitlines() if " pid " in line]
        self.assertEqual(3, len(pids), said)
        for pid in pids:
            self.assertFalse(os.path.exists("/proc/" + pid), "%s is still there" % pid)


if __name__ == "__main__":
    rig.main()
