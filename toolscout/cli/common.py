"""Parts that several commands share: options, opening a catalogue or dataset, reading a request, error handling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer.core import TyperGroup

from toolscout.cli import output
from toolscout.core.answer import Level
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, StoreError, ToolscoutError

if TYPE_CHECKING:
    from toolscout.retrievers.base import Retriever
    from toolscout.scout import Scout
    from toolscout.stores.base import Store

NONE, WRONG, BROKEN, INTERRUPTED = 1, 2, 70, 130
DEFAULT_STORE = "toolscout.db"
NO_RERANKER = "none"
MAX_INPUT_CHARS = 100_000

Listed = Literal["table", "json"]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="PATH", help="The catalogue file, as the global option.")
]
RetrieverOption = Annotated[
    str | None,
    typer.Option(
        "--retriever", metavar="NAME|FOLDER", help="A method by name, or a model folder.", show_default="hybrid"
    ),
]
PartsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        metavar="NAME|FOLDER",
        help="What hybrid fuses, or the one retriever that rewrite or rerank searches with; may be repeated.",
        show_default="hybrid: bm25, dense; rewrite, rerank: hybrid",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Set an option of the method, PART.KEY=VALUE one of a part; may be repeated.",
    ),
]
EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="FOLDER|URL",
        help="Make vectors with this encoder: a folder, or an embeddings endpoint (https://host/v1?model=NAME); "
        "settings follow a question mark.",
        show_default="$TOOLSCOUT_ENCODER, else the one in use, else the package's",
    ),
]
RerankOption = Annotated[
    str | None,
    typer.Option(
        "--rerank",
        metavar="default|FOLDER|URL|chat:MODEL|none",
        help="Have this reranker score the first 20 tools: --retriever rerank --option reranker=… over the retriever.",
    ),
]
LevelOption = Annotated[
    Level | None,
    typer.Option(
        "--level",
        help="How sure the verdict must be before tools are offered: lenient offers them most often, strict least.",
        show_default="balanced",
    ),
]
RerankByDefaultOption = Annotated[
    str | None,
    typer.Option(
        "--rerank",
        metavar="default|FOLDER|URL|chat:MODEL|none",
        help="Have this reranker score the first 20 tools: --retriever rerank --option reranker=… over the retriever.",
        show_default="the package's, where no other retriever is named",
    ),
]
LlmOption = Annotated[
    str | None,
    typer.Option(
        "--llm",
        metavar="URL|FOLDER|smollm2|rules",
        help="Have this language model rewrite requests: --retriever rewrite --option llm=…",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model to ask at the URL of --llm.")
]
AllowTargetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TARGET",
        help="Call tools of the catalogue at this target: an address, the command line of an MCP server, "
        "module:function or module:*; may be repeated.",
    ),
]
LogJsonOption = Annotated[
    bool, typer.Option("--log-json", help="Log on stderr as JSON, a line for each request, with its X-Request-Id.")
]
OtelOption = Annotated[
    bool,
    typer.Option("--otel", help="Send traces and metrics by OpenTelemetry, as OTEL_* variables say; also if they ask."),
]
OtelContentOption = Annotated[
    bool,
    typer.Option("--otel-content", help="As --otel, with the texts of requests, arguments and results in the spans."),
]
RequestArgument = Annotated[
    str, typer.Argument(metavar="REQUEST", help='What should be done, in words; "-" reads stdin.')
]
OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it: a new or empty folder.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Tools by id: namespace/name.")]


@dataclass(frozen=True, slots=True)
class Globals:
    """The global options: those written before the command's name."""

    store: Path = Path(DEFAULT_STORE)
    debug: bool = False


class Group(TyperGroup):
    """The group of all commands: prints any error in one line and ends with the matching exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raise typer.Exit with WRONG, BROKEN or INTERRUPTED where it fails."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except KeyboardInterrupt:
            output.note("nothing is lost: what was committed stays", label="interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            output.print_error(error, isinstance(ctx.obj, Globals) and ctx.obj.debug)
            if isinstance(error, ToolscoutError | OSError):
                raise typer.Exit(WRONG) from None
            output.note("this should not happen; please report it with what --debug shows")
            raise typer.Exit(BROKEN) from None


def store_path(ctx: typer.Context, given: Path | None) -> Path:
    """Return the catalogue's path: the command's --store, else the global one. Raises StoreError for a URL."""
    from toolscout.stores import check_path

    path = given or (ctx.obj.store if isinstance(ctx.obj, Globals) else Path(DEFAULT_STORE))
    check_path(path)
    return path


def existing_path(ctx: typer.Context, given: Path | None) -> Path:
    """Return the catalogue's path as store_path does; raises StoreError where no catalogue exists there."""
    path = store_path(ctx, given)
    if not path.exists():
        raise StoreError(
            f"there is no catalogue at {path}; make one with: toolscout add SOURCE, or name it with --store"
        )
    return path


def open_store(ctx: typer.Context, given: Path | None) -> Store:
    """Open the catalogue's store without building a search index; raises StoreError where there is none."""
    path = existing_path(ctx, given)
    from toolscout import stores

    return stores.open_store(path)


