"""The HTTP server, whose engine runs in a process of its own, with nothing set but the option."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from observed import MODEL

from kvreclaim.runtimes.vllm.environment import ENVIRONMENT
from kvreclaim.runtimes.vllm.options import Options

SETTINGS = {
    "--model": str(MODEL),
    "--dtype": "float32",
    "--block-size": "32",
    "--max-model-len": "1024",
    "--num-gpu-blocks-override": "41",
    "--max-num-seqs": "16",
}


def ask(address, path, body=None):
    request = urllib.request.Request(address + path, json.dumps(body).encode() if body else None)  # noqa: S310
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        return answer.read().decode()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def server(records):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = Options("snapkv", 128, "pack", records=str(records))
    environment = {**ENVIRONMENT, **os.environ, "KVRECLAIM_VLLM": options.as_json()}
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_HOST_IP": "127.0.0.1"}
    arguments = [part for pair in SETTINGS.items() for part in pair]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *arguments]
    log = (records / "server.log").open("w")
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], env=environment, stdout=log, stderr=log
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                ask(address, "/health")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, (records / "server.log").read_text()[-3000:]
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def test_the_server_evicts_and_shows_it(server, records, prompts, engine):
    body = {"model": str(MODEL), "prompt": prompts[0], "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    said = json.loads(ask(server, "/v1/completions", body))["choices"][0]["text"]
    run = engine.run(prompts[:1], Options("snapkv", 128, "pack"), 24)
    assert said == run.outputs[0].text
    shown = dict(
        line.rsplit(" ", 1) for line in ask(server, "/metrics").splitlines() if line.startswith("kvreclaim_")
    )
    (eviction,) = run.evictions
    assert float(shown["kvreclaim_blocks_freed_total"]) == eviction.blocks_freed == 13
    assert float(shown["kvreclaim_pairs_moved_total"]) == eviction.moved_pairs
    assert float(shown["kvreclaim_evict_seconds_count"]) == 1
    assert "kvreclaim_stranded_ratio" in ask(server, "/metrics")
    assert "vllm:kv_cache_usage_perc" in ask(server, "/metrics")
    assert (records / "evictions-000.csv").exists()
