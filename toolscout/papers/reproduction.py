"""Runs the experiments of papers and finds their rows: what was measured, what can be run here, and what is missing.

Rows that are there are not made again: those of a reproduction, and those of other files that are named as the same
experiment. An experiment is trained and measured with one seed at a time, so that an interrupted reproduction goes on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from toolscout.agent.episode import Episode
from toolscout.agent.model_loading import Models
from toolscout.agent.recorded_calls import CACHE, ReplaySet, read_trial
from toolscout.core.option_values import Presets
from toolscout.data import beir_files as files
from toolscout.data import metrics
from toolscout.data.dataset import Dataset
from toolscout.data.locate import DATA_FOLDER, find_dataset
from toolscout.errors import BadDataset, BadModel, ToolscoutError
from toolscout.evaluation import evaluate as evaluation
from toolscout.evaluation import row as rows
from toolscout.evaluation.candidates import candidate_names, names_in, read_candidates, restricted_variant
from toolscout.evaluation.fit_record import read_fit_record
from toolscout.evaluation.report.rows import ResultLine, group_by, read_folder
from toolscout.evaluation.request_result import RequestResult
from toolscout.evaluation.row import RowDict
from toolscout.llm.finetuned import is_finetuned
from toolscout.models.encoders import opening as encoders
from toolscout.models.encoders.export import default_source
from toolscout.models.encoders.settings import RAW
from toolscout.models.encoders.source_folder import check_files
from toolscout.models.language.base import open_base
from toolscout.papers import agent_runs, generation_runs, language_runs, name_writer, query_writers
from toolscout.papers.experiment import ExperimentResult
from toolscout.papers.labelled_texts import read_labelled
from toolscout.papers.paper import (
    NAMES,
    AgentExperiment,
    Column,
    Experiment,
    GenerationExperiment,
    LanguageExperiment,
    ModelExperiment,
    NamesExperiment,
    Ours,
    Table,
    Unavailable,
    Weights,
)
from toolscout.retrievers import opening, training_setup
from toolscout.retrievers.base import FitProgress, Retriever
from toolscout.retrievers.document_index import ENCODER_FOLDER
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.registry import load_model
from toolscout.retrievers.rewrite.retriever import FINETUNED_FOLDER
from toolscout.retrievers.toolweaver import Toolweaver
from toolscout.training.encoder_options import IdTrainingOptions

FILE = "reproduce.jsonl"
_PROMPTS, _TRAJECTORIES = "no_tool", "trajectories"
_JUDGEMENTS = "judgements.db"
_OF_TRAJECTORIES = {"agent_epochs", "trajectory_tokens", "rehearse", "carry_on"}
_WRITES = ("toolgen", "toolweaver", "rewrite", NAMES, "smollm2")
_SMOLLM2 = "smollm2"
_BUNDLED = "bundled"
_TORCH = "torch: run pip install 'toolscout[train]'"


@dataclass(frozen=True)
class Setup:
    """Where things lie, and what was passed.

    data: the folder of datasets; None where none was named.
    rows: the folder of rows, which new ones go to as well.
    models: where models are trained.
    weights: folders or addresses of weights, by the names that papers have for them.
    judge: the language model that judges agents, as agent_runs.open_chat takes it; "" where none was passed.
    llm: the larger language model that writes queries: a folder, or URL?model=NAME; "" where none was passed.
    task: a file of labelled texts that language models are measured by; None where none was passed.
    """

    data: Path | None
    rows: Path
    models: Path
    weights: Mapping[str, str] = field(default_factory=dict)
    judge: str = ""
    llm: str = ""
    task: Path | None = None

    @cached_property
    def by_split(self) -> dict[tuple[str, str], list[ResultLine]]:
        """Return, by dataset and split, the rows of the folder as they were when first asked for.

        Those that differ in the seed alone are joined.
        """
        written = any(path.stat().st_size for path in self.rows.glob("*.jsonl"))  # it may have been made and not filled
        lines = read_folder(self.rows)[0] if written else []
        return group_by(lines, lambda line: (line.newest["dataset"], line.newest["split"]))

    def reread(self) -> Setup:
        """Return the setup with the rows as they are now."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class State:
    """Where an experiment stands: its seeds that have rows of all splits, and each thing that it lacks to be run."""

    seeds: tuple[int | None, ...]
    missing: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return "measured", "can be run" or "missing"."""
        return "measured" if self.seeds else "missing" if self.missing else "can be run"


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of ours: the mean over seeds, of fractions, with the value of each seed; none where it has no rows."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """Return the mean over the seeds."""
        return fmean(self.values) if self.values else None


def setup_of(
    data: Path | None,
    rows_folder: Path,
    models: Path,
    weights: Sequence[str],
    judge: str = "",
    llm: str = "",
    task: Path | None = None,
) -> Setup:
    """Return the setup of a command; `weights` are NAME=FOLDER. Raises BadDataset for folders that are not there."""
    if data is not None and not data.is_dir():
        raise BadDataset(f"there is no folder {data}; pass --data the folder that has the datasets in it")
    home = os.environ.get(DATA_FOLDER, "")
    found: dict[str, str] = {}
    for one in weights:
        name, equals, place = one.partition("=")
        if not equals or not name or not place:
            raise BadDataset(
                f"{one!r:.80} does not name weights; pass --model NAME=FOLDER, with a name that --list shows"
            )
        if "://" not in place and not Path(place).exists():
            raise BadDataset(f"there is nothing at {place}; pass --model {name}=FOLDER with the folder of the weights")
        found[name] = place
    if llm:
        query_writers.read(llm)  # so that a mistake is told before anything is run
    if task is not None:
        read_labelled(task)
    return Setup(data or (Path(home) if home else None), rows_folder, models, found, judge, llm, task)


def weights_names(tables: Sequence[Table]) -> dict[str, str]:
    """Return the names of the weights that the experiments of tables can be passed, and what they are."""
    return {name: weights.about for name, weights in _weights(tables).items()}


def _weights(tables: Sequence[Table]) -> dict[str, Weights]:
    """Return all weights that experiments of tables take, those of agents that others are compared with included."""
    experiments = [one for table in tables for one in table.experiments()]
    experiments += [one.reference for one in experiments if isinstance(one, AgentExperiment) and one.reference]
    return {link.weights.name: link.weights for one in experiments for link in one.chain() if link.weights}


def state(experiment: Experiment, splits: Sequence[str], setup: Setup) -> State:
    """Return where an experiment stands."""
    seeds = measured_seeds(experiment, splits, setup)
    return State(tuple(seeds), tuple(missing(experiment, splits, setup)))


def hours(experiments: Iterable[Experiment]) -> float:
    """Return about how long these take with one seed on two cores; an encoder that several use is trained once."""
    different = {(link.name, link.dataset): link for one in experiments for link in one.chain()}
    return sum(link.hours for link in different.values())


def measured_seeds(experiment: Experiment, splits: Sequence[str], setup: Setup) -> list[int | None]:
    """Return the seeds that have rows of all these splits; None is the seed of a method that is not trained."""
    found = [_seeds(experiment, split, setup) for split in splits]
    both = set.intersection(*found) if found else set()
    return sorted(both, key=lambda seed: -1 if seed is None else seed)


def _seeds(experiment: Experiment, split: str, setup: Setup) -> set[int | None]:
    line = _line(experiment, split, setup)
    return set(_by_seed(line)) if line else set()


def cell(ours: Ours, column: Column, setup: Setup) -> Cell:
    """Return a number of a table: for each seed the mean over all requests of the column's splits."""
    if not isinstance(ours, Experiment) or not column.metric:
        return Cell()
    lines = [_line(ours, split, setup) for split in column.splits]
    seeds = [_by_seed(line) for line in lines if line is not None]
    if len(seeds) < len(lines):
        return Cell()
    values = []
    for seed in sorted(set.intersection(*map(set, seeds)), key=str):
        found = [(by_seed[seed]["metrics"].get(column.metric), by_seed[seed]["requests"]) for by_seed in seeds]
        if all(value is not None for value, _ in found):
            values.append(float(np.average([v for v, _ in found], weights=[count for _, count in found])))
    return Cell(tuple(values))


