"""Real models: which KV pairs a compression method keeps, recorded as the model runs, at what cost.

    models ──▶ record, prefill, decoding ──▶ keep masks ──▶ quality, matched ──▶ measure

Needs the extra ``models``: ``pip install 'kvreclaim[models]'``. The modules that hold tensors import torch,
transformers and kvpress; this one imports none of them.
"""
