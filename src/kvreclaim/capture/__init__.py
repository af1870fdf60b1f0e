"""Real models: which KV pairs a compression method keeps, recorded while the model runs.

Needs the extra ``models``: ``pip install 'kvreclaim[models]'``. The modules that hold tensors import torch,
transformers and kvpress; this one imports none of them.
"""
