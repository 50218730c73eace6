"""Arguments and schemas of strangers: a check ends soon and says little, whatever they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest
from hypothesis import strategies as st

from toolscout.core import argument_checks as module
from toolscout.core.argument_checks import (
    MAX_LINE,
    MAX_PROBLEMS,
    MAX_TOLD,
    TOO_MUCH,
    problems,
    repaired,
    value_problems,
)
from toolscout.errors import BadRequest
from toolscout.serving.gateway.argument_process import MAX_BYTES, ArgumentChecks
from toolscout.serving.gateway.argument_worker import check_line

pytestmark = pytest.mark.timing

MB = 1 << 20
LONG_NAME = "K" * 500_000
READY = "import sys, time, os; print('ready', flush=True); line = sys.stdin.readline(); "
FREE: dict[str, Any] = {"type": "object"}


def having(node: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": node}}


def tree(depth: int) -> Any:
    return [tree(depth - 1), tree(depth - 1)] if depth else 1


def chained() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(40):
        value = {"k" * 20_000: value, **{f"x{number}": number for number in range(100)}}
    return value


def of_both(first: str, second: str) -> list[dict[str, Any]]:
    return [{"type": "array", "items": {"$ref": f"#/$defs/{name}"}} for name in (first, second)]


ENTANGLED = {
    "properties": {"v": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"anyOf": of_both("a", "b")}, "b": {"oneOf": of_both("b", "a")}},
}
MANY = {f"key_{number}": 1 for number in range(2000)}
ATTACKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pattern that goes back": ({"v": "a" * 28 + "!"}, having({"pattern": "^(a+)+$"})),
    "wrong items": ({"v": ["x"] * 200_000}, having({"type": "array", "items": {"type": "integer"}})),
    "right items": ({"v": [1] * 500_000}, having({"type": "array", "items": {"type": "integer"}})),
    "pattern properties": (MANY, {"patternProperties": {f"^x{n}.*y$": {"type": "string"} for n in range(600)}}),
    "patterns of many instructions": (
        MANY,
        {"patternProperties": {f"[ab]*a[ab]{{900}}c{n}": {"type": "string"} for n in range(600)}},
    ),
    "patterns of many classes": (
        MANY,
        {"patternProperties": {r"\pL" * 1300 + str(n): {"type": "string"} for n in range(600)}},
    ),
    "a large automaton": ({"v": "ab" * (MB // 2)}, having({"pattern": "(([ab]{0,30}a){0,30})c"})),
    "one text, many forms": (
        {"v": "x" * MB},
        having({"anyOf": [{"type": "integer", "minimum": number} for number in range(10_000)]}),
    ),
    "one text, many patterns": ({"v": "x" * MB}, having({"anyOf": [{"pattern": f"^b{n}"} for n in range(10_000)]})),
    "one list, many choices": ({"v": [1] * 300_000}, having({"anyOf": [{"enum": [n]} for n in range(10_000)]})),
    "one list, many values": ({"v": [1] * 1000}, having({"anyOf": [{"const": [1] * n} for n in range(1000)]})),
    "items that differ": ({"v": list(range(400_000))}, having({"uniqueItems": True})),
    "unknown names": ({f"k{n}": 1 for n in range(90_000)}, {"properties": {"a": {}}, "additionalProperties": False}),
    "missing names": ({}, {"required": [f"r{number}" for number in range(100_000)]}),
    "many visits of many names": (
        {f"k{n}": 1 for n in range(90_000)},
        {"allOf": [{"properties": {"a": {}}, "minProperties": n} for n in range(5000)]},
    ),
    "a long name over many": (
        {LONG_NAME: {f"x{n}": n for n in range(50_000)}},
        {"additionalProperties": {"additionalProperties": {"type": "string"}}},
    ),
    "long names within each other": (chained(), {"additionalProperties": {"$ref": "#"}, "maxProperties": 50}),
    "forms within forms": ({"v": tree(15)}, ENTANGLED),
    "long numbers, many forms": (
        {"v": [10**4000] * 240},
        having({"items": {"not": {"anyOf": [{"multipleOf": 0.7 + n / 1000} for n in range(1000)]}}}),
    ),
    "problems that are written in vain": (
        {"v": [{f"z{n}": 1 for n in range(25)} for _ in range(4000)]},
        having({"items": {"anyOf": [{"properties": {"p" * 90: {}}, "additionalProperties": False}, {}]}}),
    ),
    "a long way to a part": ({"v": [1] * 3000}, having({"items": {"$ref": "#" + "/$defs" * 100_000}})),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_check_ends_soon_and_says_little(attack: str) -> None:
    given, schema = ATTACKS[attack]
    began = time.process_time()
    found = problems(given, schema)
    assert time.process_time() - began < 4  # a tenth of that where nothing else runs
    assert found
    assert len(found) <= MAX_PROBLEMS + 1
    assert sum(map(len, found)) < MAX_TOLD + 100


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_repair_ends_soon_and_says_little(attack: str) -> None:
    given, schema = ATTACKS[attack]
    began = time.process_time()
    _, done = repaired(given, schema)
    assert time.process_time() - began < 8
    assert len(done) <= module.MAX_NOTES + 1
    assert all(len(line) < MAX_LINE for line in done)


def test_what_is_not_checked_to_the_end_does_not_fit() -> None:
    schema = having({"type": "array", "items": {"type": "integer"}})
    assert problems({"v": [1] * 50_000}, schema) == []
    assert problems({"v": [1] * 500_000}, schema) == [TOO_MUCH]
    negated = having({"not": {"type": "array", "items": {"type": "string"}}})
    assert problems({"v": ["1"] * 500_000}, negated) == [TOO_MUCH]


def test_lists_within_lists_beyond_python_do_not_fit() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    assert problems({"v": value}, having({"enum": [1]})) == [TOO_MUCH]
    assert repaired({"v": value}, having({"enum": [1]})) == ({"v": value}, [])


def test_each_check_has_its_own_steps() -> None:
    checker = module.Checker({"type": "array", "items": {"type": "integer"}})
    assert [checker.problems([1] * 60_000) for _ in range(3)] == [[], [], []]


def test_an_enum_may_have_any_number_of_values() -> None:
    values = [f"v{number}" for number in range(200_000)]
    assert value_problems(["v7", "v199999"], {"items": {"enum": values}}) == []


def test_values_are_quoted_from_their_beginning() -> None:
    (found,) = value_problems("x" * MB, {"const": [["y" * MB, {"z" * MB: [1] * 1000}]]})
    assert found == 'the object of arguments must be [["' + "y" * 57 + "…"
    (found,) = value_problems("x" * MB, {"type": "integer"})
    assert found.endswith('not a string "' + "x" * 59 + "…")
    (found,) = value_problems("x", {"enum": ["y" * 50] * 100})
    assert len(found) < MAX_LINE
    assert found.endswith('… (100 in all); not "x"')


def test_a_repair_quotes_little_and_says_when_there_was_more() -> None:
    wrong = {"v": ["1" * 400] * 1000}
    better, done = repaired(wrong, having({"type": "array", "items": {"type": "integer"}}))
    assert better["v"][:900] == [int("1" * 400)] * 900
    assert done[-1] == "and more"
    assert sum(map(len, done)) < 200 * len(done)


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        (r"^\u0041\u{1F600}\uD83D\uDE00$", "A😀😀", "AA"),
        (r"^[\u00e0-\u00ff]+$", "àéÿ", "abc"),
        (r"^\cA\/\-\_$", "\x01/-_", "A/-_"),
        (r"^\\u0041$", r"\u0041", "A"),
        (r"^\d+\Z", "12", "١٢"),
        (r"^(?<year>\d{4})-(?:0[1-9]|1[0-2])$", "2026-11", "2026-13"),
        (r"^\p{Lu}", "Äpfel", "apfel"),
        ("^.$", "\ud800", ""),
        ("b$", "ab", "ab\n"),
    ],
)
def test_patterns_are_read_as_javascript_reads_them(pattern: str, fits: str, does_not: str) -> None:
    assert value_problems(fits, {"pattern": pattern}) == []
    assert value_problems(does_not, {"pattern": pattern})
    assert value_problems({fits: 1}, {"patternProperties": {pattern: False}})
    assert value_problems({does_not: 1}, {"patternProperties": {pattern: False}}) == []


UNREADABLE = ["(?!x)y", "(?<=x)", r"(a)\1", "a{1001}", "(", "[", "*", "x" * 5000, "\ud800", r"\pL{1000}"]


@pytest.mark.parametrize("pattern", UNREADABLE)
def test_a_pattern_that_cannot_be_read_forbids_nothing(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    part = {"type": "string", "pattern": pattern}
    for schema in (
        part,
        {"not": part},
        {"not": {"not": part}},
        {"oneOf": [part, {"type": "string"}]},
        {"oneOf": [part, {"allOf": [part]}, {"minLength": 1}]},
        {"not": {"anyOf": [part, part]}},
    ):
        assert value_problems("some text", schema) == [], schema
    named = {"patternProperties": {pattern: {"type": "string"}}, "additionalProperties": False}
    assert value_problems({"name": 1}, named) == []
    assert value_problems({"name": 1}, {"patternProperties": {pattern: True}, "additionalProperties": {}}) == []
    assert repaired({"name": 1}, {**named, "properties": {"a": {}}}) == ({"name": 1}, [])
    assert value_problems(3, {"not": {"type": "integer"}, "properties": {"s": part}})  # what is sure still counts
    assert capfd.readouterr() == ("", "")


def test_a_search_without_memory_for_its_automaton_is_right_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    text = ("ab" * 7 + "ba" * 5 + "a") * 20
    assert value_problems(text + "a" + "b" * 300 + "c", {"pattern": "[ab]*a[ab]{300}c"}) == []
    assert value_problems(text, {"pattern": "[ab]*a[ab]{300}c"})
    assert capfd.readouterr() == ("", "")


def test_the_patterns_of_one_schema_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(module, "_compiled", lambda pattern: (compiled.append(pattern), (None, 0))[1])
    schema = {"patternProperties": {f"^{number}$": {} for number in range(50)}}
    assert problems({str(number): 1 for number in range(1000, 1500)}, schema) == []
    assert len(compiled) == 50


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)
keywords = [
    "type",
    "properties",
    "patternProperties",
    "pattern",
    "items",
    "anyOf",
    "oneOf",
    "not",
    "enum",
    "const",
    "$ref",
]


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.dictionaries(st.text(max_size=3), hostile), st.dictionaries(st.sampled_from(keywords), hostile))
def test_nothing_is_raised_for_any_pair(given: dict[str, Any], schema: dict[str, Any]) -> None:
    assert all(isinstance(line, str) for line in problems(given, schema))
    repaired(given, schema)


# The process of the gateway.


def test_the_process_says_what_the_function_says() -> None:
    async def main() -> None:
        checks = ArgumentChecks()
        schema = having({"type": "integer", "default": 3})
        assert await checks.problems("me", {"v": float("nan")}, schema) == ['"v" must be a finite number']
        for given in ({}, {"v": "x"}, {"v": 1, "ü\ud800": "\n\u2028"}, {"v": 10**400}):
            assert await checks.problems("me", given, schema) == problems(given, schema)
            big = {**given, "more": "x" * 5000}
            assert await checks.repaired("me", big, schema) == (repaired(big, schema)[0], problems(given, schema))
            assert await checks.repaired("me", given, schema) == (repaired(given, schema)[0], problems(given, schema))
        for given, schema in ATTACKS.values():
            wrong = await checks.problems("me", given, schema)
            assert wrong
            assert sum(map(len, wrong)) < MAX_TOLD + 100
        checks.close()

    anyio.run(main)


def test_what_is_too_large_or_cannot_be_written_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        checks = ArgumentChecks(command=["/there/is/no/such/program"])
        for given in ({"v": "x" * MAX_BYTES}, {"v": 10**5000}):
            (wrong,) = await checks.problems("me", given, FREE)
            assert "too large" in wrong or "too many digits" in wrong
            better, (wrong,) = await checks.repaired("me", given, FREE)
            assert better == {}
        (wrong,) = await checks.problems("me", {}, {"description": "x" * (8 * MB)})
        assert "inputSchema is too large" in wrong
        (wrong,) = await checks.problems("me", {}, FREE)
        assert "could not be checked" in wrong

    anyio.run(main)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", READY + code]


def is_there(pid: int) -> bool:
    """Whether a process runs, and is not one that only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 5) -> bool:
    until = time.monotonic() + seconds
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_there(pid)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("time.sleep(60)", "within 0.3 s"),
        ("sys.stdin.close(); time.sleep(60)", "within 0.3 s"),
        ("sys.exit(3)", "could not be checked;"),
        ("print('nonsense', flush=True)", "could not be checked;"),
        ("os.kill(os.getpid(), 11)", "could not be checked;"),
    ],
)
def test_a_process_that_hangs_or_fails_is_replaced(tmp_path: Path, code: str, said: str) -> None:
    note = tmp_path / "pids"
    noted = f"open({str(note)!r}, 'a').write(str(os.getpid()) + chr(10)); "

    async def main() -> None:
        checks = ArgumentChecks(0.3, command=python(noted + code))
        for _ in range(2):
            began = time.monotonic()
            (wrong,) = await checks.problems("me", {"v": 1}, FREE)
            assert said in wrong
            assert time.monotonic() - began < 10
        pids = [int(pid) for pid in note.read_text().split()]
        assert len(set(pids)) == 2
        checks.close()
        assert all(map(gone, pids))

    anyio.run(main)


