"""R-KV, TriAttention and their kin, by brute force and against the model's own attention."""

import math

import numpy as np
import pytest
from command_line import call
from small_models import prefill, random_ids, smollm2, tiny_gemma3, tiny_llama, torch, transformers

from kvreclaim import InputError
from kvreclaim.capture.decoding import record_decoding
from kvreclaim.capture.inside.queries import latest_queries, observed_queries
from kvreclaim.capture.inside.rotary import bind_rotary, rotated_queries
from kvreclaim.capture.prefill import capture
from kvreclaim.capture.presses import make
from kvreclaim.capture.presses.calibration import calibrate, centres_file, query_centres
from kvreclaim.capture.presses.decoding import make_decoding
from kvreclaim.capture.presses.own_scorers import RKVPress, TriAttentionPress
from kvreclaim.scores.attention import attention_weights, trailing_attention, value_key_ratio
from kvreclaim.scores.centres_file import CentresFile
from kvreclaim.scores.distance import FURTHEST, QueryCentres, centres_of, triattention_scores
from kvreclaim.scores.redundancy import redundancy_of, rkv_scores


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cosine(one, other):
    return float(one @ other / one.norm() / other.norm())


def redundancy_by_hand(keys):
    """Of each key the cosines to all, its latest similar one spared; then the mean by column, and softmax."""
    tokens = len(keys)
    table = np.zeros((tokens, tokens))
    for row in range(tokens):
        cosines = [cosine(keys[row], keys[column]) if column != row else 0.0 for column in range(tokens)]
        latest = max((column for column in range(tokens) if cosines[column] > 0.5), default=0)
        cosines[latest] = 0.0
        table[row] = cosines
    weights = np.exp(table.mean(axis=0))
    return weights / weights.sum()


def test_redundancy_by_brute_force(monkeypatch):
    monkeypatch.setattr("kvreclaim.scores.redundancy.ROWS_AT_ONCE", 7)
    keys = draw(2, 23, 4)
    keys[:, 20] = keys[:, 3] * 2  # a repetition, which spares the later one
    for found, own in zip(redundancy_of(keys), keys, strict=True):
        np.testing.assert_allclose(found.numpy(), redundancy_by_hand(own), rtol=1e-5)
    assert (redundancy_of(keys)[:, 3] > redundancy_of(keys)[:, 20]).all()


def test_rkv_by_brute_force():
    queries, keys, window, share = draw(4, 30, 8), draw(2, 30, 8, seed=1), 5, 0.3
    found = rkv_scores(queries, keys, 8**-0.5, window, 3, share)
    for head in range(2):
        attention = np.zeros(25)
        for query in range(25, 30):
            logits = [
                max(float(queries[2 * head + one, query] @ keys[head, key]) * 8**-0.5 for one in (0, 1))
                for key in range(25)
            ]
            attention += np.exp(logits) / np.exp(logits).sum() / window
        pooled = [attention[max(key - 1, 0) : key + 2].max() for key in range(25)]
        scores = share * np.array(pooled) - (1 - share) * redundancy_by_hand(keys[head])[:25]
        np.testing.assert_allclose(found[head, :25].numpy(), scores - scores.min(), atol=1e-6)
    assert (found[:, 25:] > found[:, :25].max()).all()


def test_triattention_is_what_average_queries_pay_at_each_distance():
    """Of a head whose queries are all its centre the scores are the logits, averaged over the distances."""
    rotary = tiny_llama().model.rotary_emb
    centre, keys = draw(1, 8), draw(1, 12, 8, seed=1)

    def rotated(vectors, positions):
        cos, sin = rotary(vectors, torch.tensor([positions]))
        return transformers.models.llama.modeling_llama.apply_rotary_pos_emb(
            vectors[None], vectors[None], cos, sin
        )[0][0]

    now = 12
    distances = [2**step for step in range(17)]
    assert distances[-1] == FURTHEST
    logits = np.zeros(12)
    cached = rotated(keys, list(range(12)))[0]
    for distance in distances:
        query = rotated(centre[:, None], [now + distance])[0, 0]
        logits += (cached @ query).numpy() / len(distances)
    centres = QueryCentres(centre, torch.zeros(1, 4))
    found = triattention_scores(centres, cached[None], rotary.inv_freq, now)[0].numpy()
    np.testing.assert_allclose(found, (logits - logits.mean()) / logits.std(), atol=2e-3)


