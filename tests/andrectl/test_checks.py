import click
import orjson
import pytest

from andread.rundir import errors
from andread.rundir.errors import BusyError
from andrectl import checks, render
from andrectl.checks import Check


def busy() -> checks.Outcome:
    raise BusyError("someone has it", "wait for them")


def gone() -> checks.Outcome:
    raise FileNotFoundError(2, "No such file", "/x")


def wrong() -> checks.Outcome:
    raise ZeroDivisionError("nobody thought of it")


def test_a_check_that_raises_has_failed_and_hides_no_other() -> None:
    found = checks.perform(
        [
            Check("first", lambda: checks.ok("all 3 are there")),
            Check("lock", busy),
            Check("file", gone),
            Check("code", wrong),
            Check("last", lambda: [checks.warning("a", "do b"), checks.skipped("c")]),
        ]
    )
    assert [(each.name, each.standing) for each in found] == [
        ("first", "ok"),
        ("lock", "failed"),
        ("file", "failed"),
        ("code", "failed"),
        ("last", "warning"),
        ("last", "skipped"),
    ]
    assert (found[1].detail, found[1].hint) == ("someone has it", "wait for them")
    codes = [each.code for each in found[1:4]]
    assert codes == [errors.TEMPORARY, errors.NO_INPUT, errors.SOFTWARE]
    assert checks.exit_code(found) == errors.TEMPORARY, "that of the first"


def test_warnings_and_what_was_skipped_are_no_failure() -> None:
    found = [checks.ok(), checks.warning("a"), checks.skipped("b")]
    assert checks.exit_code(found) == errors.OK
    assert checks.exit_code([*found, checks.failed("c")]) == errors.DATA
    assert checks.summary([*found, checks.failed("c")]) == "1 ok, 1 warning, 1 failed, 1 skipped"


def test_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    look = Check("sizes", lambda: checks.failed("x\x1b[2Jy\nz", "mend it"))
    found = checks.perform([look, Check("a", lambda: checks.ok("fine"))])
    lines = click.unstyle(checks.text(found)).splitlines()
    assert lines == ["✗ sizes  x [2Jy z", "         hint: mend it", "✓ a      fine"]
    render.json(checks.payload(found))
    told = orjson.loads(capsys.readouterr().out)
    assert told["schema"] == render.SCHEMA
    assert (told["passed"], told["exit_code"]) == (False, errors.DATA)
    assert told["checks"][1] == {"name": "a", "standing": "ok", "detail": "fine", "hint": None}
