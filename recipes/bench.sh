#!/bin/sh
# Cost against catalogue size. Wants a quiet machine and TOOLSCOUT_DATA; the million is prepared once in $1. $2 is the
# postgresql:// URL of a database to measure besides. A preparation that was interrupted goes on.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
: "${TOOLSCOUT_DATA:?name the folder of datasets}"
work=${1:-scratch/bench}
rm -f results/bench.jsonl
toolscout bench --sizes 464,46587,1000000 --repeats 3 --json results/bench.jsonl --work "$work"
toolscout bench --sizes 46587 --repeats 3 --encoder fast --json results/bench.jsonl --work "$work"
if [ -n "${2:-}" ]; then
    toolscout bench --sizes 464,46587,1000000 --repeats 3 --json results/bench.jsonl --work "$work" --server "$2"
fi
python -m studies.sizing_report
