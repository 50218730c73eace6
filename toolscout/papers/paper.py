"""The nouns of a reproduction: a paper, its tables, and the experiments that give our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolscout.papers import published_numbers
from toolscout.training.encoder_options import Decoding

NAMES = "names"
"""What rows call a language model that names tools in plain text; it is no retriever of this package."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that a paper uses and that this package does not have.

    name: what they are passed by, as in --model NAME=FOLDER.
    about: what they are.
    option: the option of the retriever that takes them.
    place: where they are, as a user would write it: a folder, or the address of an endpoint.
    """

    name: str
    about: str
    option: str
    place: str = "FOLDER"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A retriever to train and to measure.

    name: the variant of its rows and the name of its model folder, without the seed.
    retriever, parts, settings: the method, its parts, and its options as KEY=VALUE.
    dataset: the name of the folder of data; `about_data` says what is in it, where this project has no such folder.
    train: the splits to train and to select on: "train" for train and dev, a family such as "unseen_tool" for its own;
        "" for a method that is used as it is.
    prompts: whether it also learns from prompts that need no tool.
    trajectories: whether it also learns, last, from trajectories of agents.
    encoder: the experiment whose trained encoder it uses; None for the encoder of the method's options.
    generator: the experiment whose fine-tuned language model writes queries; if this one is trained, it goes on from
        that model. It may have been trained on another dataset.
    larger_model: whether the language model that is passed with --llm writes queries.
    weights: weights that have to be passed; None where the package has all.
    among: the splits whose gold tools alone are ranked; none: all tools of the dataset.
    also: variants, without the seed, under which earlier rows hold the same experiment; patterns as of a shell.
    hours: about how long training with one seed takes on two cores, estimated from the number of its steps.
    """

    name: str
    retriever: str
    dataset: str
    settings: tuple[str, ...] = ()
    train: str = "train"
    parts: tuple[str, ...] = ()
    prompts: bool = False
    trajectories: bool = False
    encoder: Experiment | None = None
    generator: Experiment | None = None
    larger_model: bool = False
    weights: Weights | None = None
    also: tuple[str, ...] = ()
    hours: float = 0.0
    about_data: str = ""
    among: tuple[str, ...] = ()

    def chain(self) -> Iterator[Experiment]:
        """Yield the experiments whose models are trained, in order: those of encoder and generator first, this last."""
        for one in (self.encoder, self.generator):
            if one is not None:
                yield from one.chain()
        yield self


@dataclass(frozen=True, slots=True)
class NamesExperiment(Experiment):
    """A language model that is fine-tuned to write the names of tools as plain text: it has no ids.

    It goes through documents, requests and, where `trajectories` is set, trajectories; its settings are those of
    name_writer.NameWriterOptions, and its retriever is NAMES.
    """


@dataclass(frozen=True, slots=True)
class ModelExperiment(Experiment):
    """Something other than a search that a trained model is measured by.

    model: the experiment whose trained model it is; None for a language model that is used as it is.
    """

    train: str = ""
    model: Experiment | None = None

    def chain(self) -> Iterator[Experiment]:
        """Yield the experiments whose models are trained, and this one last."""
        if self.model is not None:
            yield from self.model.chain()
        yield self

    @property
    def names(self) -> bool:
        """Whether tools are named in plain text, by a language model that has no ids."""
        return self.retriever == NAMES


@dataclass(frozen=True, slots=True)
class AgentExperiment(ModelExperiment):
    """An agent as published that works on requests whose tools have recorded calls.

    model: the experiment whose trained model is the agent, and so its retriever; None for a chat model, passed as
        `weights`, that is shown the gold tools of each request, or, with the retriever NAMES, for SmolLM2, which is
        shown no tools.
    thoughts: whether it writes thoughts.
    judged: what a judge measures: "sopr" or "sowr"; "" for what is measured without one.
    reference: the agent that the win rate (sowr) compares with.
    decoding: whether ids are generated under the trie of all ids, or freely.
    """

    thoughts: bool = True
    judged: str = ""
    reference: AgentExperiment | None = None
    decoding: Decoding = "constrained"


