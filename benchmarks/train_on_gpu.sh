#!/bin/sh
# Ten minutes on one large GPU: data of the demo model through the PyTorch executor in large batches, then a head.
# Usage: benchmarks/train_on_gpu.sh OUTPUT [MODEL]. Both steps can be ended and gone on with: the same command again.
set -eu
output=$1
model=${2:-smollm2-135m-instruct}
here=$(dirname "$0")/..
pilotfish="python -m pilotfish.cli"
cd "$here"
mkdir -p "$output"

# About four minutes. Hidden states are computed again in training: on a GPU that is quicker than a disk.
timeout 240 $pilotfish train data "$output/data" --model "$model" --executor torch --device cuda --batch 512 \
  --answer-tokens 3000000 --temperatures 0:0.6,0.7:0.2,1:0.2 --max-answer-tokens 192 --held-out 0.02 || true

# About five minutes.
$pilotfish train head "$output/data" "$output/head" --model "$model" --executor torch --device auto --precision bf16 \
  --layers 2 --start-layers 1,29 --depths 3 --batch-tokens 8192 --packs-per-step 1 --learning-rate 2e-3 \
  --epochs 10 --minutes 5 --evaluate-every 100 --evaluate-tokens 20000 --checkpoint-every 500 --check-prompts 8
$pilotfish train pool "$output/data" "$output/table" --model "$model"
