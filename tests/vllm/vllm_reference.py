"""The model in Hugging Face as the oracle: all of the prompt, then only the pairs that are left."""

import copy

import torch
from transformers import AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "kvreclaim_test_reference"


class Reference:
    """A model in float32 whose heads each see the pairs of a keep mask."""

    def __init__(self, folder):
        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.set_attn_implementation(NAME)
        self._seen = None
        self._states = []
        self._prefilled = {}

    def _attend(self, module, query, key, value, _mask, scaling, **_):
        group = query.shape[1] // key.shape[1]
        new, slots = query.shape[2], key.shape[2]
        self._states.append((query[0], key[0], value[0]))
        del self._states[: -self.model.config.num_hidden_layers]
        seen = torch.ones(new, slots, dtype=torch.bool).tril(slots - new).expand(key.shape[1], new, slots)
        if self._seen is not None:
            later = torch.ones(key.shape[1], slots - self._seen.shape[-1], dtype=torch.bool)
            seen = seen & torch.cat([self._seen[module.layer_idx], later], 1)[:, None]
        output = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 1),
            value.repeat_interleave(group, 1),
            attn_mask=seen.repeat_interleave(group, 0)[None],
            scale=scaling,
        )
        return output.transpose(1, 2).contiguous(), None

    @torch.no_grad()
    def prefill(self, prompt):
        """Return the cache and the last logits of a prompt; kept, for tests share prompts."""
        if tuple(prompt) not in self._prefilled:
            self._seen = None
            output = self.model(torch.tensor([prompt]), use_cache=True)
            self._prefilled[tuple(prompt)] = (output.past_key_values, output.logits[0, -1])
        return self._prefilled[tuple(prompt)]

    @torch.no_grad()
    def generate(self, prompt, masks, count):
        """Return greedy tokens and, for each, the margin between its logit and the runner-up's.

        ``masks`` maps numbers of computed tokens to bool [layers, kv_heads, computed tokens]: from then on,
        of these tokens, only what is True is seen.
        """
        cache, logits = self.prefill(prompt)
        cache = copy.deepcopy(cache)
        tokens, margins = [], []
        for computed in range(len(prompt), len(prompt) + count):
            best = logits.topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            if computed in masks:
                self._seen = torch.from_numpy(masks[computed].copy())
            elif computed == len(prompt):
                self._seen = None
            logits = self.model(torch.tensor([tokens[-1:]]), past_key_values=cache, use_cache=True).logits[
                0, -1
            ]
        self._seen = None
        return tokens, margins

    @torch.no_grad()
    def states(self, prompt):
        """Return the rotated queries and keys and the values of a prompt, ``[heads, tokens, 64]`` a layer."""
        self._seen = None
        self.model(torch.tensor([prompt]))
        return list(self._states)

    @torch.no_grad()
    def centres(self, prompt):
        """Return each layer's mean query before rotation and its spread, and the rates of the rotation.

        ``[layers, heads, 64]``, ``[layers, heads, 32]`` and ``[32]``: what `CentresFile` takes.
        """
        found = []
        hooks = [
            layer.self_attn.q_proj.register_forward_hook(lambda *call: found.append(call[-1][0]))
            for layer in self.model.model.layers
        ]
        self.states(prompt)
        for hook in hooks:
            hook.remove()
        queries = torch.stack(found).unflatten(-1, (-1, 64)).transpose(1, 2)
        pairs = torch.complex(*queries.chunk(2, dim=-1))
        spread = pairs.abs().mean(2) - pairs.mean(2).abs()
        return queries.mean(2), spread, self.model.model.rotary_emb.inv_freq

    @torch.no_grad()
    def says(self, prompt, following, mask=None):
        """Return log probabilities [n, vocabulary] after each of n tokens; of the prompt a mask is left."""
        cache, _ = self.prefill(prompt)
        self._seen = None if mask is None else torch.from_numpy(mask.copy())
        logits = self.model(torch.tensor([following]), past_key_values=copy.deepcopy(cache)).logits[0]
        self._seen = None
        return logits.log_softmax(-1)

    @torch.no_grad()
    def attentions(self, prompt):
        """Return weights [layers, heads, queries, keys] of a prompt, from eager attention, and its keys."""
        self.model.set_attn_implementation("eager")
        output = self.model(torch.tensor([prompt]), use_cache=True, output_attentions=True)
        self.model.set_attn_implementation(NAME)
        keys = torch.stack([layer.keys[0] for layer in output.past_key_values.layers])
        return torch.stack([layer[0] for layer in output.attentions]), keys