def _by_seed(line: ResultLine) -> dict[int | None, RowDict]:
    return {row.get("seed"): row for row in line.rows}


def _line(experiment: Experiment, split: str, setup: Setup) -> ResultLine | None:
    """Return the rows of an experiment on a split: those of its own name first, then those of the same experiment."""
    all_lines = setup.by_split.get((experiment.dataset, split), [])
    about = experiment.retriever, candidate_names(experiment.among)
    own = [line for line in all_lines if (line.newest["retriever"], names_in(line.newest)) == about]
    for pattern in (_name(experiment, setup), *experiment.also):
        wanted = restricted_variant(pattern, experiment.among)
        for line in (one for one in own if fnmatchcase(one.variant, wanted)):
            named = pattern in experiment.also or isinstance(experiment, ModelExperiment)
            if named or _same_options(experiment, line.newest):
                return line
    return None


def _name(experiment: Experiment, setup: Setup) -> str:
    """Return the variant of an experiment's rows, without the seed; a model or task that was passed is part of it."""
    if isinstance(experiment, LanguageExperiment) and experiment.task and setup.task:
        return f"{experiment.name}-{setup.task.stem}"
    by_larger = experiment.larger_model and setup.llm
    return f"{experiment.name}-by-{query_writers.read(setup.llm).name}" if by_larger else experiment.name


