"""The toolscout command."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from toolscout import __version__
from toolscout.cli import (
    ablate,
    add,
    agent,
    codes,
    compare_with_baseline,
    copy,
    demo,
    doctor,
    encoder,
    evaluate,
    feedback,
    index,
    keys,
    log,
    mcp,
    need,
    need_data,
    output,
    permissions,
    reproduce,
    results,
    retrievers,
    scan,
    search,
    serve,
    sharegpt,
    split,
    synth,
    tools,
    top,
    train,
)
from toolscout.cli.common import DEFAULT_STORE, Globals, Group, RayCommand

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 there are tools to use, 1 there are none, 2 wrong use or bad input.",
)
encoder_app = typer.Typer(no_args_is_help=True, help="The sentence encoder that vectors come from.")
log_app = typer.Typer(no_args_is_help=True, help="What was recorded of requests and the tools they used.")


@app.callback()
def options(
    ctx: typer.Context,
    store: Annotated[
        str,
        typer.Option(
            envvar="TOOLSCOUT_STORE",
            metavar="PATH|URL",
            help="The catalogue: one file, or a PostgreSQL database (postgresql://host/database).",
        ),
    ] = DEFAULT_STORE,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable",
            envvar="TOOLSCOUT_DURABLE",
            help="Sync every commit to the disk, so that a loss of power takes nothing that was acknowledged.",
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error was raised.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda asked: _print_version(asked), help="Show the version."
        ),
    ] = False,
) -> None:
    """Find an agent the few tools it needs among ten thousand, and say so honestly when none fits."""
    ctx.obj = Globals(store, debug)
    if durable:  # an environment variable, so that processes started by a command follow it too
        os.environ["TOOLSCOUT_DURABLE"] = "1"


def _print_version(wanted: bool) -> None:
    if wanted:
        output.write(f"toolscout {__version__}")
        raise typer.Exit


app.command(cls=add.AddCommand)(add.add)
app.command(cls=add.AddCommand)(scan.scan)
app.command("list")(tools.list_tools)
app.command()(tools.show)
app.command()(tools.remove)
app.command()(search.search)
app.command()(need.need)
app.command()(agent.agent)
app.command()(serve.serve)
app.command()(top.top)
app.command()(mcp.mcp)
app.command()(mcp.approve)
app.command(cls=RayCommand)(add.embed)
app.command()(tools.alias)
app.command()(permissions.grant)
app.command()(permissions.revoke)
app.command()(feedback.feedback)
app.command()(copy.copy)
app.add_typer(keys.app, name="keys")
app.add_typer(index.app, name="index")
evaluate.register(app)
app.command("compare-with-baseline")(compare_with_baseline.compare_with_baseline)
app.command(cls=RayCommand)(train.train)
app.command(cls=RayCommand)(ablate.ablate)
app.command(cls=RayCommand)(reproduce.reproduce)
app.command()(results.results)
app.command()(codes.codes)
app.command()(split.split)
app.command()(sharegpt.export)
app.command("import")(sharegpt.import_)
app.command("need-data")(need_data.need_data)
app.command(cls=RayCommand)(synth.synth)
app.command("synth-train")(synth.synth_train)
log_app.command()(log.export)
app.add_typer(log_app, name="log")
app.command()(retrievers.retrievers)
encoder_app.command("list")(encoder.list_encoders)
encoder_app.command()(encoder.check)
encoder_app.command()(encoder.compare)
encoder_app.command()(encoder.fit)
encoder_app.command()(encoder.export)
app.add_typer(encoder_app, name="encoder")
app.command()(doctor.doctor)
app.command()(demo.demo)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print "?" for a character that the terminal lacks
    app()
