"""Each rule of the pool on a case small enough to read."""

import numpy as np
import pytest

from kvreclaim.errors import InputError
from kvreclaim.pool import BlockPool, PoolIntegrityError


def test_blocks_leave_from_the_front_and_return_in_reverse_to_the_back():
    pool = BlockPool(6, 4)
    assert pool.allocate("a", 9).blocks == (0, 1, 2)
    assert pool.free("a") == (2, 1, 0)
    assert pool.allocate("b", 24).blocks == (3, 4, 5, 2, 1, 0)


def test_allocation_is_all_or_nothing():
    pool = BlockPool(4, 16)
    assert pool.can_allocate(64)
    assert not pool.can_allocate(65)
    assert pool.allocate("a", 65) is None
    assert (pool.free_blocks, pool.requests) == (4, ())
    assert pool.allocate("a", 64) is not None
    assert pool.append("a") is None
    assert pool.length("a") == 64


def test_a_token_takes_a_block_only_where_the_last_is_full():
    pool = BlockPool(3, 4)
    pool.allocate("a", 3)
    assert pool.append("a").blocks == ()
    assert pool.append("a").blocks == (1,)
    assert pool.append("a", 100) is None
    assert (pool.block_table("a"), pool.length("a")) == ((0, 1), 5)


def test_the_shared_partial_block_is_copied_before_it_is_written():
    pool = BlockPool(6, 4)
    pool.allocate("a", 6)
    pool.fork("a", "b")
    assert pool.used_blocks == 2
    growth = pool.append("b", 3)
    assert growth.copied == (1, 2)
    assert growth.blocks == (2, 3)
    assert pool.block_table("b") == (0, 2, 3)
    assert pool.append("a").copied is None
    assert (pool.owners(0), pool.owners(1), pool.owners(2)) == (2, 1, 1)


def test_a_shared_full_block_is_never_copied():
    pool = BlockPool(3, 4)
    pool.allocate("a", 8)
    pool.fork("a", "b")
    assert pool.append("b").copied is None
    assert pool.block_table("b") == (0, 1, 2)


def test_a_copy_that_finds_no_block_changes_nothing():
    pool = BlockPool(2, 4)
    pool.allocate("a", 6)
    pool.fork("a", "b")
    assert pool.append("b") is None
    assert pool.block_table("b") == (0, 1)
    pool.check_integrity()


def test_only_whole_dead_blocks_are_freed():
    pool = BlockPool(4, 4)
    pool.allocate("a", 14)
    keep = np.ones(14, dtype=bool)
    keep[2:9] = False  # blocks: 2 of 4 live, none, 3 of 4, 2 of 2
    eviction = pool.evict("a", keep)
    assert eviction.freed == (1,)
    assert eviction.dead_slots == 3
    assert (pool.block_table("a"), pool.length("a")) == ((0, 2, 3), 10)


def test_an_evicted_partial_last_block_shortens_the_request():
    pool = BlockPool(4, 4)
    pool.allocate("a", 14)
    assert pool.evict("a", [True] * 12 + [False] * 2).freed == (3,)
    assert pool.length("a") == 12
    assert pool.append("a").blocks == (3,)


def test_a_dead_tail_inside_a_live_block_keeps_its_slots():
    pool = BlockPool(4, 4)
    pool.allocate("a", 7)
    assert pool.evict("a", [True] * 5 + [False] * 2).dead_slots == 2
    assert pool.length("a") == 7


def test_evicted_blocks_join_the_free_list_in_reverse():
    pool = BlockPool(4, 2)
    pool.allocate("a", 8)
    assert pool.evict("a", [False] * 6 + [True] * 2).freed == (0, 1, 2)
    assert pool.allocate("b", 6).blocks == (2, 1, 0)


def test_a_shared_dead_block_returns_with_its_last_owner():
    pool = BlockPool(4, 4)
    pool.allocate("a", 8)
    pool.fork("a", "b")
    first = pool.evict("a", [False] * 4 + [True] * 4)
    assert (first.freed, first.still_shared, pool.free_blocks) == ((), (0,), 2)
    second = pool.evict("b", [False] * 4 + [True] * 4)
    assert (second.freed, second.still_shared, pool.free_blocks) == ((0,), (), 3)


def test_a_request_survives_the_loss_of_every_block():
    pool = BlockPool(2, 4)
    pool.allocate("a", 8)
    assert pool.evict("a", [False] * 8).freed == (0, 1)
    assert (pool.requests, pool.block_table("a"), pool.length("a")) == (("a",), (), 0)
    assert pool.evict("a", []).freed == ()
    assert pool.append("a", 5).blocks == (1, 0)
    pool.free("a")
    assert pool.requests == ()


