#!/usr/bin/env python3
"""A file with compile options of its own reads its headers itself.

g++ compiles a file that starts with a precompiled header as that header was compiled: an -O3 of the file's own is lost
without a word, and attention then takes nearly three times as long.
"""
import re
import unittest

import tree

COMMAND = re.compile(r"set_source_files_properties\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)")


def with_precompiled_headers(text):
    """The commands of a CMake file that give options to files that may start with a precompiled header."""
    return [command for command in COMMAND.findall(text)
            if re.search(r"\bCOMPILE_(?:OPTIONS|FLAGS)\b", command)
            and not re.search(r"\bSKIP_PRECOMPILE_HEADERS ON\b", command)]


class Options(unittest.TestCase):
    def test_files_with_options_read_their_headers(self):
        wrong = [f"{path.relative_to(tree.ROOT)}: add SKIP_PRECOMPILE_HEADERS ON to {command}"
                 for path in [*tree.files(tree.ROOT, "CMakeLists.txt"), *tree.files(tree.ROOT, ".cmake")]
                 for command in with_precompiled_headers(path.read_text())]
        self.assertEqual(wrong, [])

    def test_sees_what_it_looks_for(self):
        def wrong(properties):
            return len(with_precompiled_headers(f"x(y)\nset_source_files_properties(a.cc b.cc PROPERTIES\n  {properties})\nz(y)\n"))

        self.assertEqual(wrong("COMPILE_OPTIONS -O3"), 1)
        self.assertEqual(wrong('COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>"'), 1)
        self.assertEqual(wrong("COMPILE_FLAGS -O3 SKIP_PRECOMPILE_HEADERS OFF"), 1)
        self.assertEqual(wrong("COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON"), 0)
        self.assertEqual(wrong("COMPILE_DEFINITIONS A=1"), 0)


if __name__ == "__main__":
    unittest.main()
