"""The mutants, one wrong thing each, and which of them a run tries: all, or those that what changed since a commit may have
touched.

mutants_*.py list them, by folders. Each is (file, old text, new text, what is wrong, test programs that must notice). Blanks
in the old text match any blanks; it must stand in the file exactly once: when code changes, so does its list.

tests/mutants/base names the commit at which all mutants were last caught; `run --all` alone writes it. A mutant is touched if
its own line changed since, its source file, a header that this includes, its tests' sources, or what those include. Where
history does not say (no git, a shallow clone, no base), all are. Of more than MOST, those are tried whose hash with that of
the commit is least, and as many more are compiled: others at each commit, the same whoever runs it. Of all others the text
must stand in its file."""
import fnmatch
import glob
import hashlib
import os
import re
import subprocess

MOST = 6
BASE = "tests/mutants/base"
LISTS = "tests/mutants/mutants_*.py"
FOLDERS = ("src", "include", "", "device", "check", "bench", "cli", "tests", "examples/gpt")
BESIDE = {  # what tests run or read that they do not include
    "cuda": ["tests/fake_cuda/*"],
    "emulated": ["tests/gpu/*", "tests/emulated_gpu/*", "tests/fake_cuda/*"],
    "napkin": ["examples/napkin/*"],
    "derive": ["examples/napkin/*"],
}


def git(root, *words):
    """What git says, or None."""
    try:
        done = subprocess.run(["git", "-C", root, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    return None if done.returncode else done.stdout


def head(root):
    return (git(root, "rev-parse", "HEAD") or "").strip()


def is_clean(root):
    return git(root, "status", "--porcelain") == ""


def known_base(root):
    """The commit that the file names, if history holds it; else ""."""
    try:
        with open(os.path.join(root, BASE)) as file:
            commit = file.read().strip()
    except OSError:
        return ""
    good = re.fullmatch("[0-9a-f]{40}", commit) and git(root, "cat-file", "-e", commit + "^{commit}") is not None
    return commit if good else ""


def changed_files(root, commit):
    """Committed or not, since the commit; None if git does not say."""
    known = git(root, "diff", "--name-only", commit)
    new = git(root, "ls-files", "--others", "--exclude-standard")
    return None if known is None or new is None else {*known.split("\n"), *new.split("\n")} - {""}


def mutants_of(lists):
    """Of the texts of files."""
    found = []
    for text in lists:
        names = {}
        exec(text, names)
        found += names["MUTANTS"]
    return found


def mutants_here(root):
    lists = []
    for path in sorted(glob.glob(os.path.join(root, LISTS))):
        with open(path) as file:
            lists.append(file.read())
    return mutants_of(lists)


def mutants_at(root, commit):
    paths = (git(root, "ls-tree", "-r", "--name-only", commit, os.path.dirname(LISTS) + "/") or "").split("\n")
    return mutants_of(git(root, "show", f"{commit}:{path}") for path in fnmatch.filter(paths, LISTS))


class Sources:
    """Which files a mutant's verdict hangs on."""

    def __init__(self, root):
        self.root, self.included = root, {}

    def exists(self, path):
        return os.path.isfile(os.path.join(self.root, path))

    def includes(self, path):
        if path not in self.included:
            with open(os.path.join(self.root, path), errors="replace") as file:
                names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M)
            places = (os.path.dirname(path), *FOLDERS)
            tried = ([os.path.normpath(os.path.join(place, name)) for place in places] for name in names)
            self.included[path] = [next(filter(self.exists, paths)) for paths in tried if any(map(self.exists, paths))]
        return self.included[path]

    def closure(self, paths):
        found, rest = set(), [path for path in paths if self.exists(path)]
        while rest:
            path = rest.pop()
            if path not in found:
                found.add(path)
                rest += self.includes(path)
        return found

    def of_test(self, program):
        name = program.partition(":")[0].partition("/")[0]
        paths = [f"tests/test_{name}.c", f"tests/gpt/test_{name}.c"]
        for pattern in BESIDE.get(name.partition("_")[0], []):
            paths += [os.path.relpath(path, self.root) for path in glob.glob(os.path.join(self.root, pattern))]
        found = self.closure(paths)
        checks = [path[:-1] + "c" for path in found if path.startswith(("device/", "check/", "tests/")) and path.endswith(".h")]
        return found | self.closure(checks)

    def of(self, mutant):
        return self.closure([mutant[0]]).union(*(self.of_test(program) for program in mutant[4].split()))


def touched(root, mutants):
    """The mutants that may have changed since the base, and that base; all of them, and "", where nobody knows."""
    base = known_base(root)
    files = changed_files(root, base) if base else None
    if files is None:
        return list(mutants), ""
    before, sources = set(mutants_at(root, base)), Sources(root)
    return [m for m in mutants if m not in before or sources.of(m) & files], base


def draw(root, mutants, most=MOST):
    """At most so many of the mutants, and the others, both in their order."""
    commit = head(root)
    order = sorted(mutants, key=lambda mutant: hashlib.sha256((commit + repr(mutant)).encode()).digest())
    taken = set(order[:most])
    return [m for m in mutants if m in taken], [m for m in mutants if m not in taken]


def choose(root, mutants, most=MOST):
    """What a run without words tries, what it only compiles, what else is touched, and the line that says so."""
    candidates, base = touched(root, mutants)
    chosen, others = draw(root, candidates, most)
    compiled, others = draw(root, others, most)
    since = f"touched since {base[:12]}" if base else f"in all, since {BASE} names no commit that is known here"
    return chosen, compiled, others, (
        f"{len(candidates)} of {len(mutants)} mutants {since}; drawn by the commit, {len(chosen)} are tried and {len(compiled)} "
        f"compiled; of {len(others)} the text is looked for; all: tests/mutants/run --all")
