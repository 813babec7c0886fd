#!/usr/bin/env python3
"""Fails if the folders of src/ include each other in a circle, and prints the circle.

    tests/abi/folders.py SRC"""
import os
import re
import sys


def includes(src):
    """For each folder the folders that it includes."""
    found = {}
    for path, _, files in os.walk(src):
        folder = os.path.relpath(path, src).split(os.sep)[0]
        for name in files:
            if name.endswith((".c", ".h", ".cu", ".def")):
                with open(os.path.join(path, name), encoding="utf-8") as file:
                    names = re.findall(r'^ *# *include "(\w+)/', file.read(), re.M)
                found.setdefault(folder, set()).update(n for n in names if n != folder)
    return {folder: {n for n in names if n in found} for folder, names in found.items()}


def circle(graph, folder, path):
    """A circle that is reached from the folder, as a list, or None."""
    if folder in path:
        return path[path.index(folder):] + [folder]
    return next((c for n in sorted(graph[folder]) if (c := circle(graph, n, path + [folder]))), None)


def main():
    graph = includes(sys.argv[1])
    if len(graph) < 2:
        sys.exit(f"{sys.argv[1]}: holds no folders with sources")
    for folder in sorted(graph):
        if found := circle(graph, folder, []):
            sys.exit("folders include each other: " + " -> ".join(found))
    print(f"{len(graph)} folders, no circle")


main()