def _same_options(experiment: Experiment, row: RowDict) -> bool:
    """Return whether a row of this name was made with the experiment's settings; they may have changed since."""
    wanted, options = _wanted_options(experiment), row.get("options") or {}
    return wanted is not None and all(options.get(name, old) == value for name, (value, old) in wanted.items())


@cache
def _wanted_options(experiment: Experiment) -> dict[str, tuple[Any, Any]] | None:
    """Return the value and the default of each option that an experiment sets; None where the method refuses one."""
    try:
        made = opening.made(experiment.retriever, experiment.parts, experiment.settings).options
    except ToolscoutError:
        return None
    names = {one.partition("=")[0] for one in experiment.settings}
    presets = made.presets if isinstance(made, Presets) else {}
    names |= {name for one in experiment.settings for name in presets.get(one.removeprefix("preset="), ())}
    if isinstance(made, IdTrainingOptions) and not made.trajectories:
        names -= _OF_TRAJECTORIES  # without any they change nothing
    default = type(made)()
    return {
        one.name: (getattr(made, one.name), getattr(default, one.name)) for one in fields(made) if one.name in names
    }


def missing(experiment: Experiment, splits: Sequence[str], setup: Setup) -> list[str]:
    """Return each thing that keeps an experiment from being run here, with what to pass; nothing is opened for it."""
    return list(dict.fromkeys(_lacking(experiment, splits, setup)))


def _lacking(experiment: Experiment, splits: Sequence[str], setup: Setup) -> Iterator[str]:
    """Yield what an experiment lacks, and what those lack whose models it uses."""
    if isinstance(experiment, ModelExperiment):
        yield from _lacking_of_model(experiment, splits, setup)
        return
    chain = list(experiment.chain())
    for one in chain:
        yield from _lacking_of_retriever(one, splits if one is chain[-1] else (), setup)


def _lacking_of_model(experiment: ModelExperiment, splits: Sequence[str], setup: Setup) -> Iterator[str]:
    """Yield what lacks to measure a model by something other than a search: the model, requests, calls, a judge, …."""
    if experiment.model is not None:
        yield from _lacking(experiment.model, (), setup)
    elif experiment.names or isinstance(experiment, LanguageExperiment):
        yield from _refusal(experiment)
    yield from _lacking_weights(experiment, setup)
    if isinstance(experiment, LanguageExperiment):
        yield from _lacking_texts(experiment, setup)
        return
    lacking = list(_lacking_data(experiment, splits, setup))
    yield from lacking
    if isinstance(experiment, AgentExperiment):
        if not lacking and setup.data and files.find(setup.data / experiment.dataset, CACHE) is None:
            yield f"recorded calls, the observations of agents: add {CACHE} to {setup.data / experiment.dataset}"
        if experiment.judged and not setup.judge:
            yield "a judge: pass --judge https://HOST/v1?model=NAME, a language model that says what was solved"
        if experiment.reference is not None:
            yield from _lacking(experiment.reference, splits, setup)


