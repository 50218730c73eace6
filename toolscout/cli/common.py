"""Parts that several commands share: options, opening a catalogue or dataset, reading a request, error handling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer.core import TyperCommand, TyperGroup

from toolscout.cli import output
from toolscout.core.answer import Level
from toolscout.core.tool import clean_text
from toolscout.errors import BadRequest, StoreError, ToolscoutError

if TYPE_CHECKING:
    from toolscout.distributed.cluster import Cluster
    from toolscout.distributed.executor import ClusterExecutor
    from toolscout.papers.jobs import Job, JobResult
    from toolscout.retrievers.base import Retriever
    from toolscout.scout import Scout
    from toolscout.stores.base import Store
    from toolscout.synth.saved_texts import Completing

NONE, WRONG, BROKEN, INTERRUPTED = 1, 2, 70, 130
DEFAULT_STORE = "toolscout.db"
NO_RERANKER = "none"
MAX_INPUT_CHARS = 100_000

Listed = Literal["table", "json"]
StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="PATH|URL", help="The catalogue, as the global option.")
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
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work on a Ray cluster: HOST:PORT, or auto for the one that runs on this machine; without an address "
        "one is started on this machine, and stopped in the end.",
        show_default=False,
    ),
]
OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it: a new or empty folder.")]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Tools by id: namespace/name.")]


@dataclass(frozen=True, slots=True)
class Globals:
    """The global options: those written before the command's name."""

    store: str = DEFAULT_STORE
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


class RayCommand(TyperCommand):
    """A command with the option --ray, whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give --ray the address that follows it, or that of a cluster to be started."""
        from toolscout.distributed.cluster import LOCAL, is_address

        before = args[: args.index("--")] if "--" in args else args
        for place, word in enumerate(before):
            if word == "--ray" and not (place + 1 < len(before) and is_address(before[place + 1])):
                args = [*args[:place], f"--ray={LOCAL}", *args[place + 1 :]]
        return super().parse_args(ctx, args)


@contextmanager
def on_ray(address: str | None) -> Iterator[Cluster | None]:
    """Connect to the cluster that --ray names while the block runs, and say so; None where there is no --ray."""
    if address is None:
        yield None
        return
    from toolscout.distributed.cluster import connected

    with connected(address) as cluster:
        output.note(cluster.about, label="ray")
        yield cluster


@contextmanager
def executor_on(cluster: Cluster | None, tasks: int) -> Iterator[ClusterExecutor | None]:
    """Give what runs so many tasks on a cluster, where there is one; tasks that still run in the end are stopped."""
    if cluster is None:
        yield None
        return
    from toolscout.distributed.executor import ClusterExecutor

    executor = ClusterExecutor(cluster, tasks)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def jobs_on(
    cluster: Cluster | None, jobs: Sequence[Job], side_by_side: int, stop_after: float
) -> Iterator[Iterator[JobResult]]:
    """Give the results of jobs as they are done: on a cluster where there is one, else so many side by side here."""
    from toolscout.papers.jobs import run_jobs

    with executor_on(cluster, len(jobs)) as executor:
        yield run_jobs(jobs, executor.side_by_side if executor else side_by_side, stop_after, executor)


@contextmanager
def building_on(address: str | None) -> Iterator[None]:
    """Have shards of an index built on the cluster that --ray names while the block runs, where there is one."""
    with on_ray(address) as cluster, executor_on(cluster, cluster.cpus() if cluster else 0) as executor:
        if executor is None:
            yield
            return
        from toolscout.index.builders import built_by

        with built_by(executor, executor.side_by_side):
            yield


@contextmanager
def embedding_on(cluster: Cluster | None, scout: Scout) -> Iterator[None]:
    """Have a Scout embed its tools on a cluster while the block runs, where there is one."""
    if cluster is None:
        yield
        return
    from toolscout.distributed.embedding import ClusterEncoding

    with ClusterEncoding(cluster, scout.encoder_name, output.note) as encode:
        scout.encode_documents, scout.claimed_at_once = encode, encode.claimed_at_once
        yield


def writing_on(cluster: Cluster | None, llm: str, seed: int) -> Completing | None:
    """Return what has a language model write on a cluster, where there is one."""
    if cluster is None:
        return None
    from toolscout.distributed.writing import ClusterWriting

    return ClusterWriting(cluster, llm, seed, output.note)


def store_place(ctx: typer.Context, given: str | None) -> str:
    """Return where the catalogue is, a path or a URL: the command's --store, else the global one.

    Raises StoreError for a URL of no kind of store.
    """
    from toolscout.stores import check_place

    place = given or (ctx.obj.store if isinstance(ctx.obj, Globals) else DEFAULT_STORE)
    check_place(place)
    return place


def existing_place(ctx: typer.Context, given: str | None) -> str:
    """Return where the catalogue is, as store_place does; raises StoreError where no file is there."""
    from toolscout.stores import may_exist

    place = store_place(ctx, given)
    if not may_exist(place):
        raise StoreError(
            f"there is no catalogue at {place}; make one with: toolscout add SOURCE, or name it with --store"
        )
    return place


def open_store(ctx: typer.Context, given: str | None) -> Store:
    """Open the catalogue's store without building a search index; raises StoreError where there is none."""
    place = existing_place(ctx, given)
    from toolscout import stores

    return stores.open_store(place)


def open_scout(
    ctx: typer.Context,
    given: str | None,
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
    place = existing_place(ctx, given)
    from toolscout.scout import Scout

    return Scout.open(place, retriever_to_open(retriever, rerank, settings, parts), encoder=encoder, level=level)


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


def seed_numbers(text: str) -> list[int]:
    """Return the seeds of a list as "0,1,2"; raises BadRequest for any other text."""
    try:
        return list(dict.fromkeys(int(one) for one in text.split(",")))
    except ValueError:
        raise BadRequest(f"seeds must be numbers with commas between them, got {text!r:.80}") from None
