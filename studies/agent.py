"""Measures an agent by replay of recorded calls: results/agent.jsonl.

python -m studies.agent [--retrievers NAME|FOLDER|shortlist:FOLDER|gold,…] [--llm SPEC] [--model NAME] [--limit N] [-k
N]
                     [--steps N] [--no-thoughts] [--constrain] [--at-once N] [--stop-after SECONDS] [--out FILE]
                     [--traces FOLDER] [--judge URL --judge-model NAME] [--against NAME]

The same agent, with one language model that is opened once, runs behind each retriever in turn, on those requests of
stabletoolbench whose gold tools all have recorded calls (558 of 765; the row says of how many). A trained toolgen or
toolweaver that has learned conversations picks by itself; "shortlist:FOLDER" searches with it instead. --llm may name
such a model too: then it thinks and writes arguments as well. valid_arguments is the share of calls whose arguments
fitted the schema as the model first wrote them, so they are written freely unless --constrain is given.

A row that is there already (same front, encoder, language model, settings and requests) is not made again: delete it to
measure it anew. Models are told apart by what is in their folders; rows of before that was kept are known by their name
alone. What was done when --stop-after ends a run is kept beside the rows, and the same command goes on with it.

What cannot be done as asked (no such retriever, no recordings, a model that has seen requests of the split) ends with
code 2 and a line that says why, before anything is measured.

A language model judges pass rate, and win rate against the retriever named by --against, only where --judge names one;
a row has no such number otherwise. Needs $TOOLSCOUT_DATA; $TOOLSCOUT_DEVICE=cuda writes on a GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies import agent_replay as replay
from studies.agent_replay import MeteredModel
from studies.running import RESULTS
from toolscout.agent import judging
from toolscout.agent.checkpoint import ReplayCheckpoint
from toolscout.agent.loop import AgentOptions
from toolscout.agent.model_loading import Models, is_own
from toolscout.agent.recorded_calls import ReplaySet, language_model, read_trial
from toolscout.data.locate import find_dataset
from toolscout.errors import BadCompletion, Leak, ToolscoutError
from toolscout.evaluation import row as rows
from toolscout.evaluation.evaluate import seen_by
from toolscout.evaluation.leakage import refuse_seen
from toolscout.evaluation.vector_cache import encoder_of
from toolscout.llm import open_llm
from toolscout.llm.base import LanguageModel
from toolscout.models.language.open import device_name

OUT = RESULTS / "agent.jsonl"
RETRIEVERS = ("bm25", "dense", "hybrid", replay.GOLD)
# Requests that go in lockstep: on a GPU all of them.
AT_ONCE, ON_DEVICE = 64, 1024
SMOLLM2 = "smollm2"


def judged(done: Mapping[str, replay.ReplayResult], against: str, llm: LanguageModel, model: str) -> None:
    """Put pass rate, and win rate against one of the runs, into the rows."""
    passes = {name: judging.pass_rate(llm, one.episodes) for name, one in done.items()}
    other = done.get(against)
    for name, one in done.items():
        one.row["metrics"]["pass_rate"] = round(passes[name].rate, 6)
        one.row["study"] |= {"judge": model or llm.name, "unjudged": passes[name].unjudged}
        if other is not None and other is not one:
            won = judging.win_rate(llm, one.episodes, other.episodes, passes[name], passes[against])
            one.row["metrics"]["win_rate"] = round(won.rate, 6)
            one.row["study"]["against"] = other.row["retriever"]


def command_line(arguments: Sequence[str]) -> str:
    """The command, without the paths of one machine and the addresses of one network."""
    words, hidden = [], False
    for word in arguments:
        words.append("URL" if hidden or "://" in word else ",".join(map(replay.shown, word.split(","))))
        hidden = word == "--judge"
    return shlex.join(["python", "-m", "studies.agent", *words])


def count(text: str) -> int:
    """A number of the command line of which there has to be one."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a number of 1 or more is needed, got {text!r:.40}")
    return int(text)


def command() -> argparse.ArgumentParser:
    """What the command line may hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="stabletoolbench")
    parser.add_argument("--split", default="test")
    parser.add_argument("--retrievers", default=",".join(RETRIEVERS))
    parser.add_argument("--llm", default=SMOLLM2)
    parser.add_argument("--model", default="")
    parser.add_argument("--limit", type=count)
    parser.add_argument("-k", type=count, default=5)
    parser.add_argument("--steps", type=count, default=6)
    parser.add_argument("--no-thoughts", action="store_true")
    parser.add_argument("--constrain", action="store_true")
    parser.add_argument("--at-once", type=count, default=ON_DEVICE if device_name() else AT_ONCE)
    parser.add_argument("--stop-after", type=float)
    parser.add_argument("--judge", default="")
    parser.add_argument("--judge-model", default="")
    parser.add_argument("--against", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--traces", type=Path)
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    found = parser.parse_args(arguments)
    found.retrievers = list(dict.fromkeys(filter(None, found.retrievers.split(","))))
    if found.against and (not found.judge or found.against not in found.retrievers):
        parser.error("--against needs --judge, and names one of the --retrievers")
    return found


def is_there(out: Path, trial: ReplaySet, told: Mapping[str, Any], encoder: str | None) -> bool:
    """Whether a row says the same. One from before fingerprints of models were kept is known by their names alone."""
    digest, unkept = trial.dataset.digest(trial.split), {"models": told["models"]}
    return any(
        row["digest"] == digest
        and told.items() <= (unkept | row.get("study", {})).items()
        and encoder in (None, row.get("encoder"))
        for row in rows.read_rows(out)
    )


def encoder_under(models: Models, front: str) -> str | None:
    """The encoder of a front that comes with the package: it may become another. A trained front is known by itself."""
    place = front.removeprefix(replay.SHORTLIST)
    if front == replay.GOLD or models.fingerprint(place):
        return None
    encoder = encoder_of(models.retriever(place)[0])
    return encoder.fingerprint if encoder else None


def trained(models: Models, front: str, llm: str) -> dict[str, str]:
    """The fingerprints of what comes from a folder or file. Names of the package's own are not looked for there."""
    places = {"front": front.removeprefix(replay.SHORTLIST)} if front != replay.GOLD else {}
    places |= {"llm": llm} if llm != SMOLLM2 or is_own(llm) else {}
    return {part: found for part, place in places.items() if (found := models.fingerprint(place))}


