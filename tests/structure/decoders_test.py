#!/usr/bin/env python3
"""tests/fuzz/decoders.cmake names every file that a fuzz target needs: clang alone links by that list, and seldom runs.

Links by the symbols of this build's objects as a static library is linked; argument: the build's folder."""
import collections
import pathlib
import re
import subprocess
import sys
import unittest

import tree

OURS = "7isthmus"  # as symbols spell it


def listed():
    words = re.search(r"set\(DECODERS\n(.*?)\)", (tree.ROOT / "tests/fuzz/decoders.cmake").read_text(), re.S).group(1).split()
    folder, files = None, []
    for word in words:
        if (tree.ROOT / word).is_dir():
            folder = word
        else:
            files.append(f"{folder}/{word}.cc")
    return files


def symbols(objects):
    """(defined, undefined) of each object, of those that are ours."""
    found = {path: (set(), set()) for path in objects}
    path = None
    for line in subprocess.run(["nm", *map(str, objects)], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(":"):
            path = pathlib.Path(line[:-1])
        elif OURS in line:
            kind, name = line.split()[-2:]
            found[path][kind in "Uwv"].add(name)
    return found


def missing(root, library, elsewhere):
    """File -> a symbol of it that is needed and not in the library."""
    where = {name: path for path, (defined, _) in library.items() for name in defined}
    here, needed, without = set(root[0]), collections.deque(root[1]), {}
    while needed:
        name = needed.popleft()
        if name in here:
            continue
        here.add(name)
        if name in where:
            defined, undefined = library[where[name]]
            here |= defined
            needed.extend(undefined)
        elif name in elsewhere:
            without.setdefault(elsewhere[name], name)
    return without


class Decoders(unittest.TestCase):
    def setUp(self):
        self.objects = {}  # source -> object
        for path in tree.ROOT.glob("*/CMakeLists.txt"):
            inside = BUILD / path.parent.name / f"CMakeFiles/isthmus_{path.parent.name}.dir"
            for object in inside.rglob("*.cc.o"):
                self.objects[f"{path.parent.name}/{str(object.relative_to(inside))[:-2]}"] = object
        self.files = listed()

    def test_every_file_of_the_list_is_there(self):
        self.assertEqual([file for file in self.files if file not in self.objects], [])

    def test_no_target_needs_a_file_that_is_not_in_the_list(self):
        fuzz = BUILD / "tests/fuzz/CMakeFiles"
        helpers = list((fuzz / "fuzz_base.dir").rglob("*.cc.o"))
        targets = {path.stem.removesuffix(".cc"): path for path in fuzz.glob("*_fuzz.dir/*_fuzz.cc.o")}
        self.assertTrue(targets, "build it first")
        found = symbols([*self.objects.values(), *helpers, *targets.values()])
        library = {path: found[path] for path in [*(self.objects[file] for file in self.files), *helpers]}
        elsewhere = {name: file for file, path in self.objects.items() if file not in self.files
                     for name in found[path][0]}
        lacking = [f"{target} needs {file} for {name}" for target, path in targets.items()
                   for file, name in missing(found[path], library, elsewhere).items()]
        self.assertEqual(lacking, [])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop())
    unittest.main()
