# SPDX-License-Identifier: Apache-2.0
"""kill -9 of prefill during a WRITE over TCP. A program of its own, because a UCX below 1.20 cannot
pass it (see PUT_TARGET_SURVIVES): there it is skipped, and must count as skipped."""
import rig
from kill_test import Stages


class KillInWrite(Stages):
    def test_prefill_during_write(self):
        self.story("prefill", self.during_write)


if __name__ == "__main__":
    rig.main()
