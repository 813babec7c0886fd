#!/usr/bin/env python3
"""Fails if folders include each other in a circle, and prints the circle: those of src/, and those beside it. So do
the parts of src/cuda: a part is a NAME.c, its NAME.h, or both.

    tests/abi/folders.py SRC [FOLDER ...]"""
import os
import re
import sys


def includes(folders):
    """For each folder the folders that it includes."""
    found = {}
    for folder in folders:
        for path, _, files in os.walk(folder):
            for name in files:
                if name.endswith((".c", ".h", ".cu", ".def")):
                    with open(os.path.join(path, name), encoding="utf-8") as file:
                        names = re.findall(r'^ *# *include "(\w+)/', file.read(), re.M)
                    found.setdefault(os.path.basename(folder), set()).update(names)
    return {folder: {n for n in names if n in found and n != folder} for folder, names in found.items()}


def parts(src):
    """For each part of src/cuda, by its path without the ending, the parts whose headers it includes."""
    found = {}
    for path, _, files in os.walk(os.path.join(src, "cuda")):
        for name in files:
            stem, ending = os.path.splitext(os.path.relpath(os.path.join(path, name), src))
            if ending in (".c", ".h"):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    names = re.findall(r'^ *# *include "([\w/]+)\.h"', file.read(), re.M)
                found.setdefault(stem, set()).update(names)
    return {stem: {n for n in names if n in found and n != stem} for stem, names in found.items()}


def circle(graph, folder, path):
    """A circle that is reached from the folder, as a list, or None."""
    if folder in path:
        return path[path.index(folder):] + [folder]
    return next((c for n in sorted(graph[folder]) if (c := circle(graph, n, path + [folder]))), None)


def main():
    src, *beside = sys.argv[1:]
    folders = [os.path.join(src, name) for name in sorted(os.listdir(src)) if os.path.isdir(os.path.join(src, name))]
    graph = includes(folders + beside)
    if len(graph) != len(folders) + len(beside) or not folders:
        sys.exit(f"no sources in one of {', '.join(folders + beside)}")
    files = parts(src)
    for what, nodes in (("folders", graph), ("files", files)):
        for node in sorted(nodes):
            if found := circle(nodes, node, []):
                sys.exit(f"{what} include each other: " + " -> ".join(found))
    print(f"{len(graph)} folders, {len(files)} parts of {src}/cuda, no circle")


main()
