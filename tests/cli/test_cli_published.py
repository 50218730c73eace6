"""masstool_published from the command line: trained, evaluated, and plain about tools that it was not trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_samples import Run
from tests.training.learnable import learnable, tiny_source
from toolscout.models.encoders.export import export

pytestmark = pytest.mark.slow


def test_it_is_trained_and_evaluated_on_its_own_catalogue(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnable().save(tmp_path / "data")
    export(tiny_source(tmp_path / "source"), tmp_path / "encoder")
    monkeypatch.setenv("TOOLSCOUT_ENCODER", str(tmp_path / "encoder"))
    prompts = [{"_id": f"p{n}", "text": f"w{n} w1", "split": "train", "source": "s"} for n in range(60, 80)]
    (tmp_path / "chat").mkdir()
    (tmp_path / "chat" / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    words = [f"no_tool={tmp_path / 'chat'}", "epochs=2", "batch=40", "epsilon=0.3", "device=cpu"]
    settings = [word for setting in words for word in ("--option", setting)]
    done = run("train", "data", "--retriever", "masstool_published", "--out", "model", *settings)
    assert done.exit_code == 0, done.output
    assert "recall@3" in done.stdout
    done = run("evaluate", "data", "--retriever", "model", "--json", "rows.jsonl")
    assert done.exit_code == 0, done.output
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (row["retriever"], row["failed"], row["options"]["no_tool"]) == ("masstool_published", 0, "chat")
    assert str(tmp_path) not in json.dumps(row)
    done = run("evaluate", "data:dev", "--retriever", "model")
    assert (done.exit_code, "shares 40 of its 40 requests" in done.stderr) == (2, True)
    (tmp_path / "tools.jsonl").write_text('{"namespace": "n", "name": "lion", "description": "roars"}\n')
    assert run("add", "tools.jsonl", "--no-embed").exit_code == 0
    done = run("search", "a lion", "--retriever", "model")
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert "cannot search n/lion before it is trained on them; run: toolscout train DATA --retriever" in said
