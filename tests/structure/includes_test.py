#!/usr/bin/env python3
"""Who may include whom: our folders, by the table in README.md, and third-party packages, by their homes.

A package has one home (two where it is said), so that it can be replaced by changing one folder, or one file. And who must
include what: a compiler that finds headers precompiled does not miss them.
"""
import functools
import pathlib
import re
import tempfile
import unittest

import tree

# Folder -> the folders it may include besides itself. README.md shows the same table.
MAY_INCLUDE = {
    "base": [],
    "kernels": ["base"],
    "security": ["base"],
    "compress": ["base", "kernels"],
    "intra": ["base", "kernels"],
    "inter": ["base", "compress", "security", "kernels"],
    "runtime": ["base", "kernels", "security", "compress", "intra", "inter"],
    "launcher": ["base", "kernels", "security", "compress", "intra", "inter", "runtime"],
}

# Start of an #include <...> -> the folders, or files, that are its home. Tests may include anything.
EVERYWHERE = list(MAY_INCLUDE)
HOMES = {
    "fmt/": EVERYWHERE,
    "tl/expected.hpp": ["base"],
    "hwy/": ["kernels"],
    "xxhash.h": ["kernels"],
    "xxh_x86dispatch.h": ["kernels"],
    "sodium": ["security"],
    "openssl/": ["security"],
    "intel-ipsec-mb.h": ["security"],
    "zstd": ["compress"],
    "mpi.h": ["intra"],
    "zmq": ["inter"],
    "boost/": ["inter", "launcher"],  # Asio, and the error codes it speaks in; checksums
    "nlohmann/json": ["runtime", "launcher"],
    "zlib.h": ["runtime"],
    "sentencepiece": ["runtime"],
    "pcre2.h": ["runtime"],
    "utf8proc.h": ["runtime"],
    "toml++/": ["launcher"],
    "CLI/": ["launcher/argument_parser.cc"],
    "curses.h": ["launcher"],
    "ncurses": ["launcher"],
    "prometheus/": ["launcher"],
}

# The C++ standard library has no dot or slash; these are the C library's and the kernel's.
SYSTEM_FOLDERS = ("sys/", "linux/", "netinet/", "arpa/", "net/", "bits/", "asm/")
SYSTEM_HEADERS = set(
    "dirent.h dlfcn.h errno.h fcntl.h fenv.h fnmatch.h grp.h ifaddrs.h immintrin.h langinfo.h locale.h netdb.h omp.h poll.h "
    "pthread.h pty.h pwd.h sched.h signal.h spawn.h stdint.h stdio.h stdlib.h string.h termios.h time.h ucontext.h "
    "unistd.h utmp.h wait.h xmmintrin.h pmmintrin.h x86intrin.h cpuid.h getopt.h glob.h limits.h math.h ctype.h".split())

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def faults(root):
    """One line for each include that the tables do not allow."""
    found = []
    for folder, allowed in MAY_INCLUDE.items():
        for path in tree.files(pathlib.Path(root, folder), ".h", ".cc", ".cu", ".cuh", ".inc"):
            text = path.read_text(encoding="utf-8")
            for bracket, name in INCLUDE.findall(text):
                fault = own_fault(root, folder, allowed, name) if bracket == '"' else foreign_fault(str(path.relative_to(root)), name)
                if fault:
                    found.append(f"{path.relative_to(root)}: {fault}")
            header = path.relative_to(root).with_suffix(".h")
            first = INCLUDE.search(text)
            if path.suffix == ".cc" and (root / header).is_file() and (not first or first[2] != str(header)):
                found.append(f'{path.relative_to(root)}: "{header}" comes first, so that it is known to compile alone')
    return found


def own_fault(root, folder, allowed, name):
    target = name.split("/")[0]
    if "/" not in name or not pathlib.Path(root, name).is_file():
        return f'"{name}" is no path from the root'
    if target != folder and target not in allowed:
        return f'"{name}": {folder} may not include {target}'
    return None


