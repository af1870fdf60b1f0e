"""Prose that comes with Python."""

import small_models  # noqa: F401  # skips without the extra

from kvreclaim.capture.measure.prompts import DOCSTRINGS, read_texts
from kvreclaim.capture.presses.calibration import MODULES
from kvreclaim.texts import docstrings, topics


def test_docstrings_are_prose_and_not_that_of_the_calibration():
    text = read_texts([DOCSTRINGS])[DOCSTRINGS]
    paragraphs = text.split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    assert min(map(len, paragraphs)) >= 80
    assert not set(paragraphs) & set(docstrings(MODULES).split("\n\n"))
    assert not set(paragraphs) & set(topics().split("\n\n"))
