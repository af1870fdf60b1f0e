"""The page takes what the commands really write: the columns' ranges are held to true tables as well."""

from pathlib import Path

import pytest
from command_line import call

ROOT = Path(__file__).parent.parent
PLANNED = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--requests", "50")
RECORDED = sorted(path.parent for path in (ROOT / "results").glob("*/run.json"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_recorded_results(folder: Path, tmp_path: Path) -> None:
    assert call("page", folder, "--out", tmp_path / "page.html") == (0, *_said(tmp_path))


@pytest.mark.parametrize(
    "command",
    [
        ("audit", *sorted((ROOT / "examples/masks").glob("*.npz"))),
        ("simulate", ROOT / "examples/traces/azure-conv-1000.csv", "--blocks", "1200", "--requests", "100"),
        ("plan", ROOT / "examples/traces/azure-conv-1000.csv", *PLANNED),
    ],
    ids=lambda command: command[0],
)
def test_what_a_command_writes(command: tuple[object, ...], tmp_path: Path) -> None:
    assert call(*command, "--out", tmp_path / "folder").status == 0
    assert call("page", tmp_path / "folder", "--out", tmp_path / "page.html") == (0, *_said(tmp_path))


def _said(folder: Path) -> tuple[str, str]:
    return f"wrote {folder / 'page.html'}: open it in a browser\n", ""
