"""Parts of the plugin's option that have to fit each other: mode and budgets, buffer, files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvreclaim.errors import InputError
from kvreclaim.runtimes.vllm.kinds import BY_SLOT, UNEQUAL, WHOLE
from kvreclaim.runtimes.vllm.values import is_file, may_be_path
from kvreclaim.validate import non_negative_int, positive_int

if TYPE_CHECKING:
    from kvreclaim.runtimes.vllm.options import Options


def check_mode(options: Options) -> None:
    """Raise InputError if the mode is not for the policy, or a budget for the mode."""
    if options.mode == "compact" and options.policy == "none":
        raise InputError("policy none leaves nothing to compact: leave out mode, or pass a policy")
    if (options.latency_budget is None) != (options.copy_cost is None):
        raise InputError(
            "latency_budget and copy_cost go together: pass both, the file of kvreclaim calibrate copy --json"
        )
    if options.latency_budget is not None:
        if options.latency_budget <= 0:
            raise InputError(f"latency_budget is {options.latency_budget!r}: pass seconds, greater than 0")
        if options.mode != "compact":
            raise InputError(f"mode {options.mode} has no latency_budget: leave it out, or pass mode compact")
    if options.copy_budget is not None:
        non_negative_int(options.copy_budget, "copy_budget")
        if options.mode not in ("pack", "compact"):
            raise InputError(f"mode {options.mode} copies nothing: leave out copy_budget, or pass mode pack")
        if options.mode == "pack" and options.policy in (*UNEQUAL, "keep-mask"):
            raise InputError(
                f"copy_budget with {options.policy}, whose heads differ: leave one of them out, or pass mode "
                "compact"
            )
    limited = options.copy_budget is not None or options.latency_budget is not None
    if options.policy in WHOLE and limited:
        raise InputError(f"{options.policy} copies nothing: leave out copy_budget and latency_budget")


def check_buffer(options: Options) -> None:
    """Raise InputError if a buffer is not for the policy in its mode."""
    if options.buffer is None:
        return
    positive_int(options.buffer, "buffer")
    if options.policy in ("none", "keep-mask"):
        raise InputError(f"policy {options.policy} evicts once: leave out buffer")
    modes = ("free", "pack") if options.policy in WHOLE else ("pack",)
    if options.policy in BY_SLOT and (options.mode not in modes or options.copy_budget is not None):
        raise InputError(
            f"{options.policy} with buffer needs rows without dead pairs: pass mode {' or '.join(modes)}, "
            "and no copy_budget"
        )


def check_files(options: Options) -> None:
    """Raise InputError if a file that the policy needs is missing, or one is there that it does not need."""
    if (options.policy == "keep-mask") != (options.masks is not None):
        raise InputError("masks and policy keep-mask go together: pass both, or neither")
    if (options.scored_by == "triattention") != (options.centres is not None):
        raise InputError(
            "TriAttention's scores and centres go together: pass the file of kvreclaim calibrate queries"
        )
    for name in ("centres", "copy_cost", "masks", "records"):
        if not may_be_path(getattr(options, name)):
            raise InputError(f"{name} is {getattr(options, name)!r:.80}: pass a path")
    for name in ("centres", "copy_cost", "masks"):
        given = getattr(options, name)
        if given is not None and not is_file(given):
            raise InputError(f"{name} {given:.80}: no such file")
