"""What a scenario in vLLM is refused for before vLLM starts: numbers, budgets, files, and texts too short."""

from __future__ import annotations

from collections.abc import Sequence

from kvreclaim.errors import InputError
from kvreclaim.prompts import Prompt, start_of
from kvreclaim.runtimes.observation import Scenario
from kvreclaim.runtimes.vllm.checks import check_block_size, check_blocks
from kvreclaim.runtimes.vllm.engine import reason_of
from kvreclaim.runtimes.vllm.environment import set_environment
from kvreclaim.runtimes.vllm.options import Options
from kvreclaim.scores.centres_file import CentresFile

_A_MODEL = "pass a model's folder, or a name of kvreclaim models list"


def check(scenario: Scenario, chosen: Sequence[Options]) -> None:
    """Refuse what the engine or the plugin would refuse later, or what is not predicted.

    Parameters
    ----------
    scenario
        The requests and the pool.
    chosen
        Options that evict.

    Raises
    ------
    InputError
        If a number can't be, an option does not fit the scenario, or a file holds no query centres.
    """
    check_block_size(scenario.block_size)
    if scenario.max_num_batched_tokens < scenario.max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens is {scenario.max_num_batched_tokens} and max_num_seqs "
            f"{scenario.max_num_seqs}: vLLM wants a token of each request, pass at least as many"
        )
    check_predicted(chosen)
    for options in chosen:
        if options.budget is not None and options.budget >= scenario.request_tokens:
            raise InputError(
                f"budget {options.budget} is never exceeded by requests of {scenario.request_tokens} tokens: "
                "pass less"
            )
        check_blocks(options, scenario.block_size)
    for file in _centres_of(chosen):
        CentresFile.load(file)


def check_predicted(chosen: Sequence[Options]) -> None:
    """Refuse options whose outcome the scheduler's rules do not say."""
    if any(options.copy_budget is not None for options in chosen):
        raise InputError("what a copy budget leaves is not predicted: leave out copy_budget")
    if any(options.mode == "compact" for options in chosen):
        raise InputError("what mode compact frees step by step is not predicted: pass another mode")


def check_centres(scenario: Scenario, chosen: Sequence[Options]) -> None:
    """Refuse query centres of a model of another shape, by the model's config alone.

    Raises
    ------
    InputError
        If they are such, or the model has no config.
    """
    files = _centres_of(chosen)
    if not files:
        return
    set_environment()
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(scenario.path).get_text_config()
        heads = int(config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
        shape = int(config.num_hidden_layers), heads, int(head_dim)
    except (ValueError, OSError, AttributeError, TypeError, ArithmeticError) as error:
        raise InputError(f"{scenario.model} has no config ({reason_of(error)}): {_A_MODEL}") from error
    for file in files:
        CentresFile.load_for(file, *shape)


def _centres_of(chosen: Sequence[Options]) -> set[str]:
    return {options.centres for options in chosen if options.centres is not None}


def prompts_of(scenario: Scenario) -> tuple[Prompt, ...]:
    """Return the scenario's prompts, cut with the model's tokenizer alone.

    Raises
    ------
    InputError
        If there is no such tokenizer, or the text is too short for so many and so long prompts.
    """
    set_environment()
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(scenario.path)
    except (ValueError, OSError) as error:
        raise InputError(f"{scenario.model} has no tokenizer ({reason_of(error)}): {_A_MODEL}") from error
    return scenario.prompts(
        lambda text: tokenizer.encode(text, add_special_tokens=False, verbose=False), start_of(tokenizer)
    )