def test_the_spread_of_queries_adds_the_length_of_keys():
    """Queries that cancel out have centre 0: what is left is E|q_f| |k_f|, summed over pairs."""
    queries = torch.tensor([[[3.0, 0, 4, 0], [-3, 0, -4, 0]]])
    centres = centres_of(queries)
    assert centres.centre.abs().max() == 0
    assert centres.spread.tolist() == [[5.0, 0.0]]
    keys = torch.tensor([[[1.0, 9, 0, 9], [3, 0, 4, 0], [0, 7, 2, 7]]])
    found = triattention_scores(centres, keys, torch.tensor([1.0, 0.1]), 3)[0]
    lengths = np.array([1.0, 5.0, 2.0])
    np.testing.assert_allclose(found.numpy(), (lengths - lengths.mean()) / lengths.std(), rtol=1e-5)


def test_of_query_heads_that_share_keys_the_highest_counts():
    centres = QueryCentres(draw(4, 8), draw(4, 4, seed=1).abs())
    keys, rates = draw(2, 10, 8, seed=2), torch.logspace(0, -3, 4)
    found = triattention_scores(centres, keys, rates, 10)
    alone = [
        triattention_scores(
            QueryCentres(centres.centre[[head]], centres.spread[[head]]), keys[[head // 2]], rates, 10
        )[0]
        for head in range(4)
    ]
    torch.testing.assert_close(found, torch.stack([alone[0].maximum(alone[1]), alone[2].maximum(alone[3])]))


def test_centres_are_those_of_the_queries_that_the_model_makes():
    model, ids = tiny_llama(), random_ids(40, seed=5)
    centres = calibrate(model, ids)
    assert query_centres(model) is centres
    assert len(centres) == 3
    hidden = model.model.embed_tokens(ids)
    hidden = model.model.layers[0].input_layernorm(hidden)
    queries = model.model.layers[0].self_attn.q_proj(hidden)[0].view(40, 4, 8)
    torch.testing.assert_close(centres[0].centre, queries.mean(0).detach())
    pairs = torch.stack([queries[..., :4], queries[..., 4:]], -1)
    spread = pairs.norm(dim=-1).mean(0) - pairs.mean(0).norm(dim=-1)
    torch.testing.assert_close(centres[0].spread, spread.detach(), atol=1e-5, rtol=1e-4)
    assert (centres[0].spread >= -1e-6).all()


def test_a_model_without_a_tokenizer_must_be_calibrated():
    model = transformers.LlamaForCausalLM(tiny_llama().config)
    with pytest.raises(InputError, match=r"calibrate\(model, input_ids\)"):
        query_centres(model)


def test_smollm2_is_calibrated_by_itself():
    model, _ = smollm2()
    centres = query_centres(model)
    assert len(centres) == 30
    concentration = [float(one.centre.norm() / (one.centre.norm() + one.spread.norm())) for one in centres]
    assert max(concentration) > 0.5  # the paper's observation: queries lie around centres


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gemma3()])
def test_queries_are_rotated_as_attention_has_them(model):
    ids, seen = random_ids(24), {}

    def note(module, _, kwargs, __):
        own = latest_queries(module)
        bind_rotary(module, model.model.rotary_emb)
        seen[module.layer_idx] = (own[:, -9:], rotated_queries(module, kwargs["hidden_states"], 9, kwargs))

    hooks = [layer.self_attn.register_forward_hook(note, with_kwargs=True) for layer in model.model.layers]
    with observed_queries(model):
        prefill(model, ids)
    for hook in hooks:
        hook.remove()
    for own, made in seen.values():
        torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-4)


def test_trailing_attention_by_brute_force():
    queries, keys = draw(4, 20, 8), draw(2, 20, 8, seed=1)
    found = trailing_attention(queries, keys, 8**-0.5, 6, 1)
    torch.testing.assert_close(trailing_attention(queries[:, -6:], keys, 8**-0.5, 6, 1), found)
    weights = attention_weights(queries, keys, 8**-0.5).mean(1)  # [kv_heads, queries, tokens]
    for token in range(20):
        looking = [query for query in range(14, 20) if query >= token]
        mean = weights[:, looking, token].mean(1)
        torch.testing.assert_close(found[:, token], mean)
    everything = trailing_attention(queries, keys, 8**-0.5, 99, 1)
    torch.testing.assert_close(everything[:, 0], weights[:, :, 0].mean(1))


def test_value_key_ratio():
    keys, values = torch.tensor([[[3.0, 4.0], [0, 2]]]), torch.tensor([[[6.0, 8.0], [0, 1]]])
    assert value_key_ratio(keys, values).tolist() == [[2.0, 0.5]]


@pytest.mark.parametrize(
    "name", ["rkv", "triattention:recent=8", "value-key-ratio", "last-queries:window_size=32"]
)
def test_they_are_presses_like_others(name):
    model, ids = tiny_llama(), random_ids(80)
    calibrate(model, random_ids(60, seed=5))
    masks = capture(model, {"a": make(name, 0.5, 80), "b": make(f"adakv:{name}", 0.5, 80)}, ids).masks
    assert np.all(masks["a"].array.sum(-1) == 40)
    assert masks["b"].array.sum() == masks["a"].array.sum()