def _lacking_texts(experiment: LanguageExperiment, setup: Setup) -> Iterator[str]:
    """Yield what lacks to measure a language model: torch, texts, or a task."""
    if not _has_torch():
        yield _TORCH
    if not experiment.task:
        yield from _lacking_prompts(setup)
    elif setup.task is None:
        yield 'a task: pass --task FILE, lines of {"text": …, "label": …}, such as one of GLUE'


def _lacking_prompts(setup: Setup) -> Iterator[str]:
    if setup.data is None or files.find(setup.data / _PROMPTS, files.PROMPTS) is None:
        place = f", in {setup.data / _PROMPTS}" if setup.data else ""
        yield f"prompts that need no tool{place}: pass --data a folder that has {_PROMPTS}/{files.PROMPTS} in it"


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _refusal(experiment: Experiment) -> Iterator[str]:
    """Yield why weights that the package can have cannot be opened."""
    try:
        _check_models(experiment)
    except ToolscoutError as error:
        yield str(error)


def _lacking_of_retriever(experiment: Experiment, splits: Sequence[str], setup: Setup) -> Iterator[str]:
    yield from _lacking_data(experiment, splits, setup)
    yield from _lacking_weights(experiment, setup)
    if experiment.larger_model and not setup.llm:
        yield "a larger language model: pass --llm https://HOST/v1?model=NAME, or --llm FOLDER"
    if experiment.train and not _has_torch():
        yield _TORCH
    yield from _refusal(experiment)
    if isinstance(experiment, NamesExperiment):
        return
    refused = [one for one in experiment.settings if not _accepted(experiment.retriever, experiment.parts, one)]
    if refused:
        yield f"an option that this version's {experiment.retriever} does not take: {', '.join(refused)}"


def _lacking_weights(experiment: Experiment, setup: Setup) -> Iterator[str]:
    weights = experiment.weights
    if weights is not None and weights.name not in setup.weights:
        yield f"the weights of {weights.about}: pass --model {weights.name}={weights.place}"


@cache
def _accepted(retriever: str, parts: tuple[str, ...], setting: str) -> bool:
    try:
        opening.made(retriever, parts, [setting])
    except ToolscoutError:
        return False
    return True


def _lacking_data(experiment: Experiment, splits: Sequence[str], setup: Setup) -> Iterator[str]:
    """Yield what lacks of the dataset, and of the prompts and trajectories that are learned from."""
    name = experiment.dataset
    if name == _BUNDLED:
        return
    what = f"the dataset {name}" + (f" ({experiment.about_data})" if experiment.about_data else "")
    if setup.data is None:
        yield f"{what}: pass --data FOLDER, the folder that has {name}/ in it, or set {DATA_FOLDER}"
    elif not (setup.data / name).is_dir():
        yield f"{what}, which {setup.data} does not have: pass --data FOLDER, the folder that has {name}/ in it"
    else:
        yield from _lacking_files(experiment, splits, setup.data / name)
    if experiment.prompts:
        yield from _lacking_prompts(setup)
    if experiment.trajectories and (setup.data is None or _trajectories(setup.data) is None):
        place = f", in {setup.data / _TRAJECTORIES}" if setup.data else ""
        file = f"{_TRAJECTORIES}/{_TRAJECTORIES}.jsonl"
        yield f"trajectories of agents{place}: pass --data a folder that has {file} in it"


