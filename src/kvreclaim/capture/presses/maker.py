"""Presses made out of their names, the outermost first."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

import kvpress
from kvpress import BasePress
from kvpress.presses.scorer_press import ScorerPress
from kvpress.utils import compute_n_kept

from kvreclaim import policies
from kvreclaim.capture.presses.policy_press import PolicyPress, ReceivedAttention, Scorer, WindowAttention
from kvreclaim.capture.presses.refusals import reason_against
from kvreclaim.capture.presses.tables import POLICIES, REFUSED, SCORERS, WHOLE, WRAPPERS
from kvreclaim.errors import InputError
from kvreclaim.grammar import NamedPress
from kvreclaim.layout import BlockLayout

Rest = Sequence[NamedPress]
"""What is left of the names."""

_WINDOW = {field.name: field.default for field in fields(WindowAttention)}
_LAYOUT = {"block_size": 16, "block_tables": "shared"}
_BY_BLOCK = ("block-wise", "minimum-loss", "reclaimability-aware")
_BY_POSITION = ("random", "streaming-llm")


class Maker:
    """Makes presses for a prompt; each method returns a press and the names that it did not use.

    Parameters
    ----------
    text
        The whole name, for messages.
    tokens
        Tokens of the prompt.
    known
        Names to list where one is unknown.
    """

    def __init__(self, text: str, tokens: int, known: Collection[str]) -> None:
        self._text, self._tokens, self._known = text, tokens, known

    def outer(self, parts: Rest, ratio: float) -> tuple[BasePress, Rest]:
        """Make a press that nothing wraps."""
        head, rest = parts[0], parts[1:]
        if head.name in POLICIES:
            return self._policy(head, ratio), rest
        if head.name == "composed":
            return self._composed(head, rest, ratio), ()
        if head.name == "simlayerkv":
            return self._simlayerkv(head, ratio), rest
        if head.name in WHOLE:
            return self.construct(WHOLE[head.name], head, compression_ratio=ratio), rest
        return self._wrapper_or_scorer(parts, ratio)

    def _wrapper_or_scorer(self, parts: Rest, ratio: float) -> tuple[BasePress, Rest]:
        head, rest = parts[0], parts[1:]
        if head.name in SCORERS:
            return self.construct(SCORERS[head.name], head, compression_ratio=ratio), rest
        if head.name not in WRAPPERS:
            raise self._unknown(head.name)
        inner, rest = self.scorer(head, rest, 0.0 if head.name == "dms" else ratio)
        if head.name == "dms" and "threshold" not in head.parameters:
            raise InputError(f"{self._text}: dms evicts below a score: pass dms:threshold=NUMBER:PRESS")
        if head.name == "per-layer":
            return self.construct(LinearPerLayerPress, head, press=inner, ratio=ratio), rest
        return self.construct(WRAPPERS[head.name], head, press=inner), rest

    def scorer(self, wrapper: NamedPress, parts: Rest, ratio: float) -> tuple[ScorerPress, Rest]:
        """Make the press that a wrapper wraps."""
        if not parts:
            raise InputError(
                f"{self._text}: {wrapper.name} wraps a press: pass {wrapper.name}:snapkv, or another"
            )
        if f"kvpress-{parts[0].name}" in SCORERS:
            parts = (NamedPress(f"kvpress-{parts[0].name}", parts[0].parameters), *parts[1:])
        press, rest = self.outer(parts, ratio)
        if not isinstance(press, ScorerPress):
            raise InputError(
                f"{self._text}: {wrapper.name} takes no {parts[0].name}: pass one of {', '.join(SCORERS)}"
            )
        return press, rest

    def _composed(self, head: NamedPress, parts: Rest, ratio: float) -> BasePress:
        presses = []
        share = 1 - (1 - ratio) ** (1 / max(self._count(parts), 1))
        while parts:
            press, parts = self.outer(parts, share)
            presses.append(press)
        if len(presses) < 2:
            raise InputError(f"{self._text}: composed runs presses in turn: pass composed:PRESS:PRESS")
        press = self.construct(kvpress.ComposedPress, head, presses=presses)
        press.compression_ratio = ratio
        return press

    def _count(self, parts: Rest) -> int:
        """Return how many presses follow each other in these names."""
        count = 0
        while parts:
            _, parts = self.outer(parts, 0.0)
            count += 1
        return count

    def _simlayerkv(self, head: NamedPress, ratio: float) -> BasePress:
        press = self.construct(kvpress.SimLayerKVPress, head)
        if "lazy_threshold" not in head.parameters:
            press.lazy_threshold = 0.9  # kvpress's advice for Llama 3; its default compresses nothing
        if "n_recent" not in head.parameters:
            press.n_recent = max(compute_n_kept(self._tokens, ratio) - press.n_initial, 0) + press.n_last
        return press

    def _policy(self, head: NamedPress, ratio: float) -> BasePress:
        """Make one of the project's own policies a press, with a scorer and a layout where it wants them."""
        given = dict(head.parameters)
        takes = [field.name for field in fields(policies.get(head.name))]  # type: ignore[arg-type]
        scored = head.name not in (*_BY_POSITION, "h2o")
        takes += ["scores", *_WINDOW] if scored else []
        takes += list(_LAYOUT) if head.name in _BY_BLOCK else []
        self._check_parameters(head, takes)
        scorer = self._chosen_scorer(given) if scored else ReceivedAttention() if head.name == "h2o" else None
        chosen = {key: given.pop(key, default) for key, default in _LAYOUT.items()}
        layout = BlockLayout(**chosen) if head.name in _BY_BLOCK else None
        return PolicyPress(ratio, policies.get(head.name, **given), scorer, layout)

    def _chosen_scorer(self, given: dict[str, Any]) -> Scorer:
        kind = given.pop("scores", "window")
        window = {key: given.pop(key, default) for key, default in _WINDOW.items()}
        if kind not in ("window", "received"):
            raise InputError(f"{self._text}: scores={kind}: pass window or received")
        return WindowAttention(**window) if kind == "window" else ReceivedAttention()

    def construct(self, kind: Any, head: NamedPress, **own: Any) -> Any:
        """Make a press, its parameters checked against the constructor's names and defaults."""
        accepted = inspect.signature(kind).parameters
        given = head.parameters
        self._check_parameters(
            head, [key for key in accepted if key not in (*own, "compression_ratio", "press")]
        )
        for key, value in given.items():
            wanted = type(accepted[key].default)
            if wanted is float and type(value) is int:
                value = float(value)
            if wanted in (int, float, bool) and type(value) is not wanted:
                raise InputError(f"{self._text}: {key}={value}: pass a value of type {wanted.__name__}")
        try:
            return kind(**own, **given)
        except (AssertionError, ValueError) as error:
            raise InputError(
                f"{self._text}: {' '.join(str(error).split())}; pass other parameters"
            ) from error

    def _check_parameters(self, head: NamedPress, takes: Sequence[str]) -> None:
        unknown = [key for key in head.parameters if key not in takes or key.startswith("_")]
        if unknown:
            public = ", ".join(key for key in takes if not key.startswith("_")) or "none"
            raise InputError(f"{self._text}: {head.name} has no parameter {unknown[0]}: it takes {public}")

    def _unknown(self, name: str) -> InputError:
        if name in REFUSED:
            return InputError(f"{name}: {reason_against(REFUSED[name])}; pass another press")
        return InputError(f"no press {name!r}: pass one of {', '.join(self._known)}")


class LinearPerLayerPress(kvpress.PerLayerCompressionPress):
    """kvpress's per-layer ratios on a line, from ``spread`` below ``ratio`` to as much above it."""

    def __init__(self, press: ScorerPress, ratio: float, spread: float = 0.25) -> None:
        self._ratio, self._spread = ratio, min(spread, ratio, 0.99 - ratio)
        super().__init__(press, [ratio])

    def post_init_from_model(self, model: Any) -> None:
        """Lay the line over the model's layers."""
        self.press.post_init_from_model(model)
        last = max(model.config.get_text_config(decoder=True).num_hidden_layers - 1, 1)
        steps = [2 * layer / last - 1 for layer in range(last + 1)]
        self.compression_ratios = [self._ratio + self._spread * step for step in steps]
