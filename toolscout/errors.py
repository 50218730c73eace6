"""Every error a caller may catch. Each message says what went wrong and what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class ToolscoutError(Exception):
    """Base of every error this package raises on purpose.

    `public`: what a caller over a network is told instead, where the message itself names a path or the like.
    """

    def __init__(self, *args: object, public: str = "") -> None:
        """Take the message."""
        super().__init__(*args)
        self.public = public


class BadTool(ToolscoutError, ValueError):
    """A tool record that cannot be used."""


class OriginRefused(BadTool):
    """A tool record from a client or an uploaded file that says how the tool is called."""

    def __init__(self, where: str) -> None:
        """Say where it stands and what to do instead."""
        super().__init__(
            f"{where}: a tool may not bring an origin here, which says what is run when the tool is called; leave it "
            "out, or add the tool from its server or document on the machine itself"
        )


class BadSource(ToolscoutError, ValueError):
    """A source of tools that cannot be read."""


class DuplicateTool(ToolscoutError, ValueError):
    """Two different tools claim the same id."""


class UnknownTool(ToolscoutError, KeyError):
    """A tool id that the catalogue does not hold."""

    def __str__(self) -> str:
        """KeyError would print the message in quotes."""
        return str(self.args[0]) if self.args else ""


class BadRequest(ToolscoutError, ValueError):
    """A search that cannot be answered as asked (empty request, k below 1, …)."""


class Unauthorized(ToolscoutError):
    """A caller that nobody knows: no key where one is needed, or one that is not valid."""


class InvalidToken(Unauthorized):
    """A token of a sign-in service that is malformed, expired, not for this server, or signed by nobody known."""


class Forbidden(ToolscoutError):
    """A caller that may not do this, such as changing the catalogue without an admin's key."""


class InsufficientScope(Forbidden):
    """A token without the scopes that this server demands."""

    def __init__(self, scopes: Sequence[str]) -> None:
        """Name the scopes."""
        super().__init__(f"this server wants a token with the scopes: {' '.join(scopes)}; sign in again with these")
        self.scopes = tuple(scopes)


class SignInUnavailable(ToolscoutError):
    """A token that cannot be checked now, since its sign-in service does not answer; `retry_after`: seconds."""

    def __init__(self, message: str, retry_after: int) -> None:
        """Say what happened; callers are told less."""
        super().__init__(message, public="the sign-in service cannot be asked now; try again in a moment")
        self.retry_after = retry_after


class UnknownPrincipal(ToolscoutError, LookupError):
    """A principal that the catalogue does not know."""


class BadDataset(ToolscoutError, ValueError):
    """A dataset folder that is malformed or half there."""


class Leak(BadDataset):
    """A split that shares requests with what a model was trained or selected on."""


class BadModel(ToolscoutError, ValueError):
    """A model folder that cannot be opened."""


class StoreError(ToolscoutError):
    """A store that cannot be opened, read or written."""


class NewerStore(StoreError):
    """A store written by a newer version of toolscout."""


class CorruptStore(StoreError):
    """A file that is not a readable store."""


class ReadOnlyStore(StoreError):
    """A store that may be read but not written."""


class DiskFull(StoreError):
    """No room left to write; the last committed state is intact."""


class StoreUnavailable(StoreError):
    """A store that cannot be reached, or is too busy, at the moment; the same call may succeed a little later."""


class MissingEncoder(ToolscoutError):
    """No sentence encoder is installed; words alone can still answer."""


class EncoderUnavailable(MissingEncoder):
    """An encoder that cannot answer now: its endpoint is down, refuses, or would cost more than is allowed."""


class BadVector(BadModel, EncoderUnavailable):
    """An encoder that could be opened and gave a vector without a direction; words alone can still answer."""


class MissingLanguageModel(ToolscoutError, ImportError):
    """No language model is installed where one is asked for."""


class LanguageModelError(ToolscoutError):
    """A language model that did not answer as it was asked to; retrieval can go on without it.

    `results` has one entry for each conversation of the call: its completions, the error that it met, or None where it
    was not asked any more. None where the error stands for one conversation alone.
    """

    results: Sequence[object] | None = None

    def each(self, count: int) -> list[object]:
        """What each of so many conversations got: its completions, or why it has none."""
        known = self.results if self.results is not None and len(self.results) == count else [None] * count
        return [self if one is None else one for one in known]


class EndpointError(LanguageModelError):
    """An endpoint that cannot be reached, or that refuses; `status` is its last HTTP status, if it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """Say what happened and what to do."""
        super().__init__(message)
        self.status = status


class NotYet(EndpointError):
    """An endpoint that may not be asked again in the time that there is; nothing was sent."""


class NotCached(LanguageModelError):
    """A completion that is asked for offline and was never recorded."""


class BadCompletion(LanguageModelError, ValueError):
    """What a language model wrote, or was given to read, cannot be used."""

    def __init__(self, message: str, results: Sequence[object] | None = None) -> None:
        """Say what was wrong; keep what the other conversations got."""
        super().__init__(message)
        self.results = results


class TrainingStopped(ToolscoutError):
    """A training that cannot go on; what it had reached is kept."""


class ClusterError(ToolscoutError):
    """A Ray cluster that cannot be reached, or that cannot do the work."""


class OutOfMemory(ToolscoutError):
    """The device has too little memory for the options given."""


class NeedsTraining(ToolscoutError):
    """A method that cannot take these tools without training."""

    def __init__(self, ids: Sequence[str], command: str) -> None:
        """Name the tools and the command that trains the method on them."""
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(
            f"this method cannot search {shown or 'anything'} before it is trained{' on them' * bool(shown)}; "
            f"run: {command}"
        )
        self.ids = tuple(ids)
        self.command = command


class MissingExtra(ToolscoutError, ImportError):
    """A part of toolscout whose optional dependencies are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        """Name the feature and print the exact line that installs it."""
        super().__init__(
            f"{feature} needs the optional dependencies of '{extra}'; run: pip install 'toolscout[{extra}]'"
        )
        self.extra = extra


class MissingLibrary(ToolscoutError, ImportError):
    """A library of others that an integration works with: not installed, or of another version."""

    def __init__(self, feature: str, requirement: str) -> None:
        """Name the feature and print the exact line that installs the library."""
        super().__init__(f"{feature} needs {requirement}; run: pip install '{requirement}'")
        self.requirement = requirement