def _lacking_files(experiment: Experiment, splits: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield what a folder of data lacks: the splits that are measured, those that are learned from, or more."""
    try:
        there = Dataset.split_names(folder)
    except BadDataset as error:
        yield str(error)
        return
    family = "" if experiment.train == "train" else f"{experiment.train}."
    learned = [f"{family}{split}" for split in ("train", "dev")] if experiment.train else []
    lacking = [split for split in dict.fromkeys([*splits, *experiment.among, *learned]) if split not in there]
    if lacking:
        names = ", ".join(f"qrels/{split}.tsv" for split in lacking)
        yield f"{names} in {folder}: add {'it' if len(lacking) == 1 else 'them'}, or pass --data another folder"


def check_passed(tables: Sequence[Table], setup: Setup) -> None:
    """Raise BadModel or BadRequest where weights or the judge that were passed cannot be used; none is loaded."""
    known = _weights(tables)
    for name, place in setup.weights.items():
        try:
            _check_weights(known[name].option, place)
        except ToolscoutError as error:
            raise BadModel(f"--model {name}={place}: {error}") from None
    if setup.judge:
        agent_runs.check_chat(setup.judge)


def _check_weights(option: str, place: str) -> None:
    """Raise a ToolscoutError where there are no weights of the kind that an option takes."""
    if option == "base":
        open_base(place)
    elif option == "start":
        check_files(Path(place))
    elif option == "encoder":
        encoders.check_name(place)
    else:
        agent_runs.check_chat(place)


def _trajectories(data: Path) -> Path | None:
    """Return the file of trajectories; None where there is none."""
    return files.find(data / _TRAJECTORIES, f"{_TRAJECTORIES}.jsonl")


def _check_models(experiment: Experiment) -> None:
    """Raise MissingEncoder or BadModel where weights that the package can have are not installed."""
    if not experiment.weights and experiment.retriever == "dense" and experiment.train:
        default_source()
    if any(one.rpartition(".")[2] == f"encoder={RAW}" for one in experiment.settings):
        encoders.check_name(RAW)
    named = any(one == "share=0" or one.startswith(("llm=", "base=")) for one in experiment.settings)
    other = experiment.weights or experiment.generator or experiment.larger_model
    if experiment.retriever in _WRITES and not named and not other:
        _check_language_model()


@cache
def _check_language_model() -> None:
    open_base()


def seeds_to_run(experiment: Experiment, seeds: int, splits: Sequence[str], setup: Setup) -> list[int | None]:
    """Return the seeds whose rows are missing; a method that is not trained is run once, without a seed."""
    done = measured_seeds(experiment, splits, setup)
    trained = experiment.model if isinstance(experiment, ModelExperiment) else experiment
    if trained is None or not (trained.train or trained.generator):
        return [] if done else [None]
    return [seed for seed in range(seeds) if seed not in done]


def splits_to_run(experiment: Experiment, seed: int | None, splits: Sequence[str], setup: Setup) -> list[str]:
    """Return the splits that have no row of this seed."""
    return [split for split in splits if seed not in _seeds(experiment, split, setup)]


def run(
    experiment: Experiment,
    seed: int | None,
    splits: Sequence[str],
    setup: Setup,
    command: str,
    progress: FitProgress | None = None,
) -> list[RowDict]:
    """Train an experiment, unless its model is there, measure it, and write a row for each split; return the rows.

    Raises BadModel where the language model failed for many requests: they would be searched alone.
    """
    found = []
    for one in _results(experiment, seed, splits, setup, command, progress):
        write(one, setup)
        found.append(one.row)
    return found


def measured(
    experiment: Experiment, seed: int | None, splits: Sequence[str], setup: Setup, command: str
) -> list[ExperimentResult]:
    """Return what `run` would write, for `write`: where it is run, the folder of rows may be another machine's."""
    return list(_results(experiment, seed, splits, setup, command, None))


def write(one: ExperimentResult, setup: Setup) -> None:
    """Append a row, and write the scores of its single requests, where it has any, beside it."""
    if one.lines:
        rows.append_with_scores(setup.rows / FILE, one.row, one.lines)
    else:
        rows.append(setup.rows / FILE, one.row)


def _results(
    experiment: Experiment,
    seed: int | None,
    splits: Sequence[str],
    setup: Setup,
    command: str,
    progress: FitProgress | None,
) -> Iterator[ExperimentResult]:
    """Train an experiment, unless its model is there, and yield what is measured of each split."""
    if isinstance(experiment, AgentExperiment):
        yield from _run_agent(experiment, seed, splits, setup, command, progress)
    elif isinstance(experiment, GenerationExperiment):
        yield from _run_generation(experiment, seed, splits, setup, command, progress)
    elif isinstance(experiment, LanguageExperiment):
        yield _run_language(experiment, seed, setup, command, progress)
    else:
        yield from _run_retriever(experiment, seed, splits, setup, command, progress)


def _run_retriever(
    experiment: Experiment,
    seed: int | None,
    splits: Sequence[str],
    setup: Setup,
    command: str,
    progress: FitProgress | None,
) -> Iterator[ExperimentResult]:
    """Measure a retriever on each split."""
    if experiment.train:
        assert seed is not None
        place = str(_trained(experiment, seed, setup, progress))
        opened: Retriever = load_model(Path(place))
        variant = Path(place).name
    else:
        place, variant = experiment.retriever, _name(experiment, setup) + ("" if seed is None else f"-s{seed}")
        settings = _settings(experiment, seed, setup, progress)
        opened = opening.made(experiment.retriever, experiment.parts, settings)
    data = evaluation.load_splits(_data_folder(experiment, setup), [*splits, *experiment.among])
    among = read_candidates(data, experiment.among) if experiment.among else None
    for split in splits:
        done = evaluation.evaluate(
            data,
            split,
            opened,
            variant=variant,
            command=command,
            seen=evaluation.seen_by(place, opened),
            fitted=read_fit_record(_fitted_folder(experiment, place, seed, setup)),
            among=among,
            progress=progress,
        )
        row = done.row.to_dict()
        query_writers.refuse_failures(row)
        row["metrics"] = {**row["metrics"], **at_gold(done.asked), **code_measures(opened)}
        row["options"] = {name: _without_path(value) for name, value in row["options"].items()}
        if experiment.larger_model:
            writer = query_writers.read(setup.llm)
            row["options"] |= {"llm": writer.name, "model": writer.given.model}  # the address is the user's own affair
        yield ExperimentResult(row, list(done.lines()))


def _data_folder(experiment: Experiment, setup: Setup) -> Path:
    """Return the folder of an experiment's dataset; one comes with the package."""
    if experiment.dataset == _BUNDLED:
        return find_dataset(_BUNDLED)
    assert setup.data is not None
    return setup.data / experiment.dataset


def _fitted_folder(experiment: Experiment, place: str, seed: int | None, setup: Setup) -> str:
    """Return the model folder that says how what is measured was trained; a name that is no folder where it was not."""
    if experiment.train or experiment.generator is None or seed is None:
        return place
    return str(_folder(experiment.generator, seed, setup))


def _run_generation(
    experiment: GenerationExperiment,
    seed: int | None,
    splits: Sequence[str],
    setup: Setup,
    command: str,
    progress: FitProgress | None,
) -> Iterator[ExperimentResult]:
    """Measure what a model generates for each split."""
    place = _place(experiment, seed, setup, progress)
    data = evaluation.load_splits(_data_folder(experiment, setup), splits)
    for split in splits:
        done = generation_runs.measured(experiment, place, seed, data, split, command, progress)
        done.row["options"] = {name: _without_path(value) for name, value in done.row["options"].items()}
        yield done


def _run_language(
    experiment: LanguageExperiment, seed: int | None, setup: Setup, command: str, progress: FitProgress | None
) -> ExperimentResult:
    """Measure what a language model can do beside tools."""
    place, variant = _place(experiment, seed, setup, progress), _name(experiment, setup)
    variant = variant if seed is None else f"{variant}-s{seed}"
    if experiment.task:
        assert setup.task is not None
        row = language_runs.task_row(experiment, place, setup.task, variant, seed, command)
    else:
        assert setup.data is not None
        row = language_runs.perplexity_row(experiment, place, setup.data / _PROMPTS, variant, seed, command)
    return ExperimentResult(row, [])


def _place(experiment: ModelExperiment, seed: int | None, setup: Setup, progress: FitProgress | None) -> str:
    """Return the folder of the trained model that is measured; "" for SmolLM2 as it is."""
    if experiment.model is None:
        return ""
    assert seed is not None
    return str(_trained(experiment.model, seed, setup, progress))


def _run_agent(
    experiment: AgentExperiment,
    seed: int | None,
    splits: Sequence[str],
    setup: Setup,
    command: str,
    progress: FitProgress | None,
) -> Iterator[ExperimentResult]:
    """Let an agent work on each split, and measure it; its reference works on the same requests."""
    assert setup.data is not None
    models = Models()
    judge = agent_runs.open_chat(setup.judge, setup.models / _JUDGEMENTS) if experiment.judged else None

    def work(one: AgentExperiment, trial: ReplaySet) -> list[Episode]:
        place = _place(one, seed, setup, progress) or _SMOLLM2
        if one.weights is not None:
            place = setup.weights[one.weights.name]
        return agent_runs.replayed(one, place, trial, setup.models, models, progress)

    for split in splits:
        trial = read_trial(setup.data / experiment.dataset, split)
        episodes = work(experiment, trial)
        about: dict[str, Any] = {}
        if judge is None:
            numbers = agent_runs.call_measures(trial, episodes)
        else:
            reference = work(experiment.reference, trial) if experiment.reference else []
            numbers, about = agent_runs.judged_measures(experiment, judge, episodes, reference)
        yield ExperimentResult(*agent_runs.make_row(experiment, seed, trial, numbers, about, command))


def at_gold(asked: Sequence[RequestResult]) -> dict[str, float]:
    """Return recall and COMP among as many tools as a request has gold ones, as COLT's ablations measure them."""
    golds = [one for one in asked if one.gold]
    return {
        f"{name}@gold": round(fmean(measure(one.ranking, one.gold, len(one.gold)) for one in golds), 6)
        for name, measure in (("recall", metrics.recall), ("comp", metrics.comp))
        if golds
    }


def code_measures(opened: Retriever) -> dict[str, float]:
    """Return how tools share codes, of a model that has learned codes; nothing of another.

    codes_used: the share of codes that a tool has, the mean over levels. co_used_together: the share of pairs of tools
    used together that have the same first code; any_together: of all pairs.
    """
    if not isinstance(opened, Toolweaver) or not (health := opened.health()):
        return {}
    found = {"codes_used": fmean(health["used"]), "co_used_together": health["together"]}
    return {name: round(value, 6) for name, value in (found | {"any_together": health["random"]}).items()}


def _without_path(value: Any) -> Any:
    """Return an option without the path that it has on this machine."""
    is_path = isinstance(value, str) and "/" in value and "://" not in value
    return value.rstrip("/").rpartition("/")[2] if is_path else value


def _folder(experiment: Experiment, seed: int, setup: Setup) -> Path:
    return setup.models / f"{experiment.name}-s{seed}"


def _trained(experiment: Experiment, seed: int, setup: Setup, progress: FitProgress | None) -> Path:
    """Return the folder of the trained model; it is trained, or its interrupted training goes on, if need be."""
    folder = _folder(experiment, seed, setup)
    if (folder / MODEL_FILE).is_file() or is_finetuned(folder):
        return folder
    settings = _settings(experiment, seed, setup, progress)
    if experiment.encoder is not None:
        settings.append(f"encoder={_trained(experiment.encoder, seed, setup, progress) / ENCODER_FOLDER}")
    training_setup.check_out(folder)
    assert setup.data is not None
    family = "" if experiment.train == "train" else f":{experiment.train}"
    sets = training_setup.training_sets([f"{setup.data / experiment.dataset}{family}"])
    if isinstance(experiment, NamesExperiment):
        taught = _trajectories(setup.data) if experiment.trajectories else None
        name_writer.fit(sets[0], taught, [*experiment.settings, f"seed={seed}"], folder, progress)
        return folder
    prompts = str(setup.data / _PROMPTS) if experiment.prompts else "none"
    takes = [*settings, f"no_tool={prompts}"] if experiment.prompts else settings
    training_setup.made(experiment.retriever, experiment.parts, takes).fit(sets, folder, progress)
    return folder


def _settings(experiment: Experiment, seed: int | None, setup: Setup, progress: FitProgress | None) -> list[str]:
    """Return the settings with the seed and with the places of weights and language models."""
    found = [*experiment.settings, *([] if seed is None else [f"seed={seed}"])]
    if experiment.weights:
        found.append(f"{experiment.weights.option}={setup.weights[experiment.weights.name]}")
    if experiment.trajectories:
        assert setup.data is not None
        found.append(f"trajectories={_trajectories(setup.data)}")
    if experiment.generator is not None:
        assert seed is not None
        writer = _trained(experiment.generator, seed, setup, progress) / FINETUNED_FOLDER
        found.append(f"{'init_from' if experiment.train else 'llm'}={writer}")
    if experiment.larger_model:
        found += query_writers.read(setup.llm).settings(setup.models)
    return found


def summary(ours: Ours, splits: Sequence[str], setup: Setup) -> State | None:
    """Return where one of our numbers stands; None where the line has no such form."""
    if ours is None:
        return None
    return State((), (ours.why,)) if isinstance(ours, Unavailable) else state(ours, splits, setup)
