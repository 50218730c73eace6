"""Opens the models of an agent, each folder once: one model may both pick tools and write text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolscout.errors import BadModel, BadRequest
from toolscout.llm import LanguageModel, open_llm
from toolscout.llm.base import Conversation
from toolscout.retrievers.base import Retriever
from toolscout.retrievers.model_folder import MODEL_FILE
from toolscout.retrievers.opening import open_retriever

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from toolscout.models.language.architecture import Architecture
    from toolscout.retrievers.generative.base import GenerativeRetriever


def is_own(spec: str) -> bool:
    """Return whether the text is the path of a model folder that toolscout saved."""
    return (Path(spec) / MODEL_FILE).is_file()


def _digest(place: Path) -> str:
    """Return a digest of all files of a model, hidden files and folders left out; BadModel where one cannot be read."""
    made = hashlib.blake2b(digest_size=12)
    files = [(path.relative_to(place), path) for path in [place, *place.rglob("*")] if path.is_file()]
    try:
        for name, path in sorted(files):
            if not any(part.startswith(".") for part in name.parts):
                with path.open("rb") as file:
                    made.update(f"{name.as_posix()}\0{hashlib.file_digest(file, 'blake2b').hexdigest()}\n".encode())
    except OSError as error:
        raise BadModel(f"{place} cannot be read ({error}); make its files readable") from None
    return made.hexdigest()


class Models:
    """Opens retrievers and language models by name; a folder that is open already is not opened again."""

    def __init__(self) -> None:
        """Start with no model open."""
        self._opened: dict[Path, Retriever] = {}
        self._digests: dict[Path, str] = {}

    def keep(self, name: str, retriever: Retriever) -> None:
        """Remember an open retriever under its folder `name`; ignored where `name` is no model folder."""
        if is_own(name):
            self._opened[Path(name).resolve()] = retriever

    def fingerprint(self, name: str) -> str:
        """Return a digest of the content of the folder or file `name`, or "" where there is neither."""
        place = Path(name).resolve()
        if not name or not place.exists():
            return ""
        if place not in self._digests:
            self._digests[place] = _digest(place)
        return self._digests[place]

    def retriever(self, name: str) -> tuple[Retriever, str]:
        """Return the retriever of a method name or model folder, and its variant (the folder's name, or "default")."""
        known = self._opened.get(Path(name).resolve()) if is_own(name) else None
        if known is not None:
            return known, Path(name).resolve().name
        opened, variant = open_retriever(name)
        self.keep(name, opened)
        return opened, variant

    def language_model(self, spec: str, model: str = "") -> LanguageModel:
        """Open a language model as open_llm does, or from the folder of a model that generates tool ids.

        Raises BadRequest for the folder of a retriever that generates no text.
        """
        if not is_own(spec):
            return open_llm(spec, model=model)
        from toolscout.retrievers.generative.base import GenerativeRetriever

        opened, variant = self.retriever(spec)
        if not isinstance(opened, GenerativeRetriever):
            raise BadRequest(
                f"{spec} is a {opened.name} model, which finds tools and writes nothing; name a toolgen or toolweaver "
                "model, or another language model"
            )
        return _writer(opened, f"{opened.name}-{variant}")


def _writer(retriever: GenerativeRetriever, name: str) -> LanguageModel:
    from toolscout.llm.local import Local
    from toolscout.retrievers.generative.base import prompt

    def tokens(messages: Conversation) -> list[int]:
        return prompt(retriever, messages)

    return Local(retriever.engine(), _WordsOnlyModel(retriever, name), prompt=tokens)


class _WordsOnlyModel:
    """The text side of a model that also generates tool ids: a token of a tool id ends the text."""

    def __init__(self, retriever: GenerativeRetriever, name: str) -> None:
        self.name = name
        self._retriever = retriever

    @property
    def tokenizer(self) -> Tokenizer:
        return self._retriever.base().tokenizer

    @property
    def ends(self) -> frozenset[int]:
        base = self._retriever.base()
        return base.ends.union(range(base.architecture.vocabulary, len(self._retriever.words())))

    @property
    def architecture(self) -> Architecture:
        return self._retriever.base().architecture

    def chat(self, messages: Sequence[tuple[str, str]], open_turn: bool = True) -> list[int]:
        return self._retriever.base().chat(messages, open_turn)

    def decode(self, ids: Sequence[int]) -> str:
        return self._retriever.base().decode(ids)
