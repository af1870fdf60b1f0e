"""A plugin for vLLM that evicts KV pairs in a running engine and keeps an observed ledger.

    KVRECLAIM_VLLM='{"policy": "snapkv", "budget": 128}'   the option; without it nothing happens
    plugin.register        vLLM calls it in each of its processes (entry point ``vllm.general_plugins``)
    engine.observe_run     runs prompts through an engine in this process and returns what was observed

docs/vllm.md says how to switch it on and what it supports.
"""
