#!/usr/bin/env bash
# Checks and times lgp on one GPU, in 6 minutes at most; torch, numpy and safetensors suffice.
#   experiments/bench/gpu.sh                              # on a GPU machine
#   experiments/bench/gpu.sh --device cpu --scale 0.02    # the same code on a CPU, small
# PYTHON chooses the interpreter. Results go to $OUT/gpu.json where OUT is set, after every step,
# so that a run cut short leaves what it had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=. PYTHONUNBUFFERED=1
exec timeout --signal=INT --kill-after=10 350 "${PYTHON:-python3}" experiments/bench/gpu.py "$@"
