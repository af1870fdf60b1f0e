"""The works that the page credits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A work: authors, title, where and when it appeared, and its address."""

    authors: str
    title: str
    where: str
    address: str = ""


REFERENCES: Mapping[str, Reference] = {
    "study": Reference(
        "", "Logical KV Savings Are Not Physical Memory Savings", "blog post with an interactive page"
    ),
    "paged-attention": Reference(
        "Kwon et al.",
        "Efficient Memory Management for Large Language Model Serving with PagedAttention",
        "SOSP 2023",
        "https://arxiv.org/abs/2309.06180",
    ),
    "streaming-llm": Reference(
        "Xiao et al.",
        "Efficient Streaming Language Models with Attention Sinks",
        "ICLR 2024",
        "https://arxiv.org/abs/2309.17453",
    ),
    "h2o": Reference(
        "Zhang et al.",
        "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
        "NeurIPS 2023",
        "https://arxiv.org/abs/2306.14048",
    ),
    "snapkv": Reference(
        "Li et al.",
        "SnapKV: LLM Knows What You are Looking for Before Generation",
        "2024",
        "https://arxiv.org/abs/2404.14469",
    ),
    "kv-compress": Reference(
        "Rehg",
        "KV-Compress: Paged KV-Cache Compression with Variable Compression Rates per Attention Head",
        "2024",
        "https://arxiv.org/abs/2410.00161",
    ),
    "vattention": Reference(
        "Prabhu et al.",
        "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention",
        "ASPLOS 2025",
        "https://arxiv.org/abs/2405.04437",
    ),
    "rice": Reference(
        "Rice", "Mathematical Analysis of Random Noise", "Bell System Technical Journal, 1944 and 1945"
    ),
    "kvpress": Reference("NVIDIA", "kvpress", "software", "https://github.com/NVIDIA/kvpress"),
}
