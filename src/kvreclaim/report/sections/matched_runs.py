"""In a real runtime at matched quality: what each policy gives back when all do the same harm."""

from __future__ import annotations

from typing import Any

from kvreclaim.errors import InputError
from kvreclaim.report.charts.rows import label
from kvreclaim.report.folder import Folder
from kvreclaim.report.observations import matched_budgets, observed_tables, run_of
from kvreclaim.report.references import REFERENCES
from kvreclaim.report.section import KeyNumber, Section, Table
from kvreclaim.report.sections.observed import AS_PREDICTED, DONE, NAMES, kl_text
from kvreclaim.report.wording import listed, mebibytes, number, percent

STUDY = f"The study “{REFERENCES['study'].title}”"
Row = dict[str, Any]
COLUMNS = ("Evicted", "May go", "Kept", "Blocks back", "At once", "Steps", "Copied", "KL", "As predicted")
# Of a request, but for what runs at once and the steps.
NOTHING = "–"


def build(folder: Folder) -> Section:
    """Return the section of runs whose budgets are those of matched quality."""
    runs, _ = observed_tables(folder)
    budgets = matched_budgets(folder, runs)
    asked = folder.run.get("parameters", {})
    if not budgets:
        raise InputError(f"{folder.path / 'budgets.csv'} has no rows: run the command again")
    full = runs[0]
    found = [(budget, run_of(budget, runs[1:])) for budget in budgets]
    for budget, run in found:
        if run is None and budget["budget"] != asked["prompt_tokens"]:  # all is kept: then there is none
            raise InputError(f"{folder.path} has no run of {_name(budget)}: run the command again")
    return Section(
        id="matched",
        title=f"In {NAMES.get(full['runtime'], full['runtime'])}, at matched quality",
        provenance=folder.made("Observed"),
        prose=(_question(asked, full, budgets[0]), *_answer(found, full, asked["requests"])),
        items=(_table(found, full, asked["requests"]),),
        key_numbers=_key_numbers(found, full),
        sources=("study", "paged-attention", "streaming-llm", "snapkv"),
    )


def _question(asked: Row, full: Row, budget: Row) -> str:
    these = "these" if asked.get("budgets_of_the_same_prompts") else "other"
    return (
        f"{STUDY} ends with a step that it leaves open: evict in a paged runtime, and report free blocks "
        f"and admitted requests at matched quality. Here {asked['model']} runs in "
        f"{NAMES.get(full['runtime'], full['runtime'])}: {asked['requests']} requests of "
        f"{asked['prompt_tokens']} tokens, {asked['max_tokens']} more to generate, in a pool of "
        f"{asked['pool_blocks']} blocks of {asked['block_size']}, too small on purpose. Each policy may "
        f"evict as much as is matched to a KL of {number(budget['target_kl'])} nats to the full model, "
        f"prompt by prompt; its budget is the median over {these} prompts, so that the KL of single requests "
        "lies below and above. Where only whole dead blocks are freed, the dead pairs that stay are still "
        "attended: that is what its harm was measured with, and such a policy may ask for more."
    )


def _answer(found: list[tuple[Row, Row | None]], full: Row, requests: int) -> tuple[str, ...]:
    ran = [(budget, run) for budget, run in found if run is not None]
    copied = {True: "With packing", False: "Without a copy"}
    told = [f"With the full cache {full['observed_peak_running']} requests run at once."]
    for packs, words in copied.items():
        part = [run for _, run in ran if (run["mode"] == "pack") is packs]
        gives = [_one(run, requests) for run in part if _back(run, requests) >= 1]
        none = [label(run["policy"]) for run in part if _back(run, requests) < 1]
        said = [*gives, f"less than one block, or none, from {listed(none)}"] if none else gives
        if said:
            told.append(f"{words}: {'; '.join(said)}.")
    if whole := [_name(budget) for budget, run in found if run is None]:
        told.append(f"On the median prompt nothing may be evicted at this quality by {listed(whole)}.")
    bounds = [f"{_name(budget)} ({budget['outside']})" for budget, _ in ran if budget["outside"]]
    if bounds:
        told.append(
            f"The sweep ended, or nothing could go, on some prompts (how many): {listed(bounds)}; there the "
            "budget is a bound."
        )
    return (" ".join(told),)


def _back(run: Row, requests: int) -> float:
    """Return the blocks that evictions gave back, of a request."""
    return float(run["observed_blocks_freed"] or 0) / requests


def _one(run: Row, requests: int) -> str:
    back = f"{_back(run, requests):.3g} blocks back each"
    return f"{label(run['policy'])} {run['observed_peak_running']} at once, {back}"


def _name(row: Row) -> str:
    return f"{label(row['policy'])}, {DONE[row['mode']]}"


def _table(found: list[tuple[Row, Row | None]], full: Row, requests: int) -> Table:
    rows = [_cells("Full cache", None, full, requests)]
    rows += [_cells(_name(budget), budget, run, requests) for budget, run in found]
    judged = [full, *(run for _, run in found)]
    return Table(
        id="matched-table",
        title="Free blocks and admitted requests at matched quality",
        caption=(
            "Observed, one run each. May go: share of the KV pairs, the median of what prompts of this "
            "length allow (measured). Kept: pairs of each head. Blocks back, copied: of a request, mean. At "
            "once: the most requests that ran in one step. KL: measured on these requests, with the pairs "
            f"that attention saw, median and range (n = {requests}). {AS_PREDICTED}"
        ),
        columns=COLUMNS,
        rows=tuple(rows),
        numeric=frozenset(range(1, len(COLUMNS) - 1)),
        tones=tuple(
            "" if run is None else "good" if run["unequal"] == "nothing" else "bad" for run in judged
        ),
    )


def _cells(name: str, budget: Row | None, run: Row | None, requests: int) -> tuple[str, ...]:
    may_go = "" if budget is None else percent(budget["ratio"])
    if run is None:
        return (name, may_go, *(NOTHING for _ in COLUMNS[2:]))
    return (
        name,
        may_go,
        "all" if run["budget"] is None else f"{run['budget']}",
        f"{_back(run, requests):.3g}",
        f"{run['observed_peak_running']}",
        f"{run['observed_steps']}",
        mebibytes((run["moved_bytes"] or 0) / requests),
        _kl(run),
        "✓ yes" if run["unequal"] == "nothing" else f"✗ not {run['unequal'].replace('_', ' ')}",
    )


def _kl(run: Row) -> str:
    if run.get("kl_effective") is None:
        return "" if run["budget"] else "0"
    return kl_text(run)


def _key_numbers(found: list[tuple[Row, Row | None]], full: Row) -> tuple[KeyNumber, ...]:
    """Return how many more requests run at once without a copy, at the policy that lets in the most."""
    free = [run for _, run in found if run is not None and run["mode"] == "free"]
    if not free:
        return ()
    best = max(free, key=lambda run: run["observed_peak_running"])
    return (
        KeyNumber(
            f"{best['observed_peak_running']}, not {full['observed_peak_running']}",
            f"requests run at once at matched quality, without a copy: {label(best['policy'])}",
            f"observed in {NAMES.get(best['runtime'], best['runtime'])}, 1 run each",
        ),
    )
