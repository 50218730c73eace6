#!/bin/sh
# The recipe of toolscout-minilm-2 on every set there is, whatever its licence: a row for comparison, not a model we ship.
# ENCODER is its exported folder, trained as in `python -m studies.synthetic default`, but with toollens simpletoolquestions toolbench-g3 in
# place of what was written for ToolBench.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
ENCODER="${ENCODER:-models/allsets}"
rm -rf results/allsets.jsonl results/allsets.scores
toolscout evaluate toollens:test toolbench-g3:test simpletoolquestions:test simpletoolquestions:test_unseen \
  ultratool:test sealtools:test_in sealtools:test_out bundled:test --retriever dense --option "encoder=$ENCODER" \
  --json results/allsets.jsonl
toolscout results