def test_whole_block_eviction_admits_what_scatter_does_not():
    scattered, in_blocks = BlockPool(512, 16), BlockPool(512, 16)
    for pool in (scattered, in_blocks):
        pool.allocate("long", 8192)
    scattered.evict("long", np.arange(8192) % 2 == 0)
    in_blocks.evict("long", np.arange(8192) // 16 % 2 == 0)
    newcomers = dict.fromkeys(range(100), 128)
    assert scattered.admit(newcomers) == 0
    assert in_blocks.admit(newcomers) == 32


def test_nothing_behind_the_first_misfit_is_admitted():
    pool = BlockPool(4, 16)
    assert pool.admit({"a": 32, "b": 48, "c": 16}) == 1
    assert pool.requests == ("a",)
    assert pool.admit({}) == 0


def test_a_pool_needs_blocks_of_some_size():
    with pytest.raises(InputError, match="blocks is 0: pass a whole number, at least 1"):
        BlockPool(0, 16)
    with pytest.raises(InputError, match="block_size is True: pass a whole number, at least 1"):
        BlockPool(4, True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pool: pool.allocate("a", 1), "request 'a' is in the pool already"),
        (lambda pool: pool.allocate("b", 0), "tokens is 0: pass a whole number, at least 1"),
        (lambda pool: pool.can_allocate(1.5), "tokens is 1.5"),
        (lambda pool: pool.append("b"), "request 'b' is not in the pool"),
        (lambda pool: pool.append("a", -1), "tokens is -1"),
        (lambda pool: pool.admit({"b": 16, "a": 16}), "request 'a' is in the pool already"),
        (lambda pool: pool.admit({"b": 16, "c": 0}), "tokens is 0"),
        (lambda pool: pool.fork("b", "c"), "request 'b' is not in the pool"),
        (lambda pool: pool.fork("a", "a"), "request 'a' is in the pool already"),
        (lambda pool: pool.evict("b", []), "request 'b' is not in the pool"),
        (lambda pool: pool.evict("a", [True] * 5), "keep for request 'a': pass 6 booleans"),
        (lambda pool: pool.evict("a", [1] * 6), "keep for request 'a': pass 6 booleans"),
        (lambda pool: pool.evict("a", [[True] * 6]), "keep for request 'a': pass 6 booleans"),
        (lambda pool: pool.evict("a", [[True], [True, False]]), "keep for request 'a': pass 6 booleans"),
        (lambda pool: pool.allocate([], 1), "[] can't name a request"),
        (lambda pool: pool.free({}), "{} can't name a request"),
        (lambda pool: pool.admit(["b"]), "requests must map each new request to its tokens"),
        (lambda pool: pool.free("b"), "request 'b' is not in the pool"),
        (lambda pool: pool.block_table("b"), "request 'b' is not in the pool"),
        (lambda pool: pool.length("b"), "request 'b' is not in the pool"),
        (lambda pool: pool.owners(4), "block is 4, the last block is 3"),
        (lambda pool: pool.owners(-1), "block is -1"),
    ],
)
def test_refused_calls_change_nothing(call, message):
    pool = BlockPool(4, 4)
    pool.allocate("a", 6)
    with pytest.raises(InputError) as error:
        call(pool)
    assert str(error.value).startswith(message)
    assert (pool.requests, pool.block_table("a"), pool.length("a"), pool.free_blocks) == (
        ("a",),
        (0, 1),
        6,
        2,
    )
    pool.check_integrity()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda pool: pool._free.append(3), "block 3 is 2 times in the free list and in 0 tables"),
        (lambda pool: pool._free.append(0), "block 0 is 1 times in the free list and in 1 tables"),
        (lambda pool: pool._free.remove(3), "block 3 is 0 times in the free list and in 0 tables"),
        (lambda pool: pool._free.append(9), "3 free and 2 held blocks, 4 in all"),
        (lambda pool: pool._owners.__setitem__(1, 2), "block 1 counts 2 owners, 1 tables hold it"),
        (lambda pool: pool._tables["a"].append(3), "request 'a' of 6 slots holds 3 blocks, needs 2"),
        (lambda pool: pool._tables["a"].__setitem__(1, 0), r"request 'a' holds a block twice: \[0, 0\]"),
        (lambda pool: pool._lengths.__setitem__("b", 0), "tables and lengths name different requests"),
    ],
)
def test_integrity_names_the_contradiction(damage, message):
    pool = BlockPool(4, 4)
    pool.allocate("a", 6)
    pool.check_integrity()
    damage(pool)
    with pytest.raises(PoolIntegrityError, match=message):
        pool.check_integrity()


def test_a_pool_too_large_to_hold():
    with pytest.raises(InputError, match="blocks is 2147483648, the most is 16777216"):
        BlockPool(2**31, 1)


def test_numbers_beyond_every_float_and_every_memory():
    pool = BlockPool(4, 2**31 - 1)
    assert not pool.can_allocate(10**400)
    pool.allocate("a", 3)
    assert pool.evict("a", [True, False, False]).dead_slots == 2
    assert pool.block_table("a") == (0,)
