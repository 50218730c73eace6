"""A language model whose answers are kept in a file: who has the file needs the model no more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toolscout.errors import BadCompletion, LanguageModelError
from toolscout.llm.base import Completion, Conversation, LanguageModel, Outcome, Schemas, complete_each, settled


class RecordedModel(LanguageModel):
    """Opens its model for what is not in the file yet; one process writes a file at a time."""

    def __init__(self, path: Path, name: str, opened: Callable[[], LanguageModel]) -> None:
        """Read what is there."""
        self.name, self._path, self._open = name, path, opened
        self._llm: LanguageModel | None = None
        self._known: dict[str, Completion] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            row = json.loads(line)
            read, wrote = row["tokens"]
            self._known[row["key"]] = Completion(row["text"], read, wrote, row["finish"], 0.0)

    @property
    def parameters(self) -> int:
        """Those of the model, where it is open."""
        return self._llm.parameters if self._llm is not None else 0

    def complete(
        self,
        conversations: Sequence[Conversation],
        *,
        n: int = 1,
        temperature: float = 0.0,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        schema: Schemas = None,
    ) -> list[list[Completion]]:
        """The likeliest completion of each conversation."""
        if n != 1 or temperature or stop or schema:
            raise BadCompletion("only the likeliest plain text is kept; ask for one completion at temperature 0")
        keys = [_key(conversation, max_tokens) for conversation in conversations]
        new = {key: one for key, one in zip(keys, conversations, strict=True) if key not in self._known}
        failed: dict[str, Outcome] = {}
        if new:
            self._llm = self._llm or self._open()
            try:
                outcomes = complete_each(self._llm, list(new.values()), max_tokens=max_tokens)
            except LanguageModelError as error:
                got = zip(new, error.each(len(new)), strict=True)
                self._keep({key: one[0] for key, one in got if isinstance(one, list)})
                raise
            for key, outcome in zip(new, outcomes, strict=True):
                if isinstance(outcome, BadCompletion):
                    failed[key] = outcome
                else:
                    self._known[key] = outcome[0]
            self._keep({key: self._known[key] for key in new if key not in failed})
        return settled([failed.get(key) or [self._known[key]] for key in keys])

    def _keep(self, found: dict[str, Completion]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as stream:
            for key, one in found.items():
                tokens = [one.prompt_tokens, one.completion_tokens]
                row: dict[str, Any] = {"key": key, "text": one.text, "tokens": tokens, "finish": one.finish}
                stream.write(json.dumps(row) + "\n")


def _key(conversation: Conversation, max_tokens: int) -> str:
    text = json.dumps([max_tokens, [(one.role, one.content) for one in conversation]])
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
