#!/bin/sh
# Cost against catalogue size. Wants a quiet machine and TOOLSCOUT_DATA; the million is prepared once in $1.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
rm -f results/bench.jsonl
toolscout bench --sizes 464,46587,1000000 --repeats 3 --json results/bench.jsonl --work "${1:-scratch/bench}"
toolscout bench --sizes 46587 --repeats 3 --encoder fast --json results/bench.jsonl --work "${1:-scratch/bench}"
toolscout results
