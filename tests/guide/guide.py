"""docs/GUIDE.md and docs/PARALLEL.md against examples/guide: guide.py ROOT PROGRAMS [--changed]. PROGRAMS is the folder
of the built ones.

Code in a document must stand, line for line and perhaps less indented, in the file that is linked before it; a block of
text must be what that file's program prints. Every program has a place in a document. --changed asks whether this would
be noticed: each block in turn loses a line, or has a character changed, and must be refused."""
import os
import re
import subprocess
import sys

ROOT, PROGRAMS = sys.argv[1:3]
DOCUMENTS = ("GUIDE.md", "PARALLEL.md")
EXAMPLES = os.path.join(ROOT, "examples", "guide")
LINK = re.compile(r"\]\(\.\./examples/guide/(\w+)\.c\)")


def blocks(lines):
    """(first line, one past the last, language, program) of each fenced block."""
    found, start, program = [], None, None
    for n, line in enumerate(lines):
        if line.startswith("```"):
            if start is None:
                start, language = n + 1, line[3:]
            else:
                found.append((start, n, language, program))
                start = None
        elif start is None:
            for match in LINK.finditer(line):
                program = match.group(1)
    return found


def stands_in(part, whole):
    """Whether the lines of part follow one another in whole, all of them indented by as much more."""
    for first in range(len(whole) - len(part) + 1):
        indent = whole[first][: len(whole[first]) - len(whole[first].lstrip())]
        for more in range(len(indent) + 1):
            if all(w == (indent[:more] + p if p else "") for p, w in zip(part, whole[first:])):
                return True
    return False


def read(path):
    with open(path) as file:
        return file.read().split("\n")


printed = {}


def output_of(program):
    if program not in printed:
        path = os.path.join(PROGRAMS, "guide_" + program)
        printed[program] = subprocess.run([path], check=True, stdout=subprocess.PIPE).stdout.decode().split("\n")
    return printed[program]


def complaints(documents):
    """documents: each one's lines, by its name."""
    found, shown = [], set()
    all_blocks = ((name, lines, block) for name, lines in documents.items() for block in blocks(lines))
    for name, lines, (start, end, language, program) in all_blocks:
        where = "%s:%d" % (name, start)
        if program is None or not os.path.exists(os.path.join(EXAMPLES, program + ".c")):
            found.append("%s: no file of examples/guide is linked before this block" % where)
        elif language == "c":
            shown.add(program)
            if not stands_in(lines[start:end], read(os.path.join(EXAMPLES, program + ".c"))):
                found.append("%s: this code does not stand in examples/guide/%s.c" % (where, program))
        elif language == "text":
            if not stands_in(lines[start:end], output_of(program)):
                found.append("%s: %s.c does not print this" % (where, program))
        else:
            found.append("%s: a block is c or text, not '%s'" % (where, language))
    for name in sorted(os.listdir(EXAMPLES)):
        if name.endswith(".c") and name[:-2] not in shown:
            found.append("no document shows anything of examples/guide/" + name)
    return found


def main():
    documents = {name: read(os.path.join(ROOT, "docs", name)) for name in DOCUMENTS}
    found = complaints(documents)
    if found or "--changed" not in sys.argv:
        print("\n".join(found) or "%d blocks are what the programs are" % sum(map(len, map(blocks, documents.values()))))
        return bool(found)
    missed = tried = 0
    for name, lines in documents.items():
        for start, end, _, _ in blocks(lines):
            middle = start + (end - start) // 2
            line = next(n for n in list(range(middle, end)) + list(range(start, middle)) if lines[n].strip())
            for change in (["~" + lines[line][1:]], lines[line:line + 1] * 2, [lines[line] + " "]):
                tried += 1
                if not complaints({**documents, name: lines[:line] + change + lines[line + 1:]}):
                    print("%s:%d: nobody noticed %r" % (name, line + 1, change))
                    missed += 1
    print("%d of %d changes noticed" % (tried - missed, tried))
    return bool(missed or not tried)


sys.exit(main())
