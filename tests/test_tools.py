"""Do the tools of the house tell the truth: soak, the count of lines, red and green, CI?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tree import ROOT, named
from tests.tree import files as tree_files

RUN_SECONDS_MAX = 120


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "tools/soak.py", "--cores", "1", *arguments)


def test_soak_passes_when_every_run_passes() -> None:
    done = soak("--runs", "2", "tests/unit/test_leaks.py")
    assert done.returncode == 0, done.stdout
    assert "run 2 of 2 passed" in done.stdout


def test_soak_ends_with_the_first_run_that_fails_and_names_it(tmp_path: Path) -> None:
    second = tmp_path / "test_second.py"
    second.write_text(
        "from pathlib import Path\n\n\ndef test_the_second_time() -> None:\n"
        "    seen = Path(__file__).with_suffix('.seen')\n"
        "    assert not seen.exists()\n    seen.touch()\n"
    )
    done = soak("--runs", "3", str(second))
    assert done.returncode == 1
    assert "run 1 of 3 passed" in done.stdout
    assert "run 2 of 3 FAILED" in done.stdout
    assert "run 3" not in done.stdout


def test_hurried_threads_change_all_the_time_in_children_too(tmp_path: Path) -> None:
    test = tmp_path / "test_hurried.py"
    test.write_text(
        "import subprocess, sys\n"
        "def test_hurried():\n"
        "    asked = [sys.executable, '-c', 'import sys; print(sys.getswitchinterval())']\n"
        "    assert float(subprocess.check_output(asked)) < 1e-5 > sys.getswitchinterval()\n"
    )
    assert soak("--runs", "1", "--hurried", str(test)).returncode == 0
    assert soak("--runs", "1", str(test)).returncode == 1


def test_soak_fails_when_its_time_is_over_or_nothing_would_run() -> None:
    done = soak("--runs", "3", "--minutes", "0", "tests/unit/test_leaks.py")
    assert done.returncode != 0
    assert "STOPPED in run 1 of 3" in done.stdout
    assert soak("tests/unit/no_such_test.py").returncode != 0


def test_lines_counts_code_alone(tmp_path: Path) -> None:
    (tmp_path / "durable_cache" / "model").mkdir(parents=True)
    (tmp_path / "durable_cache" / "testing").mkdir()
    (tmp_path / "durable_cache/testing/big.py").write_text("a = 1\n" * 100)
    (tmp_path / "durable_cache/model/small.py").write_text(
        '"""Two lines of\ndocstring."""\n\n# a comment\nA = 1  # beside code\n"""Below."""\n'
        'def f() -> str:\n    """Say."""\n    return """one\ntwo"""\n'
    )
    done = run(sys.executable, "tools/lines.py", str(tmp_path))
    assert done.stdout.split() == ["4", "durable_cache/model", "4", "all"]


def report(path: Path, **ends: str) -> None:
    cases = "".join(
        f'<testcase classname="t" name="{name}">{f"<{end}/>" if end else ""}</testcase>'
        for name, end in ends.items()
    )
    path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")


def test_red_and_green_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "here-test_k.log").touch()
    report(tmp_path / "there-test_k", mended="failure", always="", set_up="error")
    report(tmp_path / "here-test_k", mended="", always="", set_up="")
    done = run(sys.executable, "tools/red_on.py", str(tmp_path), "0123456789ab")
    assert done.returncode == 0
    assert done.stdout.split("\n\n") == [
        "\ngreen on 012345678, green here: 1\n  test_k::always",
        "red on 012345678, green here: 2\n  test_k::mended\n  test_k::set_up\n",
    ]
    (tmp_path / "here-test_stuck.log").touch()
    done = run(sys.executable, "tools/red_on.py", str(tmp_path), "0123456789ab")
    assert done.returncode == 1
    assert "no result on 012345678, no result here: 1\n  test_stuck::(the file)" in done.stdout


def test_nothing_that_failed_is_run_again_until_it_passes() -> None:
    again = ("--last-fail" + "ed", "--" + "lf", "re" + "runs", "fla" + "ky")
    builds = [ROOT / ".ci/run", ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "tools/check.sh"]
    builds += [path for path in tree_files() if named(path).startswith("requirements/")]
    wrong = [
        f"{named(path)}: {word}" for path in builds for word in again if word in path.read_text()
    ]
    assert not wrong, "a test that passes only when run again is mended:\n" + "\n".join(wrong)


@pytest.mark.parametrize("ignored", ["HUP", "INT", "HUP INT TERM"])
def test_the_suite_passes_whatever_signals_it_inherits_as_ignored(ignored: str) -> None:
    done = run(
        *("sh", "-c", f'trap "" {ignored}; exec "$@"', "sh"),
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("tests/compose/test_compose.py", "-k", "signal_ends_a_start"),
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
