#!/usr/bin/env python3
"""What the documents promise about the tree: links lead somewhere, packages are explained, folders introduced."""
import re
import subprocess
import unittest

import tree

TEST_CASE = re.compile(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)")
NAMED_TEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Documents(unittest.TestCase):
    def test_every_relative_link_leads_to_a_file(self):
        broken = []
        for path in tree.files(tree.ROOT, ".md"):
            for target in LINK.findall(path.read_text(encoding="utf-8")):
                if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                    broken.append(f"{path.relative_to(tree.ROOT)}: {target}")
        self.assertEqual(broken, [])

    def test_every_test_that_is_named_is_there(self):
        there = {(suite, name) for path in tree.files(tree.ROOT / "tests", ".cc")
                 for suite, name in TEST_CASE.findall(path.read_text(encoding="utf-8"))}
        named = [(path.relative_to(tree.ROOT), test) for path in tree.files(tree.ROOT, ".md")
                 for test in NAMED_TEST.findall(path.read_text(encoding="utf-8"))]
        self.assertGreater(len(named), 10)
        self.assertEqual([f"{path}: {'.'.join(test)}" for path, test in named if test not in there], [])

    def test_every_package_that_setup_installs_is_explained(self):
        packages = subprocess.run([tree.ROOT / "tools/setup", "--list"], check=True, capture_output=True,
                                  text=True).stdout.split()
        explained = set(re.findall(r"`([a-z0-9.+-]+)`", (tree.ROOT / "docs/dependencies.md").read_text(encoding="utf-8")))
        self.assertEqual([p for p in packages if p not in explained], [])

    def test_every_folder_has_a_readme_of_at_most_a_screen(self):
        for path in sorted(tree.ROOT.glob("*/CMakeLists.txt")):
            readme = path.parent / "README.md"
            self.assertTrue(readme.is_file(), f"{path.parent.name} has no README.md")
            self.assertLessEqual(len(readme.read_text(encoding="utf-8").splitlines()), 60, readme)


if __name__ == "__main__":
    unittest.main()
