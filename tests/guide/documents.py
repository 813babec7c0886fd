"""The project's prose: documents.py ROOT. Lines of documents end before column 121, their links lead somewhere, what
their commands leave at the root is ignored by git, and one word is said for one thing: the field's, not what it was
once called here."""
import fnmatch
import os
import re
import sys

MOST = 120
FOLDERS = ("docs", "include", "cli", "check", "bench", "device", "examples", "machines", "python", "src")
# What is not said, as a pattern: what is said.
WORDS = {
    r"\breckon": "compute",
    r"\bnotary\b": "scheduler warp",
    r"\bkeepers?\b": "semaphore warp",
    r"\btakers?\b": "persistent CTA",
    r"\brow tiles?\b": "Q tile",
    r"\bkey tiles?\b": "KV tile",
    r"\bone behind (the other|another)\b": "back to back",
    r"\bat rest\b|\brested\b": "at full clock",
    r"\bheld against\b": "compared with",
}


def anchors(text):
    """Of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-") for heading in headings}


def faults_of_document(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST:
            yield number, "%d columns" % len(line)
    for link in re.finditer(r"\]\(([\w./#-]*[./#][\w./#-]*)\)", text):
        target, _, anchor = link.group(1).partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(file):
            yield 0, "no file of the link " + link.group(1)
        elif anchor and file.endswith(".md"):
            with open(file) as other:
                if anchor not in anchors(other.read()):
                    yield 0, "no heading of the link " + link.group(1)


def outputs(command):
    """The names of files at the root that a command of a document may leave there."""
    words = re.split(r"[\s'\"()=,]+", command.split("  # ")[0])
    yield from (word for word in words if re.fullmatch(r"[\w-]+\.(npy|safetensors|svg|png|csv|json|o|whl)", word))
    yield from (name for option, name in zip(words, words[1:]) if option in ("-o", ">") and "/" not in name)
    if "cc" in words and not {"-o", "-c"} & set(words):
        yield "a.out"


def faults_of_outputs(text, ignored):
    text = re.sub(r"^```.*?^```", lambda fence: "\n" * fence.group().count("\n"), text, flags=re.M | re.S)  # code
    for number, line in enumerate(text.split("\n"), 1):
        commands = [line] if line.startswith("    ") else re.findall(r"`+(cc .*?)`+", line)
        for name in (name for command in commands for name in outputs(command)):
            if not any(fnmatch.fnmatchcase("/" + name, pattern) for pattern in ignored):
                yield number, "a command leaves %s, which .gitignore does not name" % name


def faults_of_words(text):
    for number, line in enumerate(text.split("\n"), 1):
        for word, said in WORDS.items():
            found = re.search(word, line, re.I)
            if found:
                yield number, "%r: say %r" % (found.group(), said)


def files(root):
    yield from (os.path.join(root, name) for name in sorted(os.listdir(root)) if name.endswith(".md"))
    for top in FOLDERS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            yield from (os.path.join(folder, name) for name in sorted(names)
                        if name.endswith((".c", ".h", ".cu", ".def", ".md", ".py", ".machine", ".nap")))


def main(root):
    planted = "x" * 121 + "\n[a](nowhere.md) [b](#nothing)\n"
    assert len(list(faults_of_document(os.path.join(root, "README.md"), planted))) == 3
    with open(os.path.join(root, ".gitignore")) as file:
        ignored = file.read().split()
    assert len(list(faults_of_outputs("    attn run --q q.npy -o out.bin > log\n`cc a.c` text q.npy\n", []))) == 4
    assert len(list(faults_of_words("the taker\n\nrow tile"))) == 2
    found = documents = 0
    for path in files(root):
        with open(path) as file:
            text = file.read()
        faults = list(faults_of_words(text))
        if path.endswith(".md"):
            faults += [*faults_of_document(path, text), *faults_of_outputs(text, ignored)]
        documents += path.endswith(".md")
        for number, what in faults:
            print("%s:%d: %s" % (os.path.relpath(path, root), number, what))
        found += len(faults)
    assert documents > 15, documents
    sys.exit(found > 0)


main(sys.argv[1])
