"""Measures peers and appends a row for each on each set to results/peers.jsonl.

python -m peers NAME [--sets bundled,ultratool,…] [--json FILE], or --all for every peer.

Sets other than the bundled one are read from the folder that TOOLSCOUT_DATA names.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from peers import workload
from peers.measure import row_of
from peers.table import PEERS, find_peer
from studies.running import RESULTS, say
from toolscout.data.locate import find_dataset
from toolscout.errors import BadDataset, ToolscoutError
from toolscout.evaluation.row import append, append_with_scores, check_writable


def main(arguments: Sequence[str]) -> None:
    """Measure the peers that are named on the sets that are named; ends with code 1 for a name that is unknown."""
    parser = argparse.ArgumentParser(prog="python -m peers", description="Measure peers on the same requests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(PEERS)}")
    parser.add_argument("--all", action="store_true", help="every peer")
    parser.add_argument("--sets", default="", help="names of sets, with commas in between (all that are here)")
    parser.add_argument("--json", type=Path, default=RESULTS / "peers.jsonl", help="the file that gets the rows")
    given = parser.parse_args(arguments)
    if not given.names and not given.all:
        parser.error("name a peer, or give --all")
    command = shlex.join(["python", "-m", "peers", *arguments])
    try:
        peers = list(PEERS.values()) if given.all else [find_peer(name) for name in given.names]
        check_writable(given.json)
        for name in given.sets.split(",") if given.sets else _sets_here():
            loaded = workload.load(name)
            for peer in peers:
                row, scores = row_of(peer, loaded, command)
                if scores:
                    append_with_scores(given.json, row, scores)
                else:
                    append(given.json, row)
                say(f"{name} {peer.name}: {row['study']['problem'] or _told(row)}")
    except ToolscoutError as error:
        sys.exit(f"error: {error}")


def _sets_here() -> list[str]:
    """Return the sets that are measured by default and are here, and say which are not."""
    found = []
    for name in workload.SETS:
        try:
            find_dataset(name)
            found.append(name)
        except BadDataset as error:
            say(f"{name} is left out: {error}")
    return found


def _told(row: dict[str, dict[str, float]]) -> str:
    metrics, timing = row["metrics"], row["timing"]
    return f"R@5 {metrics['recall@5']:.3f}, {timing['cpu_ms']:.2f} ms of CPU, p50 {timing['p50_ms']:.2f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
