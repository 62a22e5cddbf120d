#!/usr/bin/env bash
# Checks and times lgp on one GPU, in 6 minutes at most: the graph engine, then the language model
# engine at the size of Qwen3-32B. torch, numpy and safetensors suffice, and transformers for the latter.
#   experiments/bench/gpu.sh                              # on a GPU machine
#   experiments/bench/gpu.sh --device cpu --scale 0.02    # the same code on a CPU, small
# PYTHON chooses the interpreter. Results go to $OUT/gpu.json and $OUT/gpu_llm.json where OUT
# is set, after every step, so that a run cut short leaves what it had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=. PYTHONUNBUFFERED=1
status=0
for part in gpu gpu_llm; do
  timeout --signal=INT --kill-after=10 170 "${PYTHON:-python3}" "experiments/bench/$part.py" "$@" || status=$?
done
exit "$status"
