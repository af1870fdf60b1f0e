"""Rows of a KV cache, told apart by their hashes: which survive a press, or a generation."""