def foreign_fault(path, name):
    for start, homes in HOMES.items():
        if name.startswith(start):
            return None if path in homes or path.split("/")[0] in homes else f"<{name}> belongs in {' or '.join(homes)}"
    if "/" not in name and "." not in name:
        return None
    if name.startswith(SYSTEM_FOLDERS) or name in SYSTEM_HEADERS:
        return None
    return f"<{name}> has no home: give it one in tests/structure/includes_test.py and docs/dependencies.md"


def documented_table(text):
    """The table of README.md: | `folder` | what it owns | may include |."""
    table = {}
    for folder, allowed in re.findall(r"^\| `([a-z]+)` \|.*\| ([^|]*) \|$", text, re.MULTILINE):
        if allowed == "all above":
            table[folder] = list(table)
        elif allowed == "nothing of ours":
            table[folder] = []
        elif folder in MAY_INCLUDE:
            table[folder] = re.findall(r"[a-z]+", allowed)
    return table


# Precompiled header (cmake/layer.cmake) -> what a file has from it.
GIVES = {
    "fmt/format.h": r"fmt::",
    "algorithm": r"std::(?:ranges::(?!subrange|views)\w+|(?:stable_|partial_)?sort|find(?:_if)?|(?:any|all|none)_of|min|max|clamp|"
                 r"copy(?:_n|_if)?|fill(?:_n)?|transform|lower_bound|upper_bound|reverse|count(?:_if)?|(?:min|max|minmax)_element|"
                 r"equal|remove_if|unique|nth_element|for_each|rotate)\b(?=[(<])",
    "array": r"std::(?:array|to_array)\b",
    "chrono": r"std::chrono\b",
    "filesystem": r"std::filesystem\b",
    "functional": r"std::(?:function|less|greater|hash|bind_front|reference_wrapper)\b",
    "map": r"std::(?:multi)?map\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this)\b",
    "optional": r"std::(?:optional|nullopt)\b",
    "set": r"std::(?:multi)?set\b",
    "span": r"std::(?:span|as_bytes|as_writable_bytes)\b",
    "string": r"std::(?:string|to_string)\b",
    "vector": r"std::vector\b",
    "gtest/gtest.h": r"\b(?:TEST(?:_[FP])?|(?:EXPECT|ASSERT)_(?!THAT)[A-Z]+)\(",
    "gmock/gmock.h": r"\b(?:EXPECT|ASSERT)_THAT\(",
}
# Numbers' ranges and the like are of other headers.
OF_RANGES = re.compile(r"std::ranges::(?:begin|end|size|data|empty|iota|swap|equal_to|less|greater|range|\w+_range|\w+_t)\b")


@functools.cache
def included(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def includes_of(root, path, seen):
    """What a file includes of others' headers, by ours too."""
    found = set()
    for bracket, name in included(path):
        if bracket == "<":
            found.add("fmt/format.h" if name.startswith("fmt/") else name)
            if name == "gmock/gmock.h":
                found.add("gtest/gtest.h")
            continue
        for file in (path.parent / name, root / name):
            if file not in seen and file.is_file():
                seen.add(file)
                found |= includes_of(root, file, seen)
    return found


def lacking(root):
    """One line for each precompiled header that a file needs and does not include."""
    found = []
    for folder in [*MAY_INCLUDE, "tests"]:
        for path in tree.files(pathlib.Path(root, folder), ".h", ".cc"):
            if path.name.endswith("-inl.h"):
                continue
            text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
            text = OF_RANGES.sub("", re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text))
            includes = includes_of(root, path, set())
            found += [f"{path.relative_to(root)}: <{header}> is not included, for {used[0]}" for header, names in GIVES.items()
                      if header not in includes and (used := re.search(names, text))]
    return found


