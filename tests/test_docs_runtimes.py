"""The Python examples of the documents on runtimes and costs print what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["observe.md", "cost.md"])
def test_the_example_prints_what_its_comment_says(name):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {})  # noqa: S102  # our own document
    assert re.findall(r"^print.*  # (.*)$", example, re.MULTILINE) == printed.getvalue().splitlines()
