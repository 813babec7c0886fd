"""README.md, docs/PYTHON.md and docs/FP8.md: their blocks of Python run, each document's from top to bottom in one namespace."""
import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
OPTIONAL = {"torch": "torch", "libattn.torch": "torch", "transformers": "transformers",  # what imports need
            "libattn.transformers": "transformers"}


class Document:
    """Blocks are (number of their first line, source). They run in order, so each has run those above it."""

    def __init__(self, name):
        self.name, self.namespace, self.done = name, {"__name__": name}, 0
        text = (ROOT / name).read_text()
        self.blocks = [(text.count("\n", 0, found.start(1)) + 1, found.group(1))
                       for found in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)]

    def lacks(self, index):
        """A package that a block's imports need, that may be missing and is, or None."""
        for node in ast.walk(ast.parse(self.blocks[index][1])):
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                     [node.module] if isinstance(node, ast.ImportFrom) else [])
            for name in names:
                try:
                    if name in OPTIONAL:
                        __import__(OPTIONAL[name])
                except ModuleNotFoundError as error:
                    return error.name
        return None

    def run_to(self, index):
        while self.done <= index:
            line, source = self.blocks[self.done]
            if not self.lacks(self.done):
                exec(compile("\n" * (line - 1) + source, str(ROOT / self.name), "exec"), self.namespace)
            self.done += 1


DOCUMENTS = [Document("README.md"), Document("docs/PYTHON.md"), Document("docs/FP8.md")]


@pytest.mark.parametrize("document, index", [
    pytest.param(document, i, id=f"{document.name}:{line}")
    for document in DOCUMENTS for i, (line, _) in enumerate(document.blocks)])
def test_block_runs(document, index):
    missing = document.lacks(index)
    if missing:
        pytest.skip(f"needs {missing}, which is not here")
    document.run_to(index)


def test_every_block_is_found():
    for document in DOCUMENTS:
        assert document.blocks and len(document.blocks) == (ROOT / document.name).read_text().count("```python")
