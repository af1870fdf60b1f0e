"""Prose that comes with Python, for models to read where nobody brings any."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

SHORTEST_PARAGRAPH = 80  # characters


def topics() -> str:
    """Return the prose of the help texts that come with CPython.

    Topics quote each other; a model copies what it has read before, so a prompt that repeats itself would
    say little of others: each paragraph is taken once. Grammar, examples and headings are left out.
    """
    from pydoc_data.topics import topics as by_name

    return _prose(by_name[name] for name in sorted(by_name))


def docstrings(modules: Iterable[str] = (), without: Iterable[str] = ()) -> str:
    """Return the prose of the docstrings of Python's own modules, as `topics` takes it.

    Parameters
    ----------
    modules
        Names of modules; none for all that are one file.
    without
        Names of modules to leave out.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = [_file(library, name) for name in modules] or sorted(library.glob("*.py"))
    left_out = set(without)
    return _prose(text for file in files if file.stem not in left_out for text in _docstrings(file))


def _file(library: Path, module: str) -> Path:
    package = library / module / "__init__.py"
    return package if package.is_file() else library / f"{module}.py"


def _docstrings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _prose(texts: Iterable[str]) -> str:
    """Return the running paragraphs of texts, each once."""
    paragraphs = (part for text in texts for part in text.split("\n\n"))
    running = (" ".join(part.split()) for part in paragraphs if part[:1].isalpha())
    return "\n\n".join(part for part in dict.fromkeys(running) if len(part) >= SHORTEST_PARAGRAPH)
