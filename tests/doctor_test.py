# SPDX-License-Identifier: Apache-2.0
"""A real run of kvferry doctor: its JSON has the documented form, its exit code and its text agree
with it, and standard output holds nothing else, whatever UCX prints.

Environment (set by tests/meson.build): KVF_BIN, the kvferry command.
"""
import json
import os
import subprocess
import unittest

KVFERRY = os.environ["KVF_BIN"]
LEVELS = ("ok", "note", "warn", "fail")


def run(*options, **variables):
    env = {name: value for name, value in os.environ.items() if not name.startswith("KVFERRY_")}
    return subprocess.run([KVFERRY, "doctor", *options], env=dict(env, **variables), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


class Doctor(unittest.TestCase):
    maxDiff = None

    def check_form(self, report):
        self.assertEqual(["schema", "version", "level", "possible", "findings"], list(report))
        self.assertEqual(1, report["schema"])
        levels = []
        for finding in report["findings"]:
            self.assertEqual(["topic", "level", "found", "follows", "remedy", "facts"], list(finding))
            self.assertIn(finding["level"], LEVELS)
            levels.append(LEVELS.index(finding["level"]))
            self.assertEqual(finding["level"] == "ok", finding["remedy"] is None, finding)
            for key in ("found", "follows", "remedy"):
                text = finding[key]
                if text is not None:
                    self.assertTrue(text.endswith(".") or key == "remedy", text)
                    self.assertTrue(text.isascii() and text.isprintable(), text)
            for value in finding["facts"].values():
                self.assertIn(type(value), (type(None), bool, int, str, list), finding)
                if isinstance(value, list):
                    self.assertTrue(all(isinstance(entry, str) for entry in value), finding)
        self.assertEqual(LEVELS[max(levels)], report["level"])
        self.assertEqual(report["level"] != "fail", report["possible"])

    def read(self, done):
        self.assertEqual(1, done.stdout.count("\n"), done.stdout)
        report = json.loads(done.stdout)
        self.check_form(report)
        self.assertEqual(0 if report["possible"] else 1, done.returncode, done.stdout)
        return {finding["topic"]: finding for finding in report["findings"]}

    def test_json(self):
        findings = self.read(run("--json"))
        self.assertTrue(findings["transfer"]["facts"]["moved"], findings["transfer"])
        self.assertTrue(findings["ucx"]["facts"]["transports"])

    def test_a_talkative_ucx(self):
        self.read(run("--json", UCX_LOG_LEVEL="info"))

    def test_no_transport(self):
        done = run("--json", UCX_TLS="nonesuch")
        findings = self.read(done)
        self.assertEqual(1, done.returncode)
        self.assertEqual("fail", findings["ucx"]["level"])
        self.assertEqual("fail", findings["transfer"]["level"])
        self.assertEqual(["UCX_TLS=nonesuch"],
                         [entry for entry in findings["settings"]["facts"]["set"] if "TLS" in entry])

    def test_text(self):
        done = run()
        self.assertEqual(0, done.returncode, done.stdout)
        lines = done.stdout.splitlines()
        self.assertTrue(lines[0].startswith("kvferry "), lines[0])
        self.assertTrue(lines[-1].startswith("Transfers are possible: 0 fail, "), lines[-1])
        self.assertLessEqual(max(map(len, lines)), 100)
        seen = [line.split()[0] for line in lines if line.split(" ")[0] in LEVELS]
        self.assertEqual(sorted(seen, key=LEVELS.index, reverse=True), seen)
        self.assertEqual(len(json.loads(run("--json").stdout)["findings"]), len(seen))


if __name__ == "__main__":
    unittest.main()
