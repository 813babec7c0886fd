#!/usr/bin/env python3
"""What the CUDA kernels cost a build is within the budget that is committed: src/cuda/budget.txt says what it may be.

    tests/abi/budget.py TABLE UNITS [LIBRARY]

TABLE    src/cuda/budget.txt
UNITS    what the build wrote, a line per unit: its name and its family
LIBRARY  libattn.so of a build with nvcc, which has a size of its own

No time is measured: kernels are counted, and the seconds that were measured when the table was written are added up.
Before anything of the build, tables with faults are tried: each must be found."""
import collections
import os
import re
import sys

ROW = re.compile(r"family +(\S+) +(\S+) +(\d+) +(\d+) +(\d+) +(AHEAD|ASKED) +(\S+)$")
LIBRARY_MOST = 16 * 10**6

Family = collections.namedtuple("Family", "name budget kernels nvcc emulated made units")


def read(text):
    limits, families = {}, []
    for line in text.split("\n"):
        words = line.split()
        if words[:1] == ["limit"]:
            limits[words[1]] = int(words[2])
        elif words[:1] == ["family"]:
            family = Family(*ROW.match(line).groups())
            families.append(family._replace(kernels=int(family.kernels), nvcc=int(family.nvcc),
                                            emulated=int(family.emulated)))
    return limits, families


def faults(text, units, size=0):
    """What is wrong, a line each. units: (name, family)."""
    limits, families = read(text)
    found = collections.Counter(family for _, family in units)
    spent = collections.Counter()
    for f in families:
        if found[f.name] != f.kernels:
            yield (f"{f.name}: {found[f.name]} kernels, {f.kernels} in the table: measure what nvcc and g++ take for the "
                   "family, and write it there")
        if f.budget not in limits:
            yield f"{f.name}: there is no limit for {f.budget}"
        if f.kernels and not f.nvcc * f.emulated:
            yield f"{f.name}: its seconds are not measured"
        spent[f.budget] += f.nvcc if f.made == "AHEAD" else 0
        spent["emulated"] += f.emulated
    for unit, family in units:
        if family not in (f.name for f in families):
            yield f"{unit}: no family has it"
    for name, most in limits.items():
        if spent[name] > most:
            yield f"{name}: {spent[name]} seconds, above the {most} that it may take"
    if size > LIBRARY_MOST:
        yield f"libattn.so: {size} bytes, above the {LIBRARY_MOST} that it may have"


def try_faults():
    table = "limit a 10\nlimit emulated 9\nfamily one a 2 5 4 AHEAD x\nfamily two a 1 5 5 AHEAD .\n"
    units = [("x1", "one"), ("x2", "one"), ("y", "two")]
    assert not list(faults(table, units, LIBRARY_MOST)), list(faults(table, units, LIBRARY_MOST))
    for what, changed, of, size in (
            ("one: 3 kernels, 2 in the table", table, units + [("x3", "one")], 0),
            ("two: 0 kernels, 1 in the table", table, units[:2], 0),
            ("a: 11 seconds, above the 10", table.replace("1 5 5 A", "1 6 5 A"), units, 0),
            ("emulated: 10 seconds", table.replace("1 5 5 A", "1 5 6 A"), units, 0),
            ("two: its seconds", table.replace("1 5 5 A", "1 0 5 A"), units, 0),
            ("two: there is no limit for b", table.replace("two a", "two b"), units, 0),
            ("z: no family has it", table, units + [("z", "none")], 0),
            ("libattn.so: ", table, units, LIBRARY_MOST + 1)):
        said = list(faults(changed, of, size))
        assert any(line.startswith(what) for line in said), (what, said)
    asked = table.replace("1 5 5 AHEAD", "1 6 5 ASKED")
    assert not list(faults(asked, units)), "what NVRTC compiles costs the build nothing"


def main(table, units, library=None):
    try_faults()
    with open(table) as file:
        text = file.read()
    with open(units) as file:
        pairs = [tuple(line.split()) for line in file]
    assert len(pairs) > 50, pairs
    said = list(faults(text, pairs, os.path.getsize(library) if library else 0))
    print("\n".join(said) or f"{len(pairs)} units, within the budget")
    sys.exit(bool(said))


main(*sys.argv[1:])
