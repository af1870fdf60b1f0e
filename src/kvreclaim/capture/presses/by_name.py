"""Every press that runs offline in a prefill, by name: kvpress's, and the project's own policies.

A name with parameters and what it wraps is written as `kvreclaim.grammar` says. Where kvpress
and the project have a policy of the same name (``streaming-llm``, ``random``) the name is the project's;
kvpress's is ``kvpress-streaming-llm``, ``kvpress-random``, and inside a wrapper, which takes kvpress's only,
either.
"""

from __future__ import annotations

from kvpress import BasePress

from kvreclaim.capture.inside.checks import check_keeps_something
from kvreclaim.capture.inside.quiet import quiet_kvpress
from kvreclaim.capture.presses.maker import Maker
from kvreclaim.capture.presses.refusals import check_offline, check_recordable
from kvreclaim.capture.presses.tables import POLICIES, SCORERS, WHOLE, WRAPPERS
from kvreclaim.errors import InputError
from kvreclaim.grammar import parse

__all__ = ["make", "names"]


def names() -> tuple[str, ...]:
    """Return every name that `make` takes, wrappers with what they wrap left open: ``adakv:PRESS``."""
    wrapping = [f"{name}:PRESS" for name in (*WRAPPERS, "composed")]
    return tuple(sorted([*SCORERS, *WHOLE, *POLICIES, "simlayerkv", *wrapping]))


def make(text: str, ratio: float, tokens: int) -> BasePress:
    """Return a press by its name, set to a compression ratio.

    Most presses keep int(tokens * (1 - ratio)) KV pairs per head, or on average over heads or layers; what
    they do keep is measured. ``dms`` goes by its ``threshold`` and knows no ratio; ``per-layer`` spreads the
    ratio evenly, from less in the first layer to more in the last; ``composed`` gives each of its presses an
    equal share; ``simlayerkv`` keeps that many in its lazy layers, and everything in the others.

    Parameters
    ----------
    text
        One of `names()`, with parameters, such as ``snapkv:window_size=32`` or
        ``chunkkv:chunk_length=16:snapkv``.
    ratio
        Fraction of KV pairs to evict.
    tokens
        Tokens of the prompt that the press is for.

    Raises
    ------
    InputError
        If there is no such press or parameter, it can't be recorded or can't run offline, or the ratio keeps
        nothing.
    """
    check_keeps_something(ratio, tokens, text)
    maker = Maker(text, tokens, known=names())
    with quiet_kvpress():
        press, rest = maker.outer(parse(text), ratio)
    if rest:
        raise InputError(f"{text}: {rest[0].name} follows a press that wraps none; leave it out")
    check_recordable(press, text)
    check_offline(press, text)
    return press
