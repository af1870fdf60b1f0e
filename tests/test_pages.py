"""Two levels of memory: published tables, and policies against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim.errors import InputError
from kvreclaim.layout import model
from kvreclaim.layout.pages import KIB, MIB, PageLayout, free_pages, largest_range, tokens_per_page
from kvreclaim.paged_pool import ALLOCATIONS, EVICTIONS, PagedPool

# Prabhu et al., vAttention: tokens of a page of 64 KiB, 128 KiB, 256 KiB, 2 MiB.
VATTENTION = {
    ("llama-3-8b", 1): (32, 64, 128, 1024),
    ("llama-3-8b", 2): (64, 128, 256, 2048),
    ("yi-6b", 1): (64, 128, 256, 2048),
    ("yi-6b", 2): (128, 256, 512, 4096),
}


@pytest.mark.parametrize(("case", "tokens"), VATTENTION.items())
def test_vattentions_table(case, tokens):
    name, gpus = case
    sizes = (64 * KIB, 128 * KIB, 256 * KIB, 2 * MIB)
    assert tuple(tokens_per_page(model(name), size, gpus) for size in sizes) == tokens


def test_kvcacheds_geometry():
    layout = PageLayout(model("qwen3-4b"), block_size=16)
    assert layout.blocks == 64
    assert layout.index_bytes == 144 * MIB
    assert -(-1000 // layout.blocks) * layout.index_bytes == 2.25 * 1024 * MIB


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 0}, "block_size"),
        ({"page_bytes": 0}, "page"),
        ({"block_size": 48}, "whole blocks"),
        ({"tensor_parallel": 3}, "divisor"),
    ],
)
def test_pages_that_cannot_be(changes, words):
    with pytest.raises(InputError, match=words):
        PageLayout(**{"geometry": model("qwen3-4b"), "block_size": 16, **changes})


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 9))
def test_free_pages_and_ranges_one_by_one(free, per_page):
    mask = np.array(free, bool)
    parts = [free[start : start + per_page] for start in range(0, len(free), per_page)]
    assert free_pages(mask, per_page) == sum(all(part) for part in parts)
    whole = [all(part) for part in parts if len(part) == per_page]
    runs = "".join("x" if part else " " for part in whole).split()
    assert largest_range(mask, per_page, stitched=False) == max(map(len, runs), default=0) * per_page
    assert largest_range(mask, per_page, stitched=True) == sum(whole) * per_page


# Policies


class Plain:
    """The same pool as one list of states, block by block; slow and obvious."""

    def __init__(self, per_page, most_retained, allocation, eviction):
        self.per_page, self.most, self.allocation, self.eviction = (
            per_page,
            most_retained,
            allocation,
            eviction,
        )
        self.state, self.clock, self.freed, self.kept, self.touched = {}, 0, {}, {}, {}

    def tick(self):
        self.clock += 1
        return self.clock

    def of(self, page):
        return [block for block in self.state if block // self.per_page == page]

    def mapped(self):
        return {block // self.per_page for block in self.state}

    def free(self, page):
        return [block for block in self.of(page) if self.state[block] == "free"]

    def pick(self, wanted):
        partial = [page for page in self.mapped() if self.free(page)]
        if not partial:
            return None
        if self.allocation == "last-in-first-out":
            return max(partial, key=lambda page: self.touched[page])
        fitting = [page for page in partial if len(self.free(page)) >= wanted]
        if fitting:
            return min(fitting, key=lambda page: (len(self.free(page)), page))
        return min(partial, key=lambda page: (-len(self.free(page)), page))

    def victims(self, wanted):
        chosen = []
        if self.eviction == "page-aware":
            whole = []
            for page in self.mapped():
                held = [block for block in self.of(page) if self.state[block] != "free"]
                if held and all(self.state[block] == "retained" for block in held):
                    whole.append(sorted(held, key=self.kept.get))
            for held in sorted(whole, key=lambda held: (len(held), self.kept[held[-1]])):
                if len(chosen) + len(held) > wanted:
                    break
                chosen += held
        rest = [block for block in self.kept if block not in chosen]
        return chosen + sorted(rest, key=self.kept.get)[: wanted - len(chosen)]


@st.composite
def histories(draw):
    """Requests that take blocks, give some back and retain some, or find retained ones again."""
    steps = st.tuples(st.sampled_from(["take", "release", "reuse"]), st.integers(1, 9), st.randoms())
    return draw(st.lists(steps, max_size=30))


@given(
    histories(),
    st.integers(1, 5),
    st.integers(0, 8),
    st.sampled_from(ALLOCATIONS),
    st.sampled_from(EVICTIONS),
)
def test_policies_against_brute_force(history, per_page, most, allocation, eviction):
    pool = PagedPool(per_page, most, allocation=allocation, eviction=eviction, null_blocks=0)
    plain = Plain(per_page, most, allocation, eviction)
    used = []

    def mirror_free(blocks):
        for block in blocks:
            plain.state[block] = "free"
            page = block // per_page
            plain.touched[page] = plain.tick()
            if all(plain.state[other] == "free" for other in plain.of(page)):
                for other in plain.of(page):
                    del plain.state[other]

    for kind, count, random in history:
        if kind == "take":
            wanted = count
            while wanted:
                page = plain.pick(wanted)
                got = pool.take(min(wanted, len(plain.free(page)) if page is not None else per_page))
                if page is None:  # a page that is not mapped: which one does not matter
                    page = got[0] // per_page
                    assert page not in plain.mapped()
                    plain.touched[page] = plain.tick()
                    plain.state.update(dict.fromkeys(range(page * per_page, (page + 1) * per_page), "free"))
                assert {block // per_page for block in got} == {page}
                assert all(plain.state[block] == "free" for block in got)
                plain.state.update(dict.fromkeys(got, "used"))
                used += got
                wanted -= len(got)
        elif kind == "release":
            leaving = random.sample(used, min(count, len(used)))
            keep = leaving[: random.randint(0, len(leaving))]
            free = leaving[len(keep) :]
            used = [block for block in used if block not in leaving]
            before = set(pool.retained) | set(keep)
            mirror_free(free)
            for block in keep:
                plain.state[block] = "retained"
                plain.kept[block] = plain.tick()
            pool.release(free, keep)
            gone = plain.victims(max(0, len(plain.kept) - most))
            assert before - set(pool.retained) == set(gone)
            for block in gone:
                del plain.kept[block]
            mirror_free(gone)
        else:
            found = random.sample(pool.retained, min(count, len(pool.retained)))
            pool.reuse(found)
            for block in found:
                plain.state[block] = "used"
                del plain.kept[block]
            used += found
        pool.check_integrity()
        assert pool.pages == len(plain.mapped())
        assert list(pool.retained) == sorted(plain.kept, key=plain.kept.get)


def test_the_null_block_pins_page_0():
    pool = PagedPool(4, 0)
    blocks = pool.take(3)
    pool.release(blocks)
    assert pool.pages == 1


@pytest.mark.parametrize("changes", [{"allocation": "best"}, {"eviction": "mru"}, {"per_page": 0}])
def test_pools_that_cannot_be(changes):
    with pytest.raises(InputError):
        PagedPool(**{"per_page": 4, "most_retained": 4, **changes})
