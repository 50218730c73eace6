"""How far a perturbed document lies from its original: what SIGMA in toolscout/evaluation/bench/synthetic_catalogue.py
stands for.

Embeds 500 real records and their first copies. A vector moved by noise of length s and brought back to length one has a
cosine of 1 / sqrt(1 + s * s) with where it was, so the s that matches is sqrt(1 / cosine² - 1).
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console

from toolscout.evaluation.bench import synthetic_catalogue
from toolscout.models.encoders.onnx_encoder import Encoder

SAMPLE = 500


def main() -> None:
    """Print the mean cosine and the matching length of noise."""
    base = synthetic_catalogue.base_tools(Path(os.environ["TOOLSCOUT_DATA"]))
    step = len(base) // SAMPLE
    copies = islice(synthetic_catalogue.tools(base, 2 * len(base)), len(base), None)
    pairs = [(tool, copy) for number, (tool, copy) in enumerate(zip(base, copies, strict=True)) if number % step == 0]
    encoder = Encoder.load()
    texts = [one.document() for pair in pairs for one in pair]
    vectors = np.empty((len(texts), encoder.dimension), dtype=np.float32)
    for positions, rows in encoder.encode_documents(texts):
        vectors[positions] = rows
    cosines = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    mean = float(np.mean(cosines))
    Console().print(f"{len(pairs)} pairs: mean cosine {mean:.3f}, sigma {np.sqrt(1 / mean**2 - 1):.3f}")


if __name__ == "__main__":
    main()