class Includes(unittest.TestCase):
    def test_follow_the_table(self):
        self.assertEqual(faults(tree.ROOT), [])

    def test_lack_nothing_that_is_precompiled(self):
        self.assertEqual(lacking(tree.ROOT), [])

    def test_all_that_is_precompiled_is_looked_for(self):
        text = (tree.ROOT / "cmake/layer.cmake").read_text(encoding="utf-8")
        lists = re.findall(r"(?:set\(PRECOMPILED\n|isthmus_together\(\S+_test base_test )(.*?)\)", text, re.S)
        self.assertEqual(len(lists), 2)
        self.assertEqual([header for given in lists for header in re.findall(r"<(.*?)>", given)], list(GIVES))

    def test_the_table_is_the_one_in_the_readme(self):
        documented = documented_table((tree.ROOT / "README.md").read_text(encoding="utf-8"))
        self.assertEqual({f: sorted(a) for f, a in documented.items()},
                         {f: sorted(a) for f, a in MAY_INCLUDE.items()})

    def test_every_header_is_listed_where_it_is_compiled_alone(self):
        for folder in MAY_INCLUDE:
            listing = tree.ROOT / folder / "CMakeLists.txt"
            if not listing.is_file():
                continue
            listed = set(re.findall(r"[\w./-]+\.h\b", listing.read_text(encoding="utf-8")))
            # -inl.h: the body of a vectorised source, compiled once per instruction set; alone it means nothing.
            headers = {str(p.relative_to(tree.ROOT / folder)) for p in tree.files(tree.ROOT / folder, ".h")
                       if not p.name.endswith("-inl.h")}
            self.assertEqual(headers - listed, set(), f"not in {folder}/CMakeLists.txt")


class PlantedFaults(unittest.TestCase):
    """A check that cannot fail checks nothing."""

    def fault_of(self, path, include, *others):
        with tempfile.TemporaryDirectory() as root:
            for name in (path, *others):
                file = pathlib.Path(root, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("")
            pathlib.Path(root, path).write_text(f"#pragma once\n{include}\n")
            return "\n".join(faults(pathlib.Path(root)))

    def test_an_upward_include_is_found(self):
        self.assertIn("base may not include inter", self.fault_of("base/a.h", '#include "inter/b.h"', "inter/b.h"))

    def test_inter_and_intra_never_meet(self):
        self.assertIn("may not include", self.fault_of("inter/a.cc", '#  include "intra/b.h"', "intra/b.h"))
        self.assertIn("may not include", self.fault_of("intra/a.cc", '#include "inter/b.h"', "inter/b.h"))

    def test_an_include_beside_the_root_is_found(self):
        self.assertIn("no path from the root", self.fault_of("base/a.h", '#include "b.h"', "base/b.h"))

    def test_a_package_away_from_home_is_found(self):
        self.assertIn("belongs in security", self.fault_of("inter/a.cc", "#include <sodium.h>"))
        self.assertIn("belongs in compress", self.fault_of("kernels/a.cc", "#include <zstd.h>"))

    def test_a_package_away_from_its_file_is_found(self):
        self.assertIn("belongs in launcher/argument_parser.cc", self.fault_of("launcher/a.cc", "#include <CLI/CLI.hpp>"))
        self.assertEqual("", self.fault_of("launcher/argument_parser.cc", "#include <CLI/CLI.hpp>"))

    def test_openssl_stays_in_security(self):
        self.assertIn("belongs in security", self.fault_of("inter/a.cc", "#include <openssl/ssl.h>"))

    def test_an_unknown_package_is_found(self):
        self.assertIn("has no home", self.fault_of("base/a.cc", "#include <spdlog/spdlog.h>"))

    def test_a_header_that_its_own_source_does_not_include_first_is_found(self):
        self.assertIn('"base/a.h" comes first', self.fault_of("base/a.cc", '#include <vector>\n#include "base/a.h"', "base/a.h"))
        self.assertEqual("", self.fault_of("base/a.cc", '#include "base/a.h"\n#include <vector>', "base/a.h"))

    def test_a_header_that_is_only_precompiled_is_found(self):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root, "base")
            folder.mkdir()
            (folder / "a.h").write_text("#include <vector>\n")
            (folder / "b.cc").write_text('#include "base/a.h"\nstd::vector<int> v;  // std::set\nstd::map<int, int> m;\n')
            self.assertEqual(lacking(pathlib.Path(root)), ["base/b.cc: <map> is not included, for std::map"])

    def test_what_is_allowed_passes(self):
        self.assertEqual("", self.fault_of("inter/a.cc", '#include <zmq.h>\n#include <vector>\n#include "base/b.h"',
                                           "base/b.h"))


if __name__ == "__main__":
    unittest.main()
