#!/usr/bin/env python3
"""Fails if folders include each other in a circle, and prints the circle: those of src/, and those beside it.

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
    for folder in sorted(graph):
        if found := circle(graph, folder, []):
            sys.exit("folders include each other: " + " -> ".join(found))
    print(f"{len(graph)} folders, no circle")


main()
