"""Transformers and kvpress without their progress bars and advice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from typing import Any

from transformers.utils import logging as transformers_logging

logging: Any = transformers_logging  # whose functions are untyped


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal; its errors still come."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def quiet_kvpress() -> Iterator[None]:
    """Keep kvpress's advice off the terminal, such as that a press is slow."""
    logger = getLogger("kvpress")
    level = logger.level
    logger.setLevel(ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
