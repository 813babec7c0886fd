#!/usr/bin/env python3
"""Fails unless includes go downwards. Every #include is read as compilers read it, device code's among them.

- A folder includes only folders of the steps below its own. The order is the sentence of DESIGN.md that begins with
  "The order from the bottom:"; it names every folder once.
- No files include each other in a circle. In src/cuda a NAME.c, NAME.h and NAME.cu of one folder count as one.
- There device code includes only device code, and the host includes of it only the *params.h. Of the
  architectures, folders there but for common, none includes another, and what is in no such folder includes none.

    tests/abi/folders.py ROOT [--generated NAME ...]      ROOT: of the sources; NAME: a file that the build writes"""
import argparse
import os
import re
import sys

SOURCES = (".c", ".h", ".cu", ".def")
BESIDE = ("device", "check", "bench", "cli", "demo")
SEARCHED = ("include", "src", "src/cuda", "", "check", "cli")  # what the build passes by -I, from ROOT
DEVICE = re.compile(r"src/cuda/(common|\w+/(?!host/)\w+)/|src/cuda/\w+/[\w]+\.(h|cu)$")


def sources(root):
    """The paths of all sources, from root."""
    for top in ("include", "src") + BESIDE:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def included(root, path):
    """The names that a source includes in quotation marks."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', file.read(), re.M)


def resolve(path, name, known):
    """The path of what a source includes: beside the source, or else in the first folder that is searched."""
    for folder in (os.path.dirname(path),) + SEARCHED:
        found = os.path.normpath(os.path.join(folder, name))
        if found in known:
            return found
    return None


def read(root, generated):
    """For each source the set of those that it includes."""
    known = set(sources(root))
    graph = {path: set() for path in known}
    for path in sorted(known):
        for name in included(root, path):
            found = resolve(path, name, known)
            if found:
                graph[path].add(found)
            elif name not in generated:
                sys.exit(f"{path} includes {name}, which is nowhere")
    return graph


def order(root):
    """The step of every folder, from the bottom, as DESIGN.md says."""
    with open(os.path.join(root, "docs", "DESIGN.md"), encoding="utf-8") as file:
        sentence = re.search(r"The order from the\s+bottom: ([^.]+)\.", file.read())
    if not sentence:
        sys.exit('docs/DESIGN.md has no sentence "The order from the bottom: ..."')
    steps = {}
    for step, names in enumerate(sentence[1].split(";")):
        for name in re.split(r",|\band\b", names):
            if name.strip() in steps:
                sys.exit(f"docs/DESIGN.md orders {name.strip()} twice")
            steps[name.strip()] = step
    return steps


def folder_of(path):
    """The folder that is ordered: one of src/, or one beside it; None: the interface, which all include."""
    parts = path.split(os.sep)
    return None if parts[0] == "include" else parts[1] if parts[0] == "src" else parts[0]


def check_order(graph, steps):
    folders = {folder for path in graph if (folder := folder_of(path))}
    if folders != set(steps):
        sys.exit("the order of docs/DESIGN.md and the folders differ in " + ", ".join(sorted(folders ^ set(steps))))
    for path, names in sorted(graph.items()):
        for name in sorted(names):
            above, below = folder_of(path), folder_of(name)
            if not above and below:
                sys.exit(f"{path} is the interface and includes {name}")
            if below and above != below and steps[below] >= steps[above]:
                sys.exit(f"{path} includes {name}: {below} is not below {above}")


def architecture_of(path):
    """The folder of src/cuda that a source is in; None: it is in none."""
    parts = path.split(os.sep)
    return parts[2] if parts[:2] == ["src", "cuda"] and len(parts) > 3 else None


def check_device(graph):
    for path, names in sorted(graph.items()):
        for name in sorted(names):
            if path.startswith("src/cuda/") and not DEVICE.match(path) and DEVICE.match(name):
                if not name.endswith("params.h"):
                    sys.exit(f"{path} is the host's and includes {name}, which is device code and no *params.h")
            if DEVICE.match(path) and not DEVICE.match(name):
                sys.exit(f"{path} is device code and includes {name}, which is not")
            of, other = architecture_of(path), architecture_of(name)
            if path.startswith("src/cuda/") and other not in (None, of, "common"):
                sys.exit(f"{path} includes {name}, of another architecture")


def circle(graph):
    """A circle as a list, or None. Each node is visited once."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        found = next((c for n in sorted(graph[node]) if (c := visit(n))), None)
        path.pop()
        done.add(node)
        return found

    return next((c for node in sorted(graph) if (c := visit(node))), None)


def together(graph):
    """The same of src/cuda, with NAME.c, NAME.h and NAME.cu as one."""
    parts = {}
    for path, names in graph.items():
        if path.startswith("src/cuda/"):
            parts.setdefault(os.path.splitext(path)[0], set()).update(os.path.splitext(name)[0] for name in names)
    return {part: {name for name in names if name in parts and name != part} for part, names in parts.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--generated", nargs="*", default=[])
    arguments = parser.parse_args()
    graph = read(arguments.root, arguments.generated)
    for what in (graph, together(graph)):
        if found := circle(what):
            sys.exit("files include each other: " + " -> ".join(found))
    steps = order(arguments.root)
    check_order(graph, steps)
    check_device(graph)
    device = sum(bool(DEVICE.match(path)) for path in graph)
    print(f"{len(steps)} folders in order, {len(graph)} sources, {device} of device code, no circle")


main()
