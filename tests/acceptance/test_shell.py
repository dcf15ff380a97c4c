"""Is the command at home in a shell: completed by Tab, with a manual page for every verb?"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import durable_cache
from durable_cache.service.cli import whole_parser
from durable_cache.service.manual import command_page, verb_page
from durable_cache.service.verbs import VERBS

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    made = subprocess.run(
        [sys.executable, "-m", "durable_cache", "completion", "bash"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    path = tmp_path_factory.mktemp("completion") / "durable-cache"
    path.write_text(made.stdout)
    return path


def completed(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of some words behind the command."""
    program = (
        'source "$1"; shift\n'
        "function=$(complete -p durable-cache | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'COMP_WORDS=(durable-cache "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}"\n'
        "COMP_POINT=${#COMP_LINE}\n"
        '"$function" durable-cache "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    shown = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", str(script), *words],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return sorted(line.strip() for line in shown.stdout.splitlines() if line.strip())


def test_bash_completes_verbs_options_and_choices(bash_script: Path) -> None:
    assert set(completed(bash_script, "")) >= set(VERBS)
    assert completed(bash_script, "qu") == ["query"]
    assert completed(bash_script, "query", "--form") == ["--format"]
    offered = completed(bash_script, "query", "a", "--format", "")
    assert offered == sorted(["arrow", "csv", "json", "mcap", "parquet", "table"])
    assert completed(bash_script, "context", "") == ["add", "list", "remove", "use"]
    assert completed(bash_script, "serve", "--log", "e") == ["error"]
    assert "--connect" in completed(bash_script, "status", "--co")


def test_bash_completes_files_where_a_file_is_named(bash_script: Path) -> None:
    (bash_script.parent / "fleet.json5").touch()
    assert completed(bash_script, "serve", "--config", "fl") == ["fleet.json5"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script_with_every_verb(shell: str, run: Run) -> None:
    pytest.importorskip("shtab")
    made = run("completion", shell)
    assert made.returncode == 0, made.stderr
    missing = [verb for verb in VERBS if verb not in made.stdout]
    assert not missing
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run(
            [program, "-n"], input=made.stdout, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


def test_a_shell_nobody_knows_is_named(run: Run) -> None:
    result = run("completion", "bsh")
    assert result.returncode == 2
    assert "'bsh' is none of bash, zsh, fish; did you mean bash?" in result.stderr


def test_whoever_lacks_shtab_is_told(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "hiding.py").write_text(
        "import sys\nsys.modules['shtab'] = None\n"
        "from durable_cache.service.cli import main\nsys.exit(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "hiding.py", "completion", "bash"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "needs the package 'shtab': pip install" in result.stderr


def roff_warnings(page: str) -> str:
    """Return what groff finds wrong with a page; empty where there is no groff."""
    if shutil.which("groff") is None:
        return ""
    made = subprocess.run(
        ["groff", "-man", "-Tutf8", "-Kutf8", "-ww"],
        input=page,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Long words that cannot be broken, as usage lines have them, are no mistake.
    said = [line for line in made.stderr.splitlines() if not re.search("break|adjust", line)]
    return "\n".join(said)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_manual_page(verb: str) -> None:
    if verb in ("lake", "spark"):
        pytest.importorskip("deltalake")
    page = verb_page(verb)
    assert page.startswith('.TH "DURABLE')
    for heading in ("NAME", "SYNOPSIS", "EXIT STATUS"):
        assert f".SH {heading}\n" in page
    assert "\\-\\-json" in page
    assert not roff_warnings(page)


def test_the_page_of_the_command_lists_every_verb() -> None:
    page = command_page()
    plain = page.replace("\\-", "-")
    missing = [verb for verb in VERBS if f".BR durable-cache-{verb} (1)" not in plain]
    assert not missing
    assert not roff_warnings(page)


def test_pages_are_written_into_a_folder(run: Run, tmp_path: Path) -> None:
    done = run("man", "--to", "man1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert sorted(told["pages"]) == sorted(path.name for path in (tmp_path / "man1").iterdir())
    assert {"durable-cache.1", "durable-cache-query.1"} <= set(told["pages"])
    assert run("man", "query").stdout == (tmp_path / "man1/durable-cache-query.1").read_text()
    wrong = run("man", "qurey")
    assert wrong.returncode == 2
    assert "'qurey': no such verb; did you mean query?" in wrong.stderr


def test_the_whole_parser_has_every_verb() -> None:
    pytest.importorskip("deltalake")
    (action,) = [a for a in whole_parser()._actions if hasattr(a, "choices") and a.choices]
    assert set(action.choices or ()) == set(VERBS)


def test_the_version_is_the_distributions_own(run: Run) -> None:
    assert durable_cache.__version__ == version("durable-cache")
    assert run("--version").stdout.strip() == version("durable-cache")
