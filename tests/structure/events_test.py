#!/usr/bin/env python3
"""Every event that somebody waits for by its id is logged somewhere: an id that nothing logs is a check that cannot fail.

Looks at what simulated federations must never log, and at what the launcher has words for.
"""
import re
import unittest

import tree

# The first argument of a call of EventLog: one id, or one of several.
LOGGED = re.compile(r"\blog(?:_|\(\))?(?:\.|->)(?:detail|info|warning|alarm)\(([^,]*),")
# Sets of ids; and ids that an event's is compared with.
LISTED = re.compile(r"const std::set<std::string_view> \w+ = \{([^}]*)\};")
COMPARED = re.compile(r'\bid == ("\w+")')
LITERAL = re.compile(r'"(\w+)"')


def ids(pattern, text):
    return {name for part in pattern.findall(text) for name in LITERAL.findall(part)}


def never_logged(waiting, logging):
    """Ids in the text `waiting` that no text of `logging` logs."""
    return sorted((ids(LISTED, waiting) | ids(COMPARED, waiting)) - {name for text in logging for name in ids(LOGGED, text)})


def texts(*folders):
    return [path.read_text() for folder in folders for path in tree.files(tree.ROOT / folder, ".h", ".cc")]


class Events(unittest.TestCase):
    def test_what_a_simulated_federation_must_not_log_is_logged_by_gateways(self):
        text = (tree.ROOT / "inter/sim/federation.cc").read_text()
        self.assertGreater(len(ids(LISTED, text)), 10)
        self.assertEqual(never_logged(text, texts("inter")), [])

    def test_what_the_launcher_has_words_for_is_logged(self):
        text = (tree.ROOT / "launcher/event_sentence.cc").read_text()
        self.assertGreater(len(ids(COMPARED, text)), 30)
        self.assertEqual(never_logged(text, texts("inter", "runtime", "launcher")), [])

    def test_sees_what_it_looks_for(self):
        log = 'log_.alarm(\n    lost ? "disk_lost" : "disk_full", {}, {{"why", why}});'
        self.assertEqual(never_logged('if (id == "disk_full") return;', [log]), [])
        self.assertEqual(never_logged('if (id == "why") return;', [log]), ["why"])
        self.assertEqual(never_logged('const std::set<std::string_view> kNever = {\n    "disk_lost", "gone"};', [log]), ["gone"])
        self.assertEqual(never_logged('if (id == "disk_full") return;', ['told.info("disk_full");']), ["disk_full"])


if __name__ == "__main__":
    unittest.main()
