"""How quickly a served language model reads and looks ahead, and how often 8 bits agree with 32: a table.

python -m studies.lm_latency [--base PATH] [--threads N] [--requests N] [--rounds N]

Agreement is that of the most likely next token over the whole vocabulary after N of ToolLens's test requests as they
stand, and as the user's turn of a chat. Latency is the least of several rounds: a request of 30 tokens alone, the same
behind a prefix that was read before, 8 paths of one token after it, and one written token. Needs $TOOLSCOUT_DATA and,
for the default model, the packages that toolscout.models.language.base names.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toolscout.data.locate import find_dataset
from toolscout.evaluation.evaluate import load_split
from toolscout.models.language.base import Base, TokenTable, open_base
from toolscout.models.language.onnx_engine import OnnxEngine
from toolscout.models.language.onnx_graph import Bits

TOKENS = 30
PATHS = 8
PREFIX = "You find the tools that a request needs. Answer with the ids of the tools, one after another."


def requests(count: int) -> list[str]:
    """Spread over the whole set, so that many scenes are there."""
    texts = list(load_split(find_dataset("toollens"), "test").requests.values())
    return texts[:: max(1, len(texts) // count)][:count]


def least(rounds: int, work: Callable[[int], Any]) -> float:
    """Milliseconds of the quickest round; each round gets its number, so that no two read the same prompt."""
    times = []
    for at in range(rounds + 1):  # the first warms up
        start = time.perf_counter()
        work(at)
        times.append(time.perf_counter() - start)
    return 1000 * min(times[1:])


def latency(served: OnnxEngine, base: Base, rounds: int) -> dict[str, float]:
    """The four figures in milliseconds."""
    prompts = np.random.default_rng(0).integers(100, base.architecture.vocabulary, (rounds + 1, TOKENS)).tolist()
    before = base.chat([("system", PREFIX)], open_turn=False)
    reading = served.read([prompts[0]])
    owners = [0] * PATHS
    found = {"request": least(rounds, lambda at: served.read([prompts[at]]))}
    found["behind prefix"] = least(rounds, lambda at: served.read([before + prompts[at]]))
    found["8 paths"] = least(rounds, lambda at: reading.after(owners, [[at * PATHS + one] for one in range(PATHS)]))
    short, long = (least(rounds, lambda at, n=n: served.write([prompts[at]], most=n)) for n in (1, 17))  # type: ignore[misc]
    return found | {"a token": (long - short) / 16}


def chosen(served: OnnxEngine, prompts: Sequence[Sequence[int]]) -> list[int]:
    """The most likely next token of each prompt, each read alone."""
    return [int(served.table.logits(served.read([prompt]).ends(), None).argmax()) for prompt in prompts]


def main() -> None:
    """Measure both precisions and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    base = open_base(asked.base)
    texts = requests(asked.requests)
    prompts = {
        "agreement": [base.encode(text)[:128] for text in texts],
        "in chat": [base.chat([("system", PREFIX), ("user", text)]) for text in texts],
    }
    weights, wanted = base.weights(), dict[str, list[int]]()
    precisions: tuple[Bits, ...] = (32, 8)
    for bits in precisions:
        start = time.perf_counter()
        served = OnnxEngine(
            base.architecture, weights, TokenTable.of(weights, half=bits == 8), bits=bits, threads=asked.threads
        )
        row = {"build s": time.perf_counter() - start, **latency(served, base, asked.rounds)}
        for name, some in prompts.items():
            found = chosen(served, some)
            row[name] = float(np.mean(np.array(found) == np.array(wanted.setdefault(name, found))))
        sys.stdout.write(f"{bits:2d} bits  " + "  ".join(f"{name} {value:.3f}" for name, value in row.items()) + "\n")
        sys.stdout.flush()
        del served
        gc.collect()


if __name__ == "__main__":
    main()