def test_the_answer_to_a_check_that_was_given_up_is_never_read() -> None:
    told = 'time.sleep(0.2); print(\'{"problems": ["of the first"]}\', flush=True); time.sleep(60)'

    async def main() -> None:
        checks = ArgumentChecks(5, command=python(told))
        with anyio.move_on_after(0.1):
            await checks.problems("me", {}, FREE)
        await anyio.sleep(0.3)
        checks._command = ArgumentChecks()._command
        assert await checks.problems("me", {"v": 1}, having({"type": "string"})) != ["of the first"]
        checks.close()

    anyio.run(main)


def test_the_loop_goes_on_and_others_have_their_turn() -> None:
    """One caller sends ten checks that hang; another one's waits for one of them at most."""

    async def main() -> None:
        checks = ArgumentChecks(
            3, command=python("'slow' in line and time.sleep(60); print('{\"problems\": []}', flush=True)")
        )
        ended: list[str] = []
        lags: list[float] = []

        async def check(caller: str, given: dict[str, Any]) -> None:
            await checks.problems(caller, given, FREE)
            ended.append(caller)

        async def watch() -> None:
            while True:
                began = time.monotonic()
                await anyio.sleep(0.01)
                lags.append(time.monotonic() - began)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for _ in range(10):
                tasks.start_soon(check, "slow", {"v": "slow"})
            await anyio.sleep(0.05)
            tasks.start_soon(check, "quick", {"v": 1})
            with anyio.fail_after(60):
                while "quick" not in ended:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert len(ended) <= 3
        assert max(lags) < 1  # a loop that waits for the process would stand still for three seconds
        checks.close()

    anyio.run(main)


