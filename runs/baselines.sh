#!/bin/sh
# Untrained retrievers on the test splits of the published datasets (TOOLSCOUT_DATA names their folder).
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
rm -f results/baselines.jsonl
for pair in toollens:test toolbench:test toolbench-g3:test ultratool:test sealtools:test_in sealtools:test_out \
  simpletoolquestions:test; do
  for retriever in bm25 dense hybrid; do
    toolscout evaluate "${pair%:*}" --split "${pair#*:}" --retriever $retriever --json results/baselines.jsonl
  done
done
toolscout results
