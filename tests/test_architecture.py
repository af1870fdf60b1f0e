"""The plan of the house as tests: who may import whom, and what a user gets from the top."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvreclaim

SOURCE = Path(kvreclaim.__file__).parent
CORE = [
    *(
        "errors",
        "texts",
        "prompts",
        "version",
        "validate",
        "grammar",
        "statistics",
        "processes",
        "results",
        "maskfile",
        "keep",
        "layout",
        "occupancy",
        "effective",
        "returned",
        "histogram",
    ),
    *("compaction", "census", "ledger_view", "ledger", "blockmap", "audits", "pool", "paged_pool"),
    *("cost", "eviction_rules", "scheduling", "scheduler", "bounds"),
]
ROOMS = {
    "scores": {*CORE},
    "policies": {*CORE, "scores"},
    "study": {*CORE, "scores", "policies"},
    "capture": {*CORE, "scores", "policies"},
    "runtimes": {*CORE, "scores", "policies"},
    "serving": {*CORE, "scores", "policies"},
    "advise": {*CORE, "scores", "policies", "capture"},
    "report": {"errors", "version", "validate", "results", "layout", "statistics"},
    "cli": {*CORE, "scores", "policies", "study", "capture", "runtimes", "serving", "advise", "report"},
    "__main__": {"cli"},
}
TENSORS = {
    SOURCE / "scores" / f"{name}.py" for name in ("attention", "distance", "redundancy")
}  # a real model's
PUBLIC = [
    "BlockLayout",
    "BlockPool",
    "InputError",
    "KeepMask",
    "Ledger",
    "__version__",
    "audit",
    "bounds",
    "load_keep_masks",
    "occupancy",
    "plan_compaction",
    "policies",
    "save_keep_masks",
]


def room_of(file):
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(file):
    """The rooms of kvreclaim that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        for name in names:
            if name.startswith("kvreclaim."):
                yield name.split(".")[1]


FILES = sorted(file for file in SOURCE.rglob("*.py") if file.parent != SOURCE or file.name != "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_rooms_import_only_what_they_may(file):
    room = room_of(file)
    assert room in CORE or room in ROOMS, f"{room} is a new room: give it a place in this test"
    allowed = set(CORE[: CORE.index(room)]) if room in CORE else ROOMS[room]
    assert set(imports_of(file)) <= allowed | {room}


def test_the_core_needs_numpy_and_safetensors_alone():
    for file in FILES:
        if room_of(file) in {*CORE, "scores", "policies"}:
            allowed = {*sys.stdlib_module_names, "numpy", "safetensors", "kvreclaim"}
            allowed |= {"torch"} if file in TENSORS else set()
            for node in ast.walk(ast.parse(file.read_text())):
                names = [node.module] if isinstance(node, ast.ImportFrom) else []
                names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
                roots = {name.split(".")[0] for name in names}
                assert roots <= allowed, file


def test_what_imports_torch_is_imported_where_models_run():
    for file in FILES:
        if room_of(file) not in {"capture", "runtimes", "cli"} and file not in TENSORS:
            for tensors in TENSORS:
                assert f"kvreclaim.scores.{tensors.stem}" not in file.read_text(), file


def test_numba_stays_in_serving():
    for file in FILES:
        if room_of(file) != "serving":
            assert "import numba" not in file.read_text(), file
            assert "from numba" not in file.read_text(), file


def test_import_kvreclaim_pulls_in_numpy_alone():
    code = "import sys; old = set(sys.modules); import kvreclaim; print(*set(sys.modules) - old)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    third_party = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"kvreclaim"}
    assert {name for name in third_party if not name.startswith("_")} == {"numpy"}


def test_commands_import_inside_their_functions():
    heavy = "polars altair torch transformers numba"
    code = f"import sys; import kvreclaim.cli; print(*set('{heavy}'.split()) & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


def test_public_names():
    assert sorted(kvreclaim.__all__) == kvreclaim.__all__ == PUBLIC
    assert all(getattr(kvreclaim, name) is not None for name in PUBLIC)


def test_files_are_small():
    assert {str(file): lines for file in FILES if (lines := len(file.read_text().splitlines())) > 320} == {}


def test_the_package_is_typed():
    assert (SOURCE / "py.typed").exists()
    assert json.dumps(kvreclaim.__version__)
