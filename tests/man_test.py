# SPDX-License-Identifier: Apache-2.0
"""The documents say what the program does: options of man pages and README against --help, event
records and metrics against the source, paths in docs against the tree.

Environment (set by tests/meson.build): KVF_BIN, the kvferry command.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KVFERRY = os.environ.get("KVF_BIN", "")
COMMANDS = ("engine", "proxy", "chat", "trace", "doctor")
PAGES = ("kvferry.1", "kvferry.7") + tuple("kvferry-%s.1" % name for name in COMMANDS)
# page -> the header whose functions it and its siblings describe
LIBRARY_PAGES = {"kvf_agent_%s.3" % name: "agent.h" for name in ("create", "metadata", "post", "register")}


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def run_help(*command):
    run = subprocess.run([KVFERRY, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def one_line(text):
    return " ".join(text.split())


def help_options(text):
    """{name: (argument or None, words)} of a --help text."""
    options = {}
    name = None
    for line in text.splitlines():
        head = re.match(r"  --([a-z-]+)(?: (\S+))?(?:\s+(.*))?$", line)
        if head:
            name = head.group(1)
            options[name] = [head.group(2), head.group(3) or ""]
        elif name and line.startswith("   "):
            options[name][1] += " " + line
        else:
            name = None
    return {name: (argument, one_line(words)) for name, (argument, words) in options.items()}


def page_options(text):
    """The same of a man page: `.It Fl -name Ar ARGUMENT` and the lines of text up to a macro."""
    options = {}
    name = None
    for line in text.splitlines():
        head = re.match(r"\.It Fl -([a-z-]+)(?: Ar (\S+))?$", line)
        if head:
            name = head.group(1)
            options[name] = [head.group(2), ""]
        elif line.startswith("."):
            name = None
        elif name:
            options[name][1] += " " + line
    return {name: (argument, one_line(words)) for name, (argument, words) in options.items()}


def command_lines(text, command):
    """The command lines of one subcommand in a document, continued lines joined."""
    text = text.replace("\\e\n", " ").replace("\\\n", " ")
    return re.findall(r"kvferry %s((?: [^\n`]*)?)" % command, text)


def source_files(*folders):
    for folder in folders:
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith(".c") and not name.endswith("_test.c") and not name.startswith("test"):
                    yield os.path.join(path, name)


def source_words():
    words = set()
    for folder in ("include", "src", "http", "engine", "cli", "bench"):
        for path, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".c", ".h")):
                    with open(os.path.join(path, name)) as file:
                        words.update(re.findall(r"\w+", file.read()))
    # Names that macros put together from a list of states.
    lists = read("src/core/core.h") + read("src/core/scheduler.h")
    for prefix, body in re.findall(r"#define KVFI_(\w+)_STATE_LIST\(X\)(.*?)\n\n", lists, re.DOTALL):
        words.update("KVFI_%s_%s" % (prefix, state) for state in re.findall(r"X\((\w+),", body))
    return words


class Options(unittest.TestCase):
    maxDiff = None

    def test_each_command(self):
        for command in COMMANDS:
            with self.subTest(command):
                told = help_options(run_help(command))
                self.assertGreater(len(told), 1)
                self.assertEqual(told, page_options(read("man/kvferry-%s.1" % command)))

    def test_the_command_itself(self):
        text = run_help()
        self.assertEqual(help_options(text), page_options(read("man/kvferry.1")))
        listed = re.findall(r"^  ([a-z]+)  +(\S.*)$", text, re.MULTILINE)
        self.assertEqual(list(COMMANDS), [name for name, _ in listed])
        page = one_line(read("man/kvferry.1"))
        for name, words in listed:
            self.assertIn(".It Cm %s %s, see .Xr kvferry-%s 1" % (name, words, name), page)

    def test_exit_codes(self):
        for command in COMMANDS:
            (codes,) = re.findall(r"exit codes: (.*)", run_help(command))
            page = read("man/kvferry-%s.1" % command).split(".Sh EXIT STATUS")[1].split(".El")[0]
            found = re.findall(r"\.It (\d)\n(.*)\n", page)
            self.assertEqual(codes, ", ".join("%s %s" % pair for pair in found), command)

    def test_command_lines(self):
        """Every option on a command line of a document exists."""
        documents = ["README.md"] + ["man/" + page for page in PAGES]
        documents += ["docs/" + name for name in sorted(os.listdir(os.path.join(ROOT, "docs")))]
        seen = 0
        for command in COMMANDS:
            known = help_options(run_help(command))
            for document in documents:
                for line in command_lines(read(document), command):
                    for option in re.findall(r"(?<=\s)--([a-z-]+)", line.split(" | ")[0]):
                        seen += 1
                        self.assertIn(option, known, "%s: kvferry %s%s" % (document, command, line))
        self.assertGreater(seen, 10)


class Doctor(unittest.TestCase):
    """The man page lists the topics of kvferry doctor in its order, each with its facts."""

    def test_topics_and_facts(self):
        page = read("man/kvferry-doctor.1").split(".Ss Topics")[1].split(".Sh ENVIRONMENT")[0]
        told = [(topic, re.findall(r"^\.Fa (\w+)", text, re.MULTILINE))
                for topic, text in re.findall(r"^\.It Cm (\w+)\n(.*?)(?=^\.It|^\.El)", page, re.MULTILINE | re.DOTALL)]
        run = subprocess.run([KVFERRY, "doctor", "--json"], stdout=subprocess.PIPE, text=True)
        found = [(finding["topic"], list(finding["facts"])) for finding in json.loads(run.stdout)["findings"]]
        self.assertGreater(len(found), 10)
        self.assertEqual(found, told)


class Records(unittest.TestCase):
    EMITTERS = (
        r'\.event = "(\w+)"',
        r'\brecord\(core, effects, (?:[^";]*\? )?"(\w+)"(?: : "(\w+)")?',
        r'kvf_events_emit\([^;"]*"(\w+)"',
        r'\bemit(?:_text)?\(route, "(\w+)"',
    )

    def test_events(self):
        emitted = set()
        for path in source_files("src/core", "src/kv", "engine", "cli"):
            with open(path) as file:
                text = file.read()
            for pattern in self.EMITTERS:
                for groups in re.findall(pattern, text):
                    emitted.update((groups,) if isinstance(groups, str) else filter(None, groups))
        page = read("man/kvferry-trace.1").split(".Ss Of a proxy")[1].split(".Sh OUTPUT")[0]
        told = set(re.findall(r"^\.It Cm (\w+)$", page, re.MULTILINE))
        self.assertGreater(len(emitted), 15)
        self.assertEqual(sorted(emitted), sorted(told))

    def test_fields(self):
        named = {"sha256"}
        for path in source_files("src/kv", "src/core", "engine", "cli"):
            with open(path) as file:
                text = file.read()
            if "kvf_event_field" in text:
                named.update(re.findall(r'\{\.name = "(\w+)", \.(?:text|number)', text))
                named.update(re.findall(r'put_field\(effects, fields, &count, "(\w+)"', text))
                named.update(re.findall(r'emit_text\(route, "\w+", "(\w+)"', text))
        self.assertGreater(len(named), 12)
        page = set(re.findall(r"\w+", read("man/kvferry-trace.1").split(".Ss Of a proxy")[1]))
        self.assertEqual(set(), named - page)


class Metrics(unittest.TestCase):
    NAME = re.compile(r'"((?:vllm|kvferry):\w+)"')

    def told(self, page):
        text = read(page).split(".Sh METRICS")[1].split(".Sh ENVIRONMENT")[0]
        return re.findall(r"^\.It Cm (\S+:\S+)$", text, re.MULTILINE)

    def test_engine(self):
        lists = read("include/kvferry/observe.h")
        counters, histograms = lists.split("#define KVF_COUNTER_LIST")[1].split("#define KVF_HISTOGRAM_LIST")
        names = [name + "_total" for name in self.NAME.findall(counters)]
        names += self.NAME.findall(histograms)
        names += re.findall(r"# TYPE ((?:vllm|kvferry):\w+)", read("engine/api_info.c"))
        names += self.NAME.findall(read("engine/api_info.c"))
        self.assertEqual(sorted(names), sorted(self.told("man/kvferry-engine.1")))

    def test_proxy(self):
        text = read("cli/proxy_report.c")
        counters = re.findall(r'\bcounter\(out, "(kvferry:\w+)"', text)
        names = [name + "_total" if name in counters else name for name in self.NAME.findall(text)]
        self.assertEqual(sorted(names), sorted(self.told("man/kvferry-proxy.1")))


class Documents(unittest.TestCase):
    def documents(self):
        yield "README.md"
        for name in sorted(os.listdir(os.path.join(ROOT, "docs"))):
            yield "docs/" + name

    def test_paths(self):
        """What stands in backticks and looks like a path of the tree is one."""
        tops = [name for name in os.listdir(ROOT) if not name.startswith("build")]
        pattern = re.compile(r"`((?:%s)(?:/[\w.*/-]*)?)`" % "|".join(re.escape(name) for name in tops))
        seen = 0
        for document in self.documents():
            for path in pattern.findall(read(document)):
                seen += 1
                self.assertTrue(glob.glob(os.path.join(ROOT, path)), "%s: %s" % (document, path))
            for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(document)):
                target = os.path.join(ROOT, os.path.dirname(document), path)
                self.assertTrue(os.path.exists(target), "%s: link to %s" % (document, path))
        self.assertGreater(seen, 40)

    def test_names(self):
        """Words in backticks exist in the source: all of them in the architecture page, elsewhere
        those with an underscore. Variables of UCX and the loader are not ours."""
        known = source_words()
        seen = 0
        for document in self.documents():
            every = document == "docs/architecture.md"
            words = re.findall(r"`(?:struct |enum )?([A-Za-z_]\w+)(?:\(\))?`", read(document))
            for word in words:
                if (every or "_" in word) and not word.startswith(("UCX_", "LD_")):
                    seen += 1
                    self.assertTrue(word in known, "%s: %s" % (document, word))
        self.assertGreater(seen, 100)

    def test_states(self):
        """The architecture page lists the states of each object as the source does."""
        core = read("src/core/core.h")
        page = read("docs/architecture.md")
        for name in ("peer", "send", "receive"):
            body = core.split("#define KVFI_%s_STATE_LIST(X)" % name.upper())[1].split("\n\n")[0]
            states = re.findall(r"X\((\w+),", body)
            self.assertGreater(len(states), 4)
            (row,) = re.findall(r"^\| `struct kvfi_%s` \| [^|]* \| ([^|]*) \|" % name, page, re.MULTILINE)
            self.assertEqual(", ".join(states), row)

    def test_metrics(self):
        source = read("include/kvferry/observe.h") + read("engine/api_info.c") + read("cli/proxy_report.c")
        known = set(re.findall(r'[" ]((?:vllm|kvferry):\w+)', source))
        seen = 0
        for document in self.documents():
            for name in re.findall(r"`((?:vllm|kvferry):\w+)`", read(document)):
                seen += 1
                self.assertIn(name, known, document)
        self.assertGreater(seen, 10)

    def test_usage_fields(self):
        """The operations page explains each number of an engine's /kvferry/usage."""
        source = read("engine/api_info.c").split("/* ---- usage")[1].split("/* ---- metrics")[0]
        numbers = re.findall(r'"(\w+)",\s*\(json_int_t\)', source)
        self.assertGreater(len(numbers), 25)
        table = read("docs/operations.md").split("## `/kvferry/usage` of an engine")[1].split("\n## ")[0]
        fields = []
        for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE):
            fields += [field.rsplit(".", 1)[1] for field in re.findall(r"`([a-z_.]+)`", row)]
        self.assertEqual(sorted(numbers), sorted(fields))

    def test_options(self):
        known = set()
        for command in COMMANDS:
            known.update(help_options(run_help(command)))
        for document in self.documents():
            for option in re.findall(r"`--([a-z-]+)[^`]*`", read(document)):
                self.assertIn(option, known, document)


