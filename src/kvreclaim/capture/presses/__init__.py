"""Presses: kvpress's and the project's own policies, by name.

    "adakv:alpha_safeguard=0.1:snapkv" ──grammar──▶ parts ──maker, tables──▶ press or refusal

`make` and `names` are for a prefill; `decoding` has those that evict while the model generates.
"""

from kvreclaim.capture.presses.by_name import make, names

__all__ = ["make", "names"]
