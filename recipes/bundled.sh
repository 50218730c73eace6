#!/bin/sh
# The bundled benchmark. "Plain" BM25 is one field of whole words; encoder=raw is the published encoder. The default
# model's recipe was chosen on the dev requests among others, so on those only words are measured.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
rm -rf results/bundled.jsonl results/bundled.scores
toolscout encoder export
for split in dev test; do
  toolscout evaluate bundled:$split --retriever bm25 --json results/bundled.jsonl \
    --option stems=0 --option names=0 --option fuzzy=false
  toolscout evaluate bundled:$split --retriever bm25 --json results/bundled.jsonl
  toolscout evaluate bundled:$split --retriever dense --option encoder=raw --json results/bundled.jsonl
done
toolscout evaluate bundled:test --retriever dense --retriever hybrid --json results/bundled.jsonl
toolscout evaluate bundled:test --retriever hybrid --option fusion=rrf --json results/bundled.jsonl
toolscout results
