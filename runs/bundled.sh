#!/bin/sh
# The bundled benchmark: bm25, dense and hybrid on its dev and test requests. "Plain" BM25 is one field of whole words.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
rm -f results/bundled.jsonl
for split in dev test; do
  toolscout evaluate bundled --split $split --retriever bm25 --json results/bundled.jsonl \
    --option stems=0 --option names=0 --option fuzzy=false
  for retriever in bm25 dense hybrid; do
    toolscout evaluate bundled --split $split --retriever $retriever --json results/bundled.jsonl
  done
  toolscout evaluate bundled --split $split --retriever hybrid --json results/bundled.jsonl --option fusion=rrf
done
toolscout results
