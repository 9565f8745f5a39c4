# SPDX-License-Identifier: Apache-2.0
"""What `make install` gives a user: headers, a .pc file that compiles a program, the library with
exactly the symbols that the headers declare, the command, the man pages."""
import glob
import os
import re
import subprocess
import tempfile
import unittest

BUILD = os.environ["KVF_BUILD"]

PROGRAM = r"""
#include <kvferry/kvferry.h>
#include <stdio.h>
int main(void)
{
    struct kvf_error error;
    struct kvf_kv_config config = KVF_KV_CONFIG_INIT;
    struct kvf_scheduler *scheduler = NULL;
    config.mode = KVF_MODE_PULL;
    enum kvf_status status = kvf_scheduler_create(&config, NULL, &scheduler, &error);
    printf("%s %s\n", kvf_version(), kvf_status_name(status));
    return status == KVF_OK;
}
"""


def run(*argv, **kwargs):
    done = subprocess.run(argv, capture_output=True, text=True, **kwargs)
    if done.returncode:
        raise AssertionError("%s\n%s%s" % (" ".join(argv), done.stdout, done.stderr))
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", cls.folder.name)

    def find(self, name):
        found = glob.glob(os.path.join(self.folder.name, "**", name), recursive=True)
        self.assertTrue(found, "%s is not installed" % name)
        return found[0]

    def pkg_config(self, *argv):
        env = dict(os.environ, PKG_CONFIG_SYSROOT_DIR=self.folder.name,
                   PKG_CONFIG_LIBDIR=os.path.dirname(self.find("kvferry.pc")) + ":" +
                   run("pkg-config", "--variable", "pc_path", "pkg-config").strip())
        return run("pkg-config", *argv, "kvferry", env=env).split()

    def test_a_program_compiles_links_and_runs(self):
        source = os.path.join(self.folder.name, "user.c")
        program = os.path.join(self.folder.name, "user")
        with open(source, "w") as file:
            file.write(PROGRAM)
        run("cc", "-std=c11", "-Wall", "-Werror", source, "-o", program, *self.pkg_config("--cflags", "--libs"))
        env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(self.find("libkvferry.so.0")))
        version = self.pkg_config("--modversion")[0]
        self.assertEqual("%s KVF_ENOTSUP\n" % version, run(program, env=env))

    def test_the_symbols_are_those_of_the_headers(self):
        declared = set()
        for header in glob.glob(os.path.join(os.path.dirname(self.find("kvferry.h")), "*.h")):
            with open(header) as file:
                text = file.read()
            for found in re.finditer(r"^KVF_API\b[^;{]*?\b(kvf_\w+)\s*\(", text, re.M):
                declared.add(found.group(1))
        self.assertGreater(len(declared), 40)
        table = run("nm", "-D", "--defined-only", self.find("libkvferry.so.0"))
        exported = {line.split()[-1].split("@")[0] for line in table.splitlines() if line.split()[-2] in "TDBRW"}
        self.assertEqual(declared, exported)

    def test_the_rest_is_there(self):
        for name in ("kvferry", "libkvferry.a", "kvferry.1", "kvferry-engine.1", "kvferry-proxy.1",
                     "kvferry-chat.1", "kvferry-trace.1", "kvferry.7"):
            self.find(name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