def replayed(
    asked: argparse.Namespace, trial: ReplaySet, command: str, stop: Callable[[], bool]
) -> Iterator[tuple[str, replay.ReplayResult, ReplayCheckpoint]]:
    """Each front that is not measured yet, in turn, until it is time to stop."""
    options = AgentOptions(steps=asked.steps, thoughts=not asked.no_thoughts, constrain=asked.constrain)
    models = Models()
    opened = language_model(trial, asked.llm, asked.model, models)
    fronts = [
        (name, replay.about(trial, name, opened, options, asked.k, trained(models, name, asked.llm)))
        for name in asked.retrievers
    ]
    under = {name: encoder_under(models, name) for name, _ in fronts}
    for name, told in fronts:  # before hours are spent on the others
        if name != replay.GOLD and (asked.judge or not is_there(asked.out, trial, told, under[name])):
            place = name.removeprefix(replay.SHORTLIST)
            refuse_seen(trial.dataset, trial.split, seen_by(place, models.retriever(place)[0]))
    for name, told in fronts:
        if not asked.judge and is_there(asked.out, trial, told, under[name]):
            sys.stderr.write(f"{name}: its row is there\n")
            continue
        depends_on = {key: value for key, value in {**told, "encoder": under[name] or {}}.items() if value != {}}
        kept = ReplayCheckpoint(
            asked.out.with_suffix(".partial"), depends_on | {"digest": trial.dataset.digest(trial.split)}
        )
        llm = MeteredModel(opened)  # each row counts its own tokens
        before = replay.front(trial, name, llm, asked.k, models=models)
        settings: dict[str, Any] = {"told": told, "command": command, "at_once": asked.at_once}
        done = replay.replay(trial, before, llm, options, **settings, kept=kept, stop=stop)
        if done is None:
            sys.stderr.write(f"stopped at {name} after {len(kept.episodes)} of {len(trial.requests)} requests\n")
            return
        failed = [one.reason for one in done.episodes if one.finish == "model_failed"]
        if len(failed) == len(done.episodes):
            kept.remove()
            raise BadCompletion(f"the language model failed for all {len(failed)} requests ({failed[-1]}): no row")
        sys.stderr.write(f"{name}: {json.dumps(done.row['metrics'])}\n")
        yield name, done, kept


def write(asked: argparse.Namespace, one: replay.ReplayResult, kept: ReplayCheckpoint) -> None:
    """The row, the scores of its requests beside it, and what the agent did where that is wanted."""
    rows.append_with_scores(asked.out, one.row, one.lines)
    if asked.traces:
        lines = [json.dumps(episode.to_dict(), default=str) + "\n" for episode in one.episodes]
        asked.traces.mkdir(parents=True, exist_ok=True)
        path = asked.traces / f"{one.row['retriever']}.{one.row['variant']}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
    kept.remove()


def measure(asked: argparse.Namespace, command: str) -> None:
    """Replay every retriever, judge where there is a judge, and write the rows."""
    started = time.monotonic()
    trial = read_trial(find_dataset(asked.data), asked.split).first(asked.limit)
    rows.check_writable(asked.out)

    def stop() -> bool:
        return asked.stop_after is not None and time.monotonic() - started > asked.stop_after

    done = {}
    for name, one, kept in replayed(asked, trial, command, stop):
        if asked.judge:
            done[name] = (one, kept)  # written once judged: some are judged against each other
        else:
            write(asked, one, kept)
    if done:
        chosen = {name: one for name, (one, _) in done.items()}
        judged(chosen, asked.against, open_llm(asked.judge, model=asked.judge_model), asked.judge_model)
        for one, kept in done.values():
            write(asked, one, kept)


def main(arguments: Sequence[str]) -> None:
    """Read the arguments and measure; what goes wrong is told in a line."""
    parser = command()
    asked = parsed(parser, arguments)
    try:
        measure(asked, command_line(arguments))
    except Leak as error:  # its advice is for toolscout evaluate: a replay leaves no request out
        parser.error(f"{str(error).partition('; ')[0]}; name another --split, or a model that has not seen this one")
    except ToolscoutError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
