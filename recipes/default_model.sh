#!/bin/sh
# Trains the default model and puts it into the package (TOOLSCOUT_DATA: datasets). It learns from permissively licensed
# sets, and from requests that a language model writes for ToolBench's documents; no request of ToolBench is read. On an
# H200, beside other work: 24 s for the generator, 594 s for what it writes, 250 s for the encoder. After it:
# python -m recipes.need_head "$POOL", then recipes/hybrid_weights.py and recipes/catalogue_fit.py (first with --ship), whose numbers go into
# retrievers/hybrid/retriever.py and search/catalogue_fit.py, then recipes/baselines.sh, recipes/bundled.sh and studies/need.sh.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
POOL="${POOL:-models/pool}"
test -d "$POOL" || python recipes/default_model_data.py "$POOL"
toolscout encoder export
python -m studies.synthetic default-texts --pool "$POOL"
toolscout train ultratool sealtools:dev: "$POOL/calls" "$POOL/mcp" "$POOL/openapi" models/synthetic/written-toolbench-s0 \
  --retriever dense --out models/default \
  --option average=0.5 --option epochs=3 --option candidates=512 --option patience=0
python recipes/default_model.py models/default