def open_scout(
    ctx: typer.Context,
    given: Path | None,
    retriever: str | None = None,
    settings: Sequence[str] = (),
    parts: Sequence[str] = (),
    encoder: str | None = None,
    rerank: str | None = None,
    level: Level | None = None,
) -> Scout:
    """Open the catalogue with a search index, by the given retriever, its settings, parts, encoder and reranker.

    Raises StoreError where there is no catalogue.
    """
    path = existing_path(ctx, given)
    from toolscout.scout import Scout

    return Scout.open(path, retriever_to_open(retriever, rerank, settings, parts), encoder=encoder, level=level)


def retriever_to_open(
    retriever: str | None, rerank: str | None, settings: Sequence[str] = (), parts: Sequence[str] = ()
) -> str | Retriever | Callable[[], Retriever]:
    """Return what Scout.open takes: a name or folder; where there are settings, parts or a reranker, a function.

    With a model folder or an encoder in the settings, an open retriever: its index is built at each start.
    """
    from toolscout.retrievers.registry import available

    rerank = None if rerank == NO_RERANKER else rerank
    chosen = partial(chosen_retriever, retriever, rerank, settings, parts)
    if rerank is None and not settings and not parts:
        return chosen()
    named = [one for one in (retriever, *parts) if one is not None]
    keys = [one.partition("=")[0].rpartition(".")[2] for one in settings]
    if "encoder" in keys or any(one not in available() for one in named):
        return chosen()
    return cast("Callable[[], Retriever]", chosen)


def chosen_retriever(
    retriever: str | None, rerank: str | None, settings: Sequence[str] = (), parts: Sequence[str] = ()
) -> str | Retriever:
    """Return the retriever's name or folder, or an open retriever where there are settings, parts or a reranker."""
    from toolscout.scout import DEFAULT_RETRIEVER

    name = retriever or DEFAULT_RETRIEVER
    if rerank is None and not settings and not parts:
        return name
    from toolscout.retrievers.opening import open_retriever

    if rerank is not None and name == "rerank":
        settings, rerank = [*settings, f"reranker={rerank}"], None
    opened, _ = open_retriever(name, settings, parts)
    opened.remove(opened.ids())  # a part may have been saved with another catalogue
    if rerank is None:
        return opened
    from toolscout.models.rerankers.opening import DEFAULT, default_options
    from toolscout.retrievers.rerank.retriever import Rerank, RerankOptions

    more = default_options() if rerank == DEFAULT else {}
    return Rerank(RerankOptions(reranker=rerank, **more), [opened])


def reranker_or_default(retriever: str | None, rerank: str | None) -> str | None:
    """The reranker of a command whose user waits for a language model anyway.

    The one that is named; where none is, that of the package, unless another retriever is named.
    """
    from toolscout.models.rerankers.opening import DEFAULT
    from toolscout.scout import DEFAULT_RETRIEVER

    if rerank is None and retriever in (None, DEFAULT_RETRIEVER):
        return DEFAULT
    return rerank


def rewriting(
    retriever: str | None, settings: Sequence[str] | None, llm: str | None, model: str | None
) -> tuple[str | None, list[str]]:
    """Return the retriever and its settings; --llm and --model select `rewrite` and become settings of it.

    Raises typer.BadParameter where another retriever was named.
    """
    given = [f"{key}={value}" for key, value in {"llm": llm, "model": model}.items() if value is not None]
    if not given:
        return retriever, list(settings or ())
    if retriever not in (None, "rewrite"):
        raise typer.BadParameter("they are for --retriever rewrite", param_hint="--llm, --model")
    return "rewrite", [*(settings or ()), *given]


def check_model(llm: str, model: str) -> None:
    """Raise typer.BadParameter where --model is given and --llm is not a URL: only an endpoint has several models."""
    if model and not llm.lower().startswith(("http://", "https://")):
        raise typer.BadParameter("it is for an endpoint; give its URL with --llm", param_hint="--model")


def request_text(given: str) -> str:
    """Return the request, read from stdin where it is "-". Raises BadRequest where it is empty."""
    text = sys.stdin.buffer.read(MAX_INPUT_CHARS).decode(errors="replace") if given == "-" else given
    if not clean_text(text):
        raise BadRequest("the request is empty; say in words what should be done")
    return text


def tenant_of(store: Store, principal: str) -> str:
    """Return the tenant that a principal shares feedback with: the one set with its key, else the principal alone."""
    known = store.principal(principal)
    return known.tenant if known else principal


def print_measurements(rows: Iterable[dict[str, Any]], file: Path | None) -> None:
    """Print the rows of a benchmark as one table; append each row to `file`, if any, as soon as it is measured."""
    from toolscout.evaluation import row
    from toolscout.evaluation.bench import speed

    table = output.table("tools", "measurement", "value", "target", grow="measurement")
    for measured in rows:
        if file is not None:
            row.append(file, measured)
        for line in speed.lines(measured):
            table.add_row(f"{measured['tools']:,}", line.name, line.value, line.target)
    output.stdout().print(table)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 tool", "2,000 tools"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
