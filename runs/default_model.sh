#!/bin/sh
# Trains the default model on permissively licensed sets alone and puts it into the package (TOOLSCOUT_DATA: datasets).
# On an H200, beside other work, it took 139 s. After it: python -m runs.need_head "$POOL", then runs/weights.py and
# runs/fit.py (first with --ship), whose numbers go into hybrid.py and fit.py, then runs/baselines.sh and
# runs/bundled.sh.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
POOL="${POOL:-models/pool}"
test -d "$POOL" || python runs/pool.py "$POOL"
toolscout train ultratool sealtools:dev: "$POOL/calls" "$POOL/mcp" "$POOL/openapi" --retriever dense --out models/default \
  --option average=0.5 --option epochs=3 --option candidates=512 --option patience=0
python runs/default_model.py models/default "$POOL"
