#!/usr/bin/env python3
"""Compares a library's binary interface with the committed one: attn.abi is that of libattn.so, and so on.

    abi.py LIBRARY [--cc CC] [--baseline FILE] [--update]

The interface is read from the preprocessed headers, laid out by the compiler (offset and size of each field) and held
against the symbols that the shared LIBRARY exports. It may grow: new functions, new values, new fields at the end of a
struct. Whatever else changes fails. --update writes it to the baseline, after the same comparison.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.join(HERE, "..", "..", "include")
HEADERS_OF = {
    "attn": ("attn.h", "attn_kv.h", "attn_napkin.h", "attn_quant.h"),
    "attn_parallel": ("attn_parallel.h",),
    "attn_parallel_mpi": ("attn_parallel_mpi.h",),
}


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def words(text):
    return re.sub(r"\s*\*\s*", " *", " ".join(text.split())).replace("( ", "(").replace("* ", "*")


def public_text(cc, headers):
    """The headers after the preprocessor, without what they include."""
    lines, ours = [], False
    for header in headers:
        for line in run(cc, "-E", "-std=c11", os.path.join(INCLUDE, header)).splitlines():
            marker = re.match(r'#\s+\d+\s+"(.*?)"', line)
            if marker:
                ours = os.path.basename(marker.group(1)) == header
            elif ours:
                lines.append(line)
    return "\n".join(lines)


def fields_of(body):
    """(type, name, array) of each declarator in a struct's body."""
    for declaration in filter(None, (words(d) for d in body.split(";"))):
        function = re.fullmatch(r"(.+?) ?\(\*(\w+)\)(\(.*\))", declaration)
        if function:
            yield f"{function[1]} (*){function[3]}", function[2], ""
            continue
        base, declarators = re.fullmatch(r"((?:const )?\w+) (.*)", declaration).groups()
        for declarator in declarators.split(","):
            stars, name, array = re.fullmatch(r"\s*((?:\*(?:const )?)*)(\w+)((?:\[\w+\])*)", declarator).groups()
            yield (base + " " + stars).strip(), name, array


def parse(text):
    """Lines of the interface that need no layout, names of values, and structs with their fields."""
    functions, values, structs = [], [], {}
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, re.S):
        values += [value.split("=")[0].strip() for value in body.split(",") if value.strip()]
    for name, body in re.findall(r"typedef struct (\w+)\s*\{(.*?)\}", text, re.S):
        structs[name] = list(fields_of(body))
    pattern = r'__attribute__\(\(visibility\("default"\)\)\)(.*?);'
    functions += ["function " + words(prototype) for prototype in re.findall(pattern, text, re.S)]
    functions += ["callback " + words(t) for t in re.findall(r"typedef ([^;{]*\(\*\w+\)\(.*?\));", text, re.S)]
    return functions, values, structs


def lay_out(cc, headers, values, structs):
    """Has the compiler say what each value is and where each field lies."""
    code = ["#include <stdio.h>", *(f'#include "{header}"' for header in headers), "int main(void) {"]
    for value in values:
        code.append(f'printf("value {value} %lld\\n", (long long){value});')
    for struct, fields in structs.items():
        code.append(f'printf("struct {struct} size %zu align %zu\\n", sizeof({struct}), _Alignof({struct}));')
        for kind, name, array in fields:
            code.append(f'printf("field {struct}.{name} {kind}{array} at %zu size %zu\\n", '
                        f"offsetof({struct}, {name}), sizeof((({struct} *)0)->{name}));")
    code.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
        with open(source, "w", encoding="utf-8") as file:
            file.write("\n".join(code))
        run(cc, "-std=c11", "-I", INCLUDE, source, "-o", program)
        return run(program).splitlines()


def exported(library):
    """Functions and data that others may link against."""
    symbols = (line.split() for line in run("nm", "-D", "--defined-only", library).splitlines())
    return sorted(symbol[-1] for symbol in symbols if symbol[-2] not in "Aa")


def gaps(layout):
    """Fields must fill each struct but for padding: otherwise this script missed one."""
    problems, struct, end = [], "", 0
    for line in layout + ["struct end size 0 align 1"]:
        part = line.split()
        if part[0] == "struct":
            if struct and size - end >= align:
                problems.append(f"{struct}: {size - end} bytes after its last field are not accounted for")
            struct, size, align, end = part[1], int(part[3]), int(part[5]), 0
        elif part[0] == "field":
            at, bytes_ = int(part[-3]), int(part[-1])
            if at - end >= 8:
                problems.append(f"{part[1]}: {at - end} bytes before it are not accounted for")
            end = at + bytes_
    return problems


def compare(old, new):
    """What of `old` is gone or changed, and what of `new` lies inside an old struct."""
    problems, sizes = [], {}
    present = set(new)
    for line in old:
        part = line.split()
        if part[0] == "struct":
            sizes[part[1]] = int(part[3])
            now = next((n.split() for n in new if n.startswith(f"struct {part[1]} ")), None)
            if now is None or int(now[3]) < int(part[3]) or now[5] != part[5]:
                problems.append(f"was: {line}; now: {' '.join(now) if now else 'gone'}")
        elif line not in present:
            problems.append(f"gone or changed: {line}")
    for line in set(new) - set(old):
        part = line.split()
        if part[0] == "field" and int(part[-3]) < sizes.get(part[1].split(".")[0], 0):
            problems.append(f"inside the struct as it was: {line}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--baseline", help="otherwise NAME.abi beside this script, of libNAME.so")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()

    library = re.match(r"lib(\w+)", os.path.basename(options.library))[1]
    headers = HEADERS_OF[library]
    baseline = options.baseline or os.path.join(HERE, library + ".abi")
    functions, values, structs = parse(public_text(options.cc, headers))
    layout = lay_out(options.cc, headers, values, structs)
    interface = sorted(functions) + layout
    problems = gaps(layout)

    declared = sorted(re.search(r"(\w+)\(", line).group(1) for line in functions if line.startswith("function"))
    for name in sorted(set(declared) ^ set(exported(options.library))):
        problems.append(f"{name}: " + ("declared, not exported" if name in declared else "exported, not declared"))

    old = []
    if os.path.exists(baseline):
        with open(baseline, encoding="utf-8") as file:
            old = [line.rstrip("\n") for line in file if not line.startswith("#")]
    elif not options.update:
        problems.append(f"{baseline} does not exist: --update writes it")
    problems += compare(old, interface)
    if problems:
        print("\n".join(problems))
        return 1
    grown = len(set(interface) - set(old))
    if options.update:
        with open(baseline, "w", encoding="utf-8") as file:
            file.write(f"# The binary interface of lib{library}, as tests/abi/abi.py reads it. Lines are only ever added.\n")
            file.write("\n".join(interface) + "\n")
    elif grown:
        print(f"{grown} lines are new: run tests/abi/abi.py LIBRARY --update and commit tests/abi/{library}.abi")
        return 1
    print(f"{len(interface)} lines of interface, {len(declared)} functions: as committed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
