#!/bin/sh
# Quality against milliseconds: hybrid alone, and reranked by the cross-encoder in folder $1, first = 5, 10, 20.
# Wants a quiet machine and TOOLSCOUT_DATA. Requests that the encoder or its recipe has seen are left out.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
: "${1:?name the folder of a cross-encoder}"
rm -rf results/rerank.jsonl results/rerank.scores
SETS="bundled:test toolbench:test simpletoolquestions:test toollens:test ultratool:test"
# shellcheck disable=SC2086
toolscout evaluate $SETS --retriever hybrid --drop-seen --json results/rerank.jsonl
for first in 5 10 20; do
  # shellcheck disable=SC2086
  toolscout evaluate $SETS --retriever rerank --part hybrid --option "reranker=$1" --option first=$first --drop-seen \
    --json results/rerank.jsonl
done
toolscout results