@pytest.mark.parametrize("name", ["rkv", "triattention:recent=8", "value-key-ratio"])
def test_they_evict_while_decoding(name):
    model, ids = tiny_llama(), random_ids(60)
    calibrate(model, random_ids(60, seed=5))
    press = make_decoding(f"decoding:compression_interval=16:{name}", 48)
    series = record_decoding(model, press, ids, 40, name=name)
    living = [int(series.mask(step).array.sum()) for step in (0, 15, 16, 31, 32)]
    assert [count / (3 * 2) for count in living] == [60, 75, 48, 63, 48]


def test_while_decoding_a_token_is_scored_at_its_position():
    """After an eviction the cache is shorter than the text; distances count in the text."""
    model, ids, seen = tiny_llama(), random_ids(60), []
    calibrate(model, random_ids(60, seed=5))
    press = make_decoding("decoding:compression_interval=8:triattention:recent=4", 32)
    inner = press.base_press

    class Noting(TriAttentionPress):
        def _scores(self, layer):
            from kvreclaim.capture.inside.rotary import next_position

            seen.append(next_position(layer.kwargs))
            return super()._scores(layer)

    press.base_press = Noting()
    assert isinstance(inner, TriAttentionPress)
    record_decoding(model, press, ids, 16, name="tri")
    assert sorted(set(seen)) == [68, 76]


def test_query_centres_go_to_a_file_and_back(tmp_path):
    model = tiny_llama()
    known = calibrate(model, random_ids(60, seed=5))
    centres_file(model).save(tmp_path / "centres.npz")
    read = CentresFile.load(tmp_path / "centres.npz")
    for layer, centres in enumerate(known):
        assert np.array_equal(read.centre[layer], centres.centre)
        assert np.array_equal(read.spread[layer], centres.spread)
    assert np.array_equal(read.frequencies, model.model.rotary_emb.inv_freq)
    np.savez(tmp_path / "other.npz", centre=read.centre)
    with pytest.raises(InputError, match="holds no query centres: make it with kvreclaim calibrate queries"):
        CentresFile.load(tmp_path / "other.npz")
    with pytest.raises(InputError, match="half as many"):
        CentresFile(read.centre, read.spread, read.frequencies[1:])


def test_a_command_makes_the_file_of_a_model(tiny, tmp_path):
    out = tmp_path / "centres.safetensors"
    answer = call("calibrate", "queries", "--model", str(tiny[0]), "--out", str(out))
    assert answer.status == 0, answer.err
    assert CentresFile.load(out).centre.shape[0] == 3


def test_paged_eviction_drops_the_lowest_block_whenever_one_is_full():
    """By hand on the rows: the prompt cut head by head, then blocks of the packed rows, one every 8 steps."""
    model, ids, full = tiny_llama(), random_ids(60), transformers.DynamicCache()
    series = record_decoding(
        model, make_decoding("paged-eviction:block_size=8", 32), ids, 17, continuation=random_ids(17, seed=3)
    )
    with torch.no_grad():
        model(ids, past_key_values=full)
    ratios = torch.stack([value_key_ratio(layer.keys[0], layer.values[0]) for layer in full.layers])
    best = ratios.topk(32, dim=-1).indices.sort(dim=-1).values
    assert np.array_equal(np.nonzero(series.mask(0).array)[2].reshape(3, 2, 32), best.numpy())
    means = ratios.gather(2, best).mean((0, 1)).view(4, 8).mean(-1)
    gone = int(means.argmin())
    left = series.mask(8).array
    assert not left[..., :60][np.indices((3, 2, 32))[0], np.indices((3, 2, 32))[1], best.numpy()][
        ..., 8 * gone : 8 * gone + 8
    ].any()
    assert left.sum() == 3 * 2 * 32
    assert left[..., 60:].all()
    assert [int(series.mask(step).array.sum()) // 6 for step in (7, 15, 16, 17)] == [39, 39, 32, 33]


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: RKVPress(0.5, window_size=0), "window_size"),
        (lambda: RKVPress(0.5, kernel_size=4), "odd"),
        (lambda: RKVPress(0.5, attention_share=math.nan), "nan"),
        (lambda: TriAttentionPress(0.5, recent=-1), "recent"),
        (lambda: make("rkv:windows=3", 0.5, 80), "window_size"),
        (lambda: make_decoding("paged-eviction:block_size=7", 32), "multiple"),
    ],
)
def test_bad_parameters_get_one_clear_line(make_it, says):
    with pytest.raises(InputError, match=says):
        make_it()


def test_a_window_over_the_whole_prompt_is_refused():
    with pytest.raises(InputError, match="smaller window_size"):
        capture(tiny_llama(), {"it": make("rkv:window_size=30", 0.5, 30)}, random_ids(30))
