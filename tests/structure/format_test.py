#!/usr/bin/env python3
"""Every source file is as clang-format 14 leaves it, with the .clang-format of the root, and copies memory as memory."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import tree

FORMATTER = shutil.which("clang-format-14") or "clang-format-14"


def unformatted(paths):
    """Those of `paths` that the formatter would change."""
    halves = [paths[i::os.cpu_count()] for i in range(os.cpu_count())]
    runs = [subprocess.Popen([FORMATTER, "--dry-run", "-Werror", *map(str, half)], stderr=subprocess.PIPE, text=True)
            for half in halves if half]
    found = set()
    for run in runs:
        found |= {line.split(":")[0] for line in run.communicate()[1].splitlines() if "[-Wclang-format" in line}
    return sorted(found)


class Format(unittest.TestCase):
    def test_every_source_file(self):
        paths = tree.files(tree.ROOT, ".h", ".cc", ".cu", ".cuh")
        self.assertGreater(len(paths), 20)
        self.assertEqual(unformatted(paths), [], "run clang-format-14 -i on these")

    def test_no_copies_element_by_element(self):
        slow = [str(path.relative_to(tree.ROOT)) for path in tree.files(tree.ROOT, ".h", ".cc", ".cu", ".cuh")
                if path.name != "copy_to.h" and "ranges::copy(" in path.read_text()]
        self.assertEqual(slow, [], "copy_to (base/copy_to.h) is one copy of memory")

    def test_no_views_that_the_fuzzers_compiler_refuses(self):
        views = [str(path.relative_to(tree.ROOT)) for path in tree.files(tree.ROOT, ".h", ".cc")
                 if "std::views::" in path.read_text()]
        self.assertEqual(views, [], "clang 14, which builds the fuzz targets, cannot compile g++ 12's views")

    def test_a_badly_formatted_file_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(tree.ROOT / ".clang-format", folder)
            bad = pathlib.Path(folder, "bad.cc")
            bad.write_text("int  f( ){return 1 ;}\n")
            self.assertEqual(unformatted([bad]), [str(bad)])


if __name__ == "__main__":
    unittest.main()
