#!/usr/bin/env python3
"""Tests of choice.py: a small repository, what changes in it, and the mutants that this touches."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import choice  # noqa: E402

FILES = {
    "src/a/a.c": '#include "a.h"\n#include "b/deep.h"\n',
    "src/a/a.h": "int a;\n",
    "src/b/deep.h": '#  include "b/deeper.h"\n',
    "src/b/deeper.h": '#include "b/deep.h"\n',  # a circle
    "src/b/b.c": "int b;\n",
    "tests/test_one.c": '#include "support.h"\n#include "check/check.h"\n',
    "tests/test_two.c": "#include <stdio.h>\n",
    "tests/support.h": "",
    "check/check.h": "",
    "check/check.c": "int c;\n",
    "tests/gpu/main.c": "",
    "docs/x.md": "",
}
A, B, E = (
    ("src/a/a.c", "old", "new", "what", "one:3 two"),
    ("src/b/b.c", "old", "new", "what", "two"),
    ("src/b/b.c", "old", "other", "what", "emulated/kernel"),
)
ALL = [A, B, E]


class Choice(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.root = self.place.name
        for path, text in FILES.items():
            self.write(path, text)
        for name, mutants in ("a", [A]), ("b", [B, E]):
            self.write(choice.LISTS.replace("*", name), f"MUTANTS = {mutants!r}\n")
        self.git("init", "-q")
        self.write(choice.BASE, self.commit() + "\n")
        self.commit()

    def tearDown(self):
        self.place.cleanup()

    def git(self, *words):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", self.root, *who, *words], check=True, stdout=subprocess.DEVNULL)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "m")
        return choice.head(self.root)

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def touched(self, mutants=ALL):
        found, base = choice.touched(self.root, mutants)
        self.assertTrue(base)
        return found

    def test_lists(self):
        self.assertEqual(choice.mutants_here(self.root), ALL)
        os.remove(os.path.join(self.root, choice.LISTS.replace("*", "a")))
        self.assertEqual(choice.mutants_here(self.root), [B, E])
        self.assertEqual(choice.mutants_at(self.root, "HEAD"), ALL)

    def test_nothing(self):
        self.assertEqual(self.touched(), [])
        self.write("docs/x.md", "more")
        self.assertEqual(self.touched(), [])

    def test_files(self):
        for path, wanted in (
            ("src/a/a.c", [A]),
            ("src/a/a.h", [A]),
            ("src/b/deeper.h", [A]),
            ("src/b/b.c", [B, E]),
            ("tests/test_one.c", [A]),
            ("tests/support.h", [A]),
            ("check/check.c", [A]),
            ("tests/test_two.c", [A, B]),
            ("tests/gpu/main.c", [E]),
            ("tests/gpu/new.c", [E]),
        ):
            for committed in False, True:
                with self.subTest(path=path, committed=committed):
                    self.write(path, "changed\n")
                    if committed:
                        self.commit()
                    self.assertEqual(self.touched(), wanted)
            self.tearDown()
            self.setUp()

    def test_lines(self):
        new = ("src/a/a.c", "old", "newer", "what", "one:3 two")
        self.assertEqual(self.touched([A, B, new]), [new])

    def test_base(self):
        for text in "f" * 40, "HEAD", "", "--all":
            self.write(choice.BASE, text)
            self.assertEqual(choice.touched(self.root, ALL), (ALL, ""))
        os.remove(os.path.join(self.root, choice.BASE))
        self.assertEqual(choice.touched(self.root, ALL), (ALL, ""))
        self.assertIn("names no commit", choice.choose(self.root, ALL)[3])
        with tempfile.TemporaryDirectory() as empty:  # no repository: a tarball
            self.assertEqual(choice.touched(empty, ALL), (ALL, ""))

    def test_draw(self):
        many = [("src/a/a.c", str(i), "", "", "one") for i in range(100)]
        first, others = choice.draw(self.root, many, 10)
        self.assertEqual((len(first), first), (10, sorted(first, key=many.index)))
        self.assertEqual((others, sorted(first + others)), (sorted(others, key=many.index), sorted(many)))
        self.assertEqual((first, others), choice.draw(self.root, many, 10))
        drawn = set(first)
        for i in range(60):
            self.write("docs/x.md", str(i))
            self.commit()
            drawn |= set(choice.draw(self.root, many, 10)[0])
        self.assertGreater(len(drawn), 90)
        self.assertEqual(choice.draw(self.root, many, 1000), (many, []))
        chosen, compiled, others, said = choice.choose(self.root, many, 10)
        self.assertEqual([len(chosen), len(compiled), len(others)], [10, 10, 80])
        self.assertEqual(sorted(chosen + compiled + others), sorted(many))
        self.assertIn("100 of 100 mutants touched since", said)
        self.assertIn("drawn by the commit, 10 are tried and 10 compiled; of 80 the text is looked for", said)


if __name__ == "__main__":
    unittest.main()