def test_who_waits_too_long_or_among_too_many_is_refused() -> None:
    async def main() -> None:
        checks = ArgumentChecks(5, wait=0.3, command=python("time.sleep(60)"))
        refused: list[str] = []

        async def check() -> None:
            try:
                await checks.problems("me", {}, FREE)
            except BadRequest as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(80):
                tasks.start_soon(check)
            await anyio.sleep(0.1)
            assert len(refused) == 80 - 65  # one is checked, 64 wait
            await anyio.sleep(1)
            assert len(refused) == 79
            tasks.cancel_scope.cancel()
        checks.close()

    anyio.run(main)


def test_the_process_ends_with_the_object_and_with_its_program(tmp_path: Path) -> None:
    async def main() -> int:
        checks = ArgumentChecks()
        await checks.problems("me", {}, FREE)
        return checks._running[0].pid

    assert gone(anyio.run(main))
    code = (
        "import anyio, os, sys; from toolscout.serving.gateway.argument_process import ArgumentChecks; "
        "c = ArgumentChecks()\n"
        "async def main():\n    await c.problems('me', {}, {}); print(c._running[0].pid, flush=True); {}\n"
        "anyio.run(main)"
    )
    for end in ("os._exit(1)", "os.kill(os.getpid(), 9)", "sys.exit(0)"):
        done = subprocess.run([sys.executable, "-c", code.replace("{}\n", f"{end}\n")], capture_output=True, text=True)
        assert gone(int(done.stdout)), done.stderr


def test_a_check_ends_with_a_gateway_that_was_killed(tmp_path: Path) -> None:
    """In the middle of a check nobody reads the end of the input; the process has an alarm of its own."""
    slow = (
        "import toolscout.serving.gateway.argument_worker as w, time; "
        "w.check_line = lambda line: time.sleep(60); w.main()"
    )
    worker = [sys.executable, "-c", slow, "0.2"]
    with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout  # noqa: PT018 - for the types alone
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)  # ignored
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        assert process.wait(10) == -signal.SIGALRM


def test_memory_that_runs_out_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> list[str]:
        raise MemoryError

    monkeypatch.setattr("toolscout.serving.gateway.argument_worker.problems", greedy)
    assert check_line(b'{"repair": false, "arguments": {}, "schema": {}}')["problems"] == [TOO_MUCH]
    nested = b'{"repair": false, "schema": {}, "arguments": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    assert check_line(nested)["problems"] == [TOO_MUCH]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep this limit")
def test_the_process_has_a_limit_of_memory() -> None:
    code = "import toolscout.serving.gateway.argument_worker as w; w._limit_memory(); x = bytearray(2 << 30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert "MemoryError" in done.stderr
