"""Measures an agent by replay of recorded calls: results/agent.jsonl.

python -m runs.agent [--retriever NAME|FOLDER|gold …] [--llm SPEC] [--model NAME] [--limit N] [-k N] [--steps N]
                     [--no-thoughts] [--constrain] [--numbered] [--at-once N] [--out FILE] [--traces FOLDER]
                     [--judge URL --judge-model NAME] [--against NAME]

The same agent runs behind each retriever, on those requests of stabletoolbench whose gold tools all have recorded calls
(558 of 765; the row says of how many). valid_arguments is the share of calls whose arguments fitted the schema as the
model first wrote them, so they are written freely unless --constrain is given. With --numbered tools are picked by
their place in the shortlist, which makes one batch of all requests; else by name. A language model judges pass rate,
and win rate against the retriever named by --against, only where --judge names one; a row has no such number otherwise.
Needs $TOOLSCOUT_DATA.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from toolscout.agent import judge, replay
from toolscout.agent.asking import Metered
from toolscout.agent.loop import AgentOptions
from toolscout.evaluation import row as rows
from toolscout.evaluation.run import find_dataset
from toolscout.llm import open_llm
from toolscout.llm.base import LanguageModel

OUT = Path(__file__).resolve().parent.parent / "results" / "agent.jsonl"
RETRIEVERS = ("bm25", "dense", "hybrid", replay.GOLD)


def judged(done: Sequence[replay.Replayed], names: Sequence[str], against: str, llm: LanguageModel, model: str) -> None:
    """Put pass rate, and win rate against one of the runs, into the rows."""
    other = done[list(names).index(against)] if against else None
    for one in done:
        passed = judge.pass_rate(llm, one.episodes)
        one.row["metrics"]["pass_rate"] = round(passed.rate, 6)
        one.row["study"] |= {"judge": model or llm.name, "unjudged": passed.unjudged}
        if other is not None and other is not one:
            one.row["metrics"]["win_rate"] = round(judge.win_rate(llm, one.episodes, other.episodes).rate, 6)
            one.row["study"]["against"] = other.row["retriever"]


def command_line(arguments: Sequence[str]) -> str:
    """The command, without the paths of one machine and the addresses of one network."""
    words, hidden = [], False
    for word in arguments:
        words.append("URL" if hidden or "://" in word else Path(word).name if "/" in word else word)
        hidden = word == "--judge"
    return shlex.join(["python", "-m", "runs.agent", *words])


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stabletoolbench")
    parser.add_argument("--split", default="test")
    parser.add_argument("--retriever", action="append", default=[])
    parser.add_argument("--llm", default="smollm2")
    parser.add_argument("--model", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--no-thoughts", action="store_true")
    parser.add_argument("--constrain", action="store_true")
    parser.add_argument("--numbered", action="store_true")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--judge", default="")
    parser.add_argument("--judge-model", default="")
    parser.add_argument("--against", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--traces", type=Path)
    found = parser.parse_args(arguments)
    found.retriever = found.retriever or list(RETRIEVERS)
    if found.against and (not found.judge or found.against not in found.retriever):
        parser.error("--against needs --judge, and names one of the --retriever")
    return found


def main(arguments: Sequence[str]) -> None:
    """Replay every retriever, judge where there is a judge, and write the rows."""
    asked = parsed(arguments)
    rows.check_writable(asked.out)
    options = AgentOptions(steps=asked.steps, thoughts=not asked.no_thoughts, constrain=asked.constrain)
    trial = replay.read_trial(find_dataset(asked.data), asked.split).first(asked.limit)
    opened = open_llm(asked.llm, model=asked.model)
    done = []
    for name in asked.retriever:
        llm = Metered(opened)  # each row counts its own tokens
        before = replay.front(trial, name, llm, asked.k, numbered=asked.numbered)
        done.append(
            replay.replay(
                trial, before, llm, options, k=asked.k, command=command_line(arguments), at_once=asked.at_once
            )
        )
        sys.stderr.write(f"{name}: {json.dumps(done[-1].row['metrics'])}\n")
    if asked.judge:
        judged(done, asked.retriever, asked.against, open_llm(asked.judge, model=asked.judge_model), asked.judge_model)
    for one in done:
        rows.write_scores(rows.scores_path(asked.out, one.row), one.lines)
        rows.append(asked.out, one.row)
        if asked.traces:
            lines = [json.dumps(episode.to_dict(), default=str) + "\n" for episode in one.episodes]
            asked.traces.mkdir(parents=True, exist_ok=True)
            path = asked.traces / f"{one.row['retriever']}.{one.row['variant']}.jsonl"
            path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