class Pages(unittest.TestCase):
    def test_library(self):
        """Names of the library in kvferry(7) are in its headers."""
        words = set()
        for name in os.listdir(os.path.join(ROOT, "include", "kvferry")):
            words.update(re.findall(r"\w+", read("include/kvferry/" + name)))
        page = read("man/kvferry.7")
        names = re.findall(r"^\.(?:Fn|Fa|Dv|Vt struct|Vt enum) (\w+)", page, re.MULTILINE)
        names += re.findall(r"^(kvf_\w+)\(", page, re.MULTILINE)
        self.assertGreater(len(names), 20)
        self.assertEqual([], [name for name in names if name not in words and name != "_INIT"])

    def test_functions(self):
        """The section 3 pages describe the functions of their header, all of them, as declared."""
        for header in sorted(set(LIBRARY_PAGES.values())):
            declared = {}
            pattern = r"^KVF_API\s+([\w ]+?[ *]+)(kvf_\w+)\(([^;]*?)\)\s*(?:KVF_MUST_USE)?;"
            for result, name, arguments in re.findall(pattern, read("include/kvferry/" + header), re.MULTILINE):
                declared[name] = (result.strip(), [one_line(argument) for argument in arguments.split(",")])
            self.assertGreater(len(declared), 20)
            told = {}
            for page in sorted(LIBRARY_PAGES):
                if LIBRARY_PAGES[page] != header:
                    continue
                text = read("man/" + page)
                synopsis = text.split(".Sh SYNOPSIS")[1].split(".Sh DESCRIPTION")[0]
                found = re.findall(r'^\.Ft "([^"]*)"\n\.Fo (\w+)\n((?:\.Fa "[^"]*"\n)*)\.Fc$', synopsis, re.MULTILINE)
                names = [name for _, name, _ in found]
                self.assertEqual(names, re.findall(r"^\.Nm (\w+)", text.split(".Nd")[0], re.MULTILINE), page)
                described = text.split(".Sh DESCRIPTION")[1]
                for result, name, arguments in found:
                    self.assertIn(".Fn %s" % name, described, page)
                    self.assertNotIn(name, told)
                    told[name] = (result, re.findall(r'"([^"]*)"', arguments))
            self.assertEqual(declared, told)

    def test_example(self):
        """The example of the agent's page is the program that runs as a test."""
        program = read("src/agent/example_test.c").split("*/\n", 1)[1]
        self.assertIn("```c\n" + program + "```\n", read("docs/agent.md"))

    def test_nixl_codes(self):
        """The table of the agent's page is what kvf_status_nixl() does."""
        source = read("src/agent/nixl_status.c")
        numbers = dict(re.findall(r"(NIXL_\w+) = (-?\d+)", source))
        coded = {}
        for cases, code in re.findall(r"((?:    case KVF_\w+:\n)+)        return (NIXL_\w+);", source):
            for status in re.findall(r"KVF_\w+", cases):
                coded[status] = (code, numbers[code])
        told = {}
        for statuses, code, number in re.findall(r"^\| (`KVF_[^|]*) \| (NIXL_\w+) (-?\d+) \|", read("docs/agent.md"), re.MULTILINE):
            for status in re.findall(r"KVF_\w+", statuses):
                told[status] = (code, number)
        self.assertEqual(coded, told)

    def test_all_are_listed(self):
        every = sorted(PAGES + tuple(LIBRARY_PAGES))
        self.assertEqual(every, sorted(re.findall(r"'(kvf[\w.-]*)'", read("man/meson.build"))))
        on_disk = [name for name in os.listdir(os.path.join(ROOT, "man")) if name != "meson.build"]
        self.assertEqual(every, sorted(on_disk))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_lint(self):
        pages = [os.path.join(ROOT, "man", page) for page in PAGES + tuple(LIBRARY_PAGES)]
        run = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        self.assertEqual((0, ""), (run.returncode, run.stdout))


if __name__ == "__main__":
    if not KVFERRY:
        sys.exit("KVF_BIN names no kvferry command")
    unittest.main()
