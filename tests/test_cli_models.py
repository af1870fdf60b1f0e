"""``kvreclaim models``: lists without the extra, fetches with it, and says in one line what is missing."""

import json
import os
import subprocess
import sys

from kvreclaim.capture.fetch.catalog import MODELS


def kvreclaim(*arguments, folder, code="pass"):
    """Run the command line in a process of its own, with ``code`` before it."""
    run = f"import sys; {code}; from kvreclaim.cli import main; sys.argv[1:] = {arguments!r}; main()"
    return subprocess.run(
        [sys.executable, "-c", run],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KVRECLAIM_MODELS": str(folder), "PIP_NO_INDEX": "1"},
    )


def test_list(tmp_path):
    done = kvreclaim("models", "list", "--json", "-", folder=tmp_path)
    assert done.returncode == 0
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == [model.name for model in MODELS]
    assert all(row["directory"] is None for row in rows)
    assert "smollm2-135m" in done.stderr


def test_list_needs_no_torch(tmp_path):
    done = kvreclaim("models", "list", folder=tmp_path, code="sys.modules['torch'] = None")
    assert done.returncode == 0
    assert "gemma-3-270m" in done.stdout


def test_fetch_without_the_extra(tmp_path):
    done = kvreclaim("models", "fetch", "smollm2-135m", folder=tmp_path, code="sys.modules['torch'] = None")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("install it: pip install 'kvreclaim[models]'")
    assert list(tmp_path.iterdir()) == []


def test_fetch_says_what_is_wrong_in_one_line(tmp_path):
    done = kvreclaim("models", "fetch", "smollm3", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvreclaim: no model 'smollm3' to fetch: pass one of smollm2-135m, gemma-3-270m\n"


def test_the_list_breaks_no_name_at_80_columns(tmp_path):
    done = kvreclaim("models", "list", folder=tmp_path)
    for model in MODELS:
        assert any(model.name in line and model.hub_id in line for line in done.stdout.splitlines())
    assert max(map(len, done.stdout.splitlines())) <= 80
