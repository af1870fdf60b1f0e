import math
from decimal import Decimal

import numpy as np
import pytest

from kvreclaim.errors import InputError
from kvreclaim.validate import (
    check_at_most,
    check_block_size,
    check_ratio,
    fraction_array,
    non_negative_int,
    positive,
    positive_int,
)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_integers_of_every_kind_become_python_ints(value):
    assert type(positive_int(value, "blocks")) is int
    assert positive_int(value, "blocks") == non_negative_int(value, "blocks") == check_block_size(value) == 3


@pytest.mark.parametrize(
    "value", [True, np.True_, 3.0, "3", None, 0, -1, np.int64(0), np.arange(40), math.nan]
)
def test_what_is_no_positive_integer_is_named_in_one_line(value):
    with pytest.raises(InputError, match=r"^blocks is .*: pass a whole number, at least 1$") as error:
        positive_int(value, "blocks")
    assert "\n" not in str(error.value)


def test_zero_is_not_negative():
    assert non_negative_int(0, "moves") == 0
    with pytest.raises(InputError, match="moves is -1: pass a whole number, at least 0"):
        non_negative_int(-1, "moves")


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.float64(1.0), np.int64(1)])
def test_ratios_of_every_kind_become_python_floats(value):
    assert type(check_ratio(value)) is float
    assert check_ratio(value) == value


@pytest.mark.parametrize(
    "value", [-1e-9, 1.0001, math.nan, math.inf, "0.5", None, True, Decimal("0.5"), [0.5], 10**400]
)
def test_what_is_no_ratio_is_refused(value):
    with pytest.raises(InputError, match=r"^ratio is .*: pass a number from 0 to 1$"):
        check_ratio(value)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", True])
def test_what_is_not_positive_is_refused(value):
    with pytest.raises(InputError, match=r"sigma is .*: pass a finite number greater than 0"):
        positive(value, "sigma")


def test_arrays_of_ratios_keep_their_shape():
    assert fraction_array([[0, 1], [1, 0]], "ratio").dtype == np.float64
    assert fraction_array([], "ratio").shape == (0,)


@pytest.mark.parametrize("values", [[0.5, 1.5], [0.5, math.nan], [True], ["a"], [[0.1], [0.1, 0.2]], [None]])
def test_arrays_with_anything_else_are_refused(values):
    with pytest.raises(InputError, match="ratio must be numbers from 0 to 1"):
        fraction_array(values, "ratio")


def test_limits_name_both_sides():
    assert check_at_most(4, 4, "evicted", "tokens") == 4
    with pytest.raises(InputError, match="evicted is 5, tokens is 4: pass evicted no greater than that"):
        check_at_most(5, 4, "evicted", "tokens")