@dataclass(frozen=True, slots=True)
class GenerationExperiment(ModelExperiment):
    """What a language model generates for the requests of a split: ids of tools, and what is the id of no tool.

    model: the experiment whose trained model generates; None for SmolLM2 as it is, with the retriever NAMES.
    decoding: whether ids are generated under the trie of all ids, or freely.
    """

    decoding: Decoding = "constrained"


@dataclass(frozen=True, slots=True)
class LanguageExperiment(ModelExperiment):
    """What a language model can do beside tools: how well it predicts prompts that need none, or a task of labels.

    model: the experiment whose trained model it is; None for SmolLM2 as it is.
    task: whether it is measured by the labelled texts that are passed with --task, not by prompts.
    """

    task: bool = False


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why an experiment cannot be run by any option: what is missing, and what could be done about it."""

    why: str


Ours = Experiment | Unavailable | None
"""What gives one of our numbers; None where the line has no such form."""


@dataclass(frozen=True, slots=True)
class Column:
    """A measure of a table.

    head: its name, as in papers.json.
    metric: the name of the measure in rows; "" where rows have none.
    splits: the splits that are measured; the mean is over all of their requests.
    percent: whether it is shown in percent.
    """

    head: str
    metric: str = ""
    splits: tuple[str, ...] = ("test",)
    percent: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A method in a table.

    published, served: what gives our numbers, in the paper's form and in the form that this package serves.
    source: the source of the paper's numbers in papers.json, where the line has the same name; "" where the paper has
        no such line.
    """

    name: str
    published: Ours = None
    served: Ours = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a paper, or the part of it that is about one dataset.

    id, part: the paper's number or name of the table, and the part.
    numbers: the key of the paper's numbers in papers.json; "" where none could be had.
    differences: how our experiments differ from the paper's, for this table alone.
    """

    id: str
    part: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    numbers: str = ""
    differences: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the name of the table and of its part."""
        return f"{self.id}, {self.part}" if self.part else self.id

    def theirs(self, line: Line, column: Column) -> float | None:
        """Return the paper's number, in percent but for perplexities; None where it has none, or no such measure."""
        if not line.source:
            return None
        found = published_numbers.load()[self.numbers]
        values = next(values for name, source, values in found.lines if (name, source) == (line.name, line.source))
        return values[found.columns.index(column.head)] if column.head in found.columns else None

    def sources(self) -> list[str]:
        """Return where the paper's numbers of this table were read."""
        found = published_numbers.load()[self.numbers].sources if self.numbers else {}
        return [found[name] for name in dict.fromkeys(line.source for line in self.lines) if name]

    def caveats(self) -> tuple[str, ...]:
        """Return what has to be known of the paper's numbers."""
        return published_numbers.load()[self.numbers].caveats if self.numbers else ()

    def experiments(self) -> list[Experiment]:
        """Return the experiments of all lines, each once."""
        found = [ours for line in self.lines for ours in (line.published, line.served)]
        return list(dict.fromkeys(one for one in found if isinstance(one, Experiment)))

    def splits(self) -> list[str]:
        """Return the splits that the table measures."""
        return list(dict.fromkeys(split for column in self.columns if column.metric for split in column.splits))


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper: its settings, how our form of it differs, and its tables.

    key: what the command line calls it. published: the method and options that are its published form here.
    """

    key: str
    title: str
    venue: str
    link: str
    published: str
    settings: tuple[tuple[str, str], ...]
    differences: tuple[str, ...]
    tables: tuple[Table, ...]


def published_lines(numbers: str, source: str, ours: dict[str, Ours] | None = None) -> tuple[Line, ...]:
    """Return a line for each of a source's lines in papers.json; `ours` gives, by name, our published form of some."""
    found = published_numbers.load()[numbers].lines
    return tuple(Line(name, (ours or {}).get(name), source=source) for name, of, _ in found if of == source)
