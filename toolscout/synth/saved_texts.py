"""Texts that a language model writes in batches, saved as they come, so that an interrupted run is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolscout.errors import BadDataset, LanguageModelError
from toolscout.llm.base import Completion, LanguageModel, Message, Usage, complete_each
from toolscout.llm.endpoint import Endpoint
from toolscout.models.language.open import device_name
from toolscout.search.progress import Progress

_ON_CPU, _ON_DEVICE = 64, 8_192  # conversations per call of the model, after which the answers are saved


class Prompt(NamedTuple):
    """What a text is written for, a digest of that and of the conversation, and the conversation itself."""

    key: str
    digest: str
    conversation: Callable[[], list[Message]]


class Batch(NamedTuple):
    """Conversations that a model completes in one call, and the place of the first among all."""

    place: int
    conversations: list[list[Message]]
    temperature: float
    max_tokens: int


class Answers(NamedTuple):
    """What each conversation got: its completions, the error it met, or None; and the error that ended the call."""

    outcomes: Sequence[object]
    error: LanguageModelError | None = None


Completing = Callable[[Iterable[Batch]], Iterator[tuple[Batch, Answers]]]
"""Completes batches, and yields each once with its answers, in any order."""


def answers(llm: LanguageModel, batch: Batch) -> Answers:
    """Have a model complete a batch; an error that ends the call comes with the answers until then."""
    try:
        settings = {"temperature": batch.temperature, "max_tokens": batch.max_tokens}
        return Answers(complete_each(llm, batch.conversations, **settings))
    except LanguageModelError as error:
        return Answers(error.each(len(batch.conversations)), error)


class SavedTexts:
    """The texts that a model wrote, saved in a file as JSON lines after a header line with the run's identity.

    `problem` is the last reason why a conversation got no answer.
    """

    def __init__(
        self,
        llm: LanguageModel,
        temperature: float,
        max_tokens: int,
        partial: Path | None,
        identity: str,
        chunk: int = 0,
        completing: Completing | None = None,
    ) -> None:
        """Read what the file `partial` holds; raises BadDataset where it is of a run with another identity.

        chunk: how many conversations the model is asked at once; 0 for as many as suit it. completing: what has the
        model complete them, where it is not this process.
        """
        self._llm, self._temperature, self._max_tokens = llm, temperature, max_tokens
        self._partial, self._chunk = partial, chunk
        self._completing = completing or self._complete_here
        self._written: dict[str, tuple[str, bool]] = {}
        self.usage = Usage()
        self.problem = ""
        if partial is not None:
            self._resume(partial, identity)

    def _resume(self, partial: Path, identity: str) -> None:
        header = json.dumps({"identity": identity})
        try:
            lines = partial.read_text(encoding="utf-8").split("\n")[:-1] if partial.exists() else []
            # A file with the header alone can be replaced.
            if lines and json.loads(lines[0])["identity"] != identity and len(lines) > 1:
                raise BadDataset(
                    f"{partial} was begun with other tools, options or another model; give the same again, or remove it"
                )
            for line in lines[1:]:
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadDataset):
                raise
            raise BadDataset(f"{partial} cannot be read ({error}); remove it to begin again") from None
        # Written again without a last line that the interruption cut off.
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(f"{line}\n" for line in [header, *lines[1:]]), encoding="utf-8")

    def _take(self, row: Mapping[str, Any]) -> None:
        self._written[str(row["key"])] = str(row["text"]), bool(row["whole"])
        prompt, completion = row["tokens"]
        self.usage.add([[Completion(row["text"], prompt, completion, "stop", row.get("cost"))]])

    def of(self, prompts: Sequence[Prompt], progress: Progress | None) -> dict[str, tuple[str, bool]]:
        """For each prompt's key, the text and whether the model finished it; those without an answer are missing."""
        left = [prompt for prompt in prompts if prompt.digest not in self._written]
        done = len(prompts) - len(left)
        for batch, found in self._completing(self._batches(left)):
            # Answers are saved, even those of a call that failed: they were paid for.
            self._keep_answers(left[batch.place : batch.place + len(batch.conversations)], found.outcomes)
            if found.error is not None:
                raise found.error
            done += len(batch.conversations)
            if progress:
                progress("writing", done, len(prompts))
        return {prompt.key: self._written[prompt.digest] for prompt in prompts if prompt.digest in self._written}

    def _batches(self, prompts: Sequence[Prompt]) -> Iterator[Batch]:
        size = self._chunk or _at_once(self._llm)
        for start in range(0, len(prompts), size):
            conversations = [prompt.conversation() for prompt in prompts[start : start + size]]
            yield Batch(start, conversations, self._temperature, self._max_tokens)

    def _complete_here(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Answers]]:
        return ((batch, answers(self._llm, batch)) for batch in batches)

    def _keep_answers(self, chunk: Sequence[Prompt], outcomes: Sequence[object]) -> None:
        rows = []
        for prompt, outcome in zip(chunk, outcomes, strict=True):
            if isinstance(outcome, LanguageModelError):
                self.problem = str(outcome)
            elif isinstance(outcome, list) and outcome:
                rows.append({"key": prompt.digest, **_row(outcome[0])})
        if self._partial is not None:
            with self._partial.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)
        for row in rows:
            self._take(row)


def _at_once(llm: LanguageModel) -> int:
    if isinstance(llm, Endpoint):
        return llm.options.concurrency  # after a crash, only the answers in flight are lost
    return _ON_DEVICE if device_name() else _ON_CPU


def _row(one: Completion) -> dict[str, Any]:
    tokens = [one.prompt_tokens, one.completion_tokens]
    return {"text": one.text, "whole": one.finish == "stop", "tokens": tokens, "cost": one.cost}
