#!/usr/bin/env python3
"""Files of a folder compile as one unit, in whichever order: no two give a name of their own to different things.

Eight files are compiled at a time (cmake/layer.cmake), and which eight changes with every new file.
"""
import collections
import pathlib
import re
import tempfile
import textwrap
import unittest

import tree

# What is compiled file by file in every preset: cmake/layer.cmake, ALONE, and programs of one file each.
ALONE = [r"^kernels/", r"^inter/tcp_facts", r"^tests/(bench|fuzz)/", r"^tests/.*/(hf_logits|train_once)\.cc"]

ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.S | re.M)
NAMED = [
    re.compile(r"(?:inline |static )?constexpr [\w:<>, *]+? \*?(?:const )?(k\w+)\b"),
    re.compile(r"using (\w+) ="),
    re.compile(r"(?:struct|class|enum class|enum) (\w+)"),
]
FUNCTION = re.compile(r"(?!return\b|using\b|namespace\b|template\b|TEST|#|//|\s)[\w:<>,&*\[\] ]+?[ &*](\w+)\(([^,)]*)")


def names_in(text):
    """Constants, types and functions (with the type of their first argument: they overload) of unnamed namespaces."""
    names = set()
    for block in ANONYMOUS.findall(text):
        for line in block.split("\n"):
            for pattern in NAMED:
                if found := pattern.match(line):
                    names.add(found[1])
                    break
            else:
                if found := FUNCTION.match(line):
                    names.add(f"{found[1]}({re.sub(' ?[a-z_]+$', '', found[2])})")
    return names


def same_aliases(name, texts):
    """Two aliases of one type are one."""
    lines = {line for text in texts for line in re.findall(rf"^using {re.escape(name)} = [^;]*;", text, re.M)}
    return len(lines) == 1


def shared_names(root):
    """What is wrong, one line each."""
    wrong = []
    folders = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in tree.files(root, ".cc"):
        relative = path.relative_to(root).as_posix()
        if any(re.match(alone, relative) for alone in ALONE):
            continue
        for name in names_in(path.read_text()):
            folders[path.parent][name].append(path)
    for names in folders.values():
        for name, paths in sorted(names.items()):
            if len(paths) > 1 and not same_aliases(name, [path.read_text() for path in paths]):
                files = ", ".join(path.relative_to(root).as_posix() for path in paths)
                wrong.append(f"{files}: each has a {name} of its own; give one of them another name")
    return wrong


class Unity(unittest.TestCase):
    def test_no_name_is_given_twice(self):
        self.assertEqual(shared_names(tree.ROOT), [])

    def test_sees_what_it_looks_for(self):
        def wrong(first, second):
            with tempfile.TemporaryDirectory() as root:
                for name, text in (("a.cc", first), ("b.cc", second)):
                    body = f"namespace {{\n\n{textwrap.dedent(text)}\n}}  // namespace\n"
                    pathlib.Path(root, name).write_text(body)
                return len(shared_names(pathlib.Path(root)))

        self.assertEqual(wrong("constexpr int kMax = 1;", "constexpr double kMax = 2;"), 1)
        self.assertEqual(wrong("using Json = a;", "using Json = b;"), 1)
        self.assertEqual(wrong("using Json = a;", "using Json = a;"), 0)
        self.assertEqual(wrong("struct Options {};", "class Options {};"), 1)
        self.assertEqual(wrong("int f(const A& a) {", "bool f(const A& other, int b) {"), 1)
        self.assertEqual(wrong("int f(const A& a) {", "int f(const B& a) {"), 0)
        self.assertEqual(wrong("int f(const A& a) {\n  int k = f(b);", "int g(const A& a) {\n  int k = f(b);"), 0)


if __name__ == "__main__":
    unittest.main()
