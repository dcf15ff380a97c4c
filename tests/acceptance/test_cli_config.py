"""Does the command line say what is wrong with a configuration, with the right exit code?"""
# ruff: noqa: E501 - one mistake a line

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import json5
import jsonschema
import pytest

from durable_cache.service.cli import build_parser, parsers_of
from durable_cache.service.verbs import VERBS
from tests.acceptance.conftest import environment_of_tests
from tests.tree import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """{
  connect: { endpoints: ["tcp/127.0.0.1:7447"] },
  plugins: { durable_cache: {
    volumes: { quick: { backend: "memory" } },
    storages: { lab: { key_expr: "lab/**", acknowledge: "memory" } } } } }
"""


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("durable-cache: ")
    return lines[0]


def test_a_good_configuration_is_shown_in_effect(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(GOOD)
    result = run("check-config", "cache.json5")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    ours = shown["plugins"]["durable_cache"]
    assert shown["connect"] == {"endpoints": ["tcp/127.0.0.1:7447"]}
    assert ours["storages"]["lab"]["key_expr"] == "lab/**"
    assert ours["storages"]["lab"]["volume"] == "quick"
    assert ours["state_dir"] == "durable-cache-data"
    assert "lab: lab/** -> memory: this process's memory" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "cache.json5"], "a check creates nothing"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("lab/**", "lab//x"), "plugins.durable_cache.storages.lab.key_expr: 'lab//x'"),
        (("key_expr", "key_exp"), "storages.lab.key_exp: unknown setting; did you mean 'key_expr'?"),
        (('"memory" } }', '"memroy" } }'), "volumes.quick.backend: no backend is called 'memroy'; installed:"),
        (('acknowledge: "memory"', 'acknowledge: "memory", x: 1'), "storages.lab.x: unknown setting"),
        ((', acknowledge: "memory"', ""), "storages.lab.acknowledge: level 'disk' cannot be kept in memory"),
        (('"memory" } }', '"memory", size: 3 } }'), "volumes.quick.size: unknown setting; none is known here"),
        (("connect:", "conect:"), "conect: Zenoh knows no such setting"),
        (('endpoints: ["tcp', 'endpoint: ["tcp'), "connect: Zenoh: unknown field `endpoint`, expected one of"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["check-config", "serve"])
def test_a_mistake_ends_with_2_and_one_clear_line(
    verb: str, change: tuple[str, str], said: str, run: Run, tmp_path: Path
) -> None:
    assert change[0] in GOOD
    (tmp_path / "cache.json5").write_text(GOOD.replace(*change, 1))
    result = run(verb, "--config", "cache.json5")
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert said in one_line(result)
    assert list(tmp_path.iterdir()) == [tmp_path / "cache.json5"], "nothing is silently created"


@pytest.mark.parametrize(
    "text",
    ["a: &a [*a]\n", "".join(f"{n}: &{n} [{f'*{n - 1}, ' * 9}]\n" for n in range(1, 8))],
    ids=["itself", "nine times nine"],
)  # fmt: skip
def test_aliases_that_nobody_can_read_are_refused(text: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.yaml").write_text(f"0: &0 [1]\n{text}")
    result = run("check-config", "cache.yaml")
    assert result.returncode == 2, result.stderr
    assert "aliases (*name) repeat too much, or themselves" in one_line(result)


@pytest.mark.parametrize("number", ["inf", "1e300", "nan", "1e-300", "9" * 30, "-inf"])
@pytest.mark.parametrize(
    "words",
    [("query", "**", "--timeout"), ("query", "**", "--limit"), ("put", "a", "1", "--rate"),
     ("align", "--timeout"), ("top", "--interval"), ("loss", "--interval")],
)  # fmt: skip
def test_a_number_that_nobody_can_wait_for_is_refused(
    words: tuple[str, ...], number: str, run: Run
) -> None:
    result = run(*words[:-1], f"{words[-1]}={number}", "--connect", "tcp/127.0.0.1:1")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert f"{words[-1]}: " in line
    assert "--help" in line


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"HTTP/1.0 200 OK\r\n\r\n[]", "no status of a service"),
     (b"no HTTP", "no HTTP"), (b"", "Remote end closed connection without response"),
     (None, "Connection refused")],
)  # fmt: skip
def test_what_is_no_status_page_is_named(answer: bytes | None, said: str, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer or b"")

        if answer is None:
            server.close()
        else:
            Thread(target=serve, daemon=True).start()
        result = run("status", "--url", url)
    assert result.returncode == 1, result.stderr
    line = one_line(result)
    assert line.startswith(f"durable-cache: {url}: {said}")
    assert "Errno" not in line
    assert line.endswith("is it the address that http.listen names?")


def test_a_missing_file_is_named(run: Run) -> None:
    result = run("serve", "--config", "absent.yaml")
    assert result.returncode == 2
    assert one_line(result).endswith("absent.yaml: No such file or directory")


def test_the_file_that_may_be_meant_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fleet.json5").write_text(GOOD)
    result = run("check-config", "flet.json5")
    assert result.returncode == 2
    assert "flet.json5: No such file or directory; did you mean fleet.json5?" in one_line(result)


def test_secrets_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(
        """{ transport: { auth: { usrpwd: { user: "u", password: "canary-1" } } },
             plugins: { durable_cache: {
               volumes: { pg: { backend: "sql", url: "postgresql://u:canary-2@h/d" } },
               storages: { lab: { key_expr: "lab/**" } } } } }"""
    )
    result = run("check-config", "cache.json5")
    assert result.returncode == 0, result.stderr
    assert "canary" not in result.stdout + result.stderr
    assert "u:***@h" in result.stdout


def test_a_misspelt_variable_is_an_error(run: Run) -> None:
    result = run("check-config", DURABLE_CACHE_STATEDIR="x")
    assert result.returncode == 2
    assert "did you mean DURABLE_CACHE_STATE_DIR" in one_line(result)


def test_the_backends_are_listed(run: Run) -> None:
    result = run("backends", "--format", "json")
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["memory"]["installed"] is True
    assert {"delta", "influxdb", "sql"} <= set(rows)
    assert "memory" in run("backends").stdout


@pytest.mark.parametrize(
    "arguments",
    [("frob",), ("serve", "--colour"), ("backends", "--format", "xml"), ("-x",)],
)
def test_usage_errors_end_with_2(arguments: tuple[str, ...], run: Run) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("durable-cache")
    assert "--help" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("qurey",), "'qurey': no such verb; did you mean query?"),
        (("serve", "--conect", "x"), "durable-cache serve: --conect: unknown option; did you mean --connect?"),
        (("query", "a", "--formt=csv"), "--formt: unknown option; did you mean --format?"),
        (("query", "a", "--format", "jsn"), "--format: 'jsn' is none of table, json, csv, parquet, arrow, mcap; did you mean json?"),
        (("query", "a", "b"), "'b': one argument too many"),
        (("lake", "statsu", "x"), "'statsu' is none of status, optimize, vacuum; did you mean status?"),
        (("serve", "--rest-http-port", "x"), "rest.listen: expected host:port"),
        (("put", "a", "b", "--rate", "fast"), "put: --rate: 'fast' is no number"),
        (("query", "a", "--limit", "1.5"), "query: --limit: '1.5' is no whole number"),
        (("put", "a"), "put: VALUE missing, as in: durable-cache put fleet/7/pose 'x=1 y=2'"),
        (("purge", "fleet"), "purge: --key-expr missing, as in: durable-cache purge fleet --key-expr"),
        (("lake",), "lake: name one of status, optimize, vacuum"),
        (("put", "a//b", "x"), "durable-cache: key 'a//b': empty chunk"),
        (("serve", "-l", "127.0.0.1:7447"), "did you mean tcp/127.0.0.1:7447?"),
        (("serve", "-m", "roter"), "did you mean router?"),
        (("serve", "--cfg", "scoutng/delay:4"), "scoutng: Zenoh knows no such setting; did you mean scouting?"),
        (("serve", "--cfg", "mode:'\"roter\"'"), "did you mean router?"),
        (("--verson",), "'--verson': no such option; did you mean --version?"),
        (("serve", "-P", "storage_manager"), "storages are named under plugins.durable_cache"),
    ],
)  # fmt: skip
def test_what_is_misspelt_is_named_with_what_is_nearest(
    arguments: tuple[str, ...], said: str, run: Run
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.parametrize("arguments", [("serve", "-l"), ("query", "**", "-e")])
def test_an_endpoint_without_a_port_is_named(arguments: tuple[str, ...], run: Run) -> None:
    result = run(*arguments, "tcp/127.0.0.1")
    assert result.returncode == 1
    assert "tcp/127.0.0.1: it names no port; did you mean tcp/127.0.0.1:7447?" in one_line(result)


@pytest.mark.parametrize("arguments", [("--help",), ("backends",), ("check-config", "--schema")])
def test_a_full_disk_behind_the_output_is_named(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "durable_cache", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1
    assert one_line(result) == "durable-cache: standard output: No space left on device"


@pytest.mark.parametrize(
    "locale",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}],
)
def test_data_is_utf_8_whatever_the_locale_is(locale: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(GOOD.replace("lab/**", "żółw/**"), "utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "durable_cache", "check-config", tmp_path / "cache.json5"],
        env={**environment_of_tests(), **locale},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout.decode("utf-8"))
    assert shown["plugins"]["durable_cache"]["storages"]["lab"]["key_expr"] == "żółw/**"


@pytest.mark.parametrize(
    ("words", "said"),
    [(("instances", "a//b", "--connect", "tcp/127.0.0.1:1"), "'a//b': empty chunk"),
     (("pipe", "--from", "tcp/127.0.0.1:1", "--to", "tcp/127.0.0.1:1", "--key", "a//b"), "--key: 'a//b'")],
)  # fmt: skip
def test_a_wrong_key_expression_is_named_before_anybody_is_asked(
    words: tuple[str, ...], said: str, run: Run
) -> None:
    result = run(*words)
    assert result.returncode == 2, result.stderr
    assert said in one_line(result)


@pytest.mark.delta
@pytest.mark.parametrize("verb", [("vacuum", "--dry-run"), ("vacuum",), ("optimize",)])
def test_looking_after_a_table_that_is_not_there_makes_none(
    verb: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    (tmp_path / "cache.json5").write_text(
        """{ plugins: { durable_cache: { volumes: { lake: { backend: "delta", path: "delta" } },
            storages: { fleet: { key_expr: "**" } } } } }"""
    )
    result = run("lake", *verb, "lake/flet", "--config", "cache.json5")
    assert result.returncode == 1, result.stderr
    assert "delta/flet: there is none yet" in result.stderr
    assert not (tmp_path / "delta").exists()


def test_help_of_a_verb_may_be_asked_for_either_way(run: Run) -> None:
    asked = run("help", "put")
    assert (asked.returncode, asked.stdout) == (0, run("put", "--help").stdout)


def test_the_command_alone_says_how_to_begin(run: Run) -> None:
    result = run()
    assert (result.returncode, result.stderr) == (0, "")
    assert "durable-cache put fleet/7/pose" in result.stdout


SLOW_IN_HELP = """
import sys
from durable_cache.service.cli import build_parser
from durable_cache.service.verbs import VERBS
slow = {"zenoh", "sqlalchemy", "pyarrow", "textual", "rich", "duckdb", "polars", "mcap"}
for verb in VERBS:
    if verb not in ("lake", "spark"):
        build_parser(verb)
        print(*(f"{verb}:{name}" for name in slow & set(sys.modules)))
"""
OWN_VERBS = [name for name in VERBS if name not in ("lake", "spark")]


def test_help_waits_for_no_driver() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SLOW_IN_HELP], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_every_verb_shows_examples_that_it_understands(verb: str, run: Run) -> None:
    result = run(verb, "--help")
    assert result.returncode == 0
    _, _, examples = result.stdout.partition("examples:\n")
    lines = [line.strip() for line in examples.splitlines()]
    assert lines
    for line in lines:
        words = shlex.split(line.rpartition(" | ")[2])
        assert words[:2] == ["durable-cache", verb]
        assert build_parser(verb).parse_args(words[1:]).run is not None


@pytest.mark.parametrize(
    "flags",
    [
        ("-m", "router"), ("-l", "tcp/127.0.0.1:7448"), ("-e", "tcp/127.0.0.1:7449"), ("-i", "abc1"),
        ("--cfg", "transport/unicast/max_links:4"), ("--no-multicast-scouting",),
        ("--adminspace-permissions", "rw"), ("--rest-http-port", "none"), ("-P", "durable_cache"),
    ],
)  # fmt: skip
def test_zenohds_flags_mean_what_they_mean_there(
    flags: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "cache.json5").write_text(GOOD)
    result = run("check-config", "-c", "cache.json5", *flags)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    match flags:
        case ("-m", mode):
            assert shown["mode"] == mode
        case ("-l", endpoint):
            assert shown["listen"]["endpoints"] == [endpoint]
        case ("-e", endpoint):
            assert shown["connect"]["endpoints"] == [endpoint]
        case ("-i", zid):
            assert shown["id"] == zid
        case ("--cfg", _):
            assert shown["transport"]["unicast"]["max_links"] == 4
        case ("--no-multicast-scouting",):
            assert shown["scouting"]["multicast"]["enabled"] is False
        case ("--adminspace-permissions", _):
            assert shown["adminspace"]["permissions"] == {"read": True, "write": True}


def test_zenohs_variable_names_the_file_and_ours_goes_before_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zenoh.json5").write_text(GOOD)
    (tmp_path / "ours.json5").write_text(GOOD.replace("quick", "fast"))
    result = run("check-config", ZENOH_CONFIG="zenoh.json5")
    assert "quick" in result.stdout
    result = run("check-config", ZENOH_CONFIG="zenoh.json5", DURABLE_CACHE_CONFIG="ours.json5")
    assert "fast" in result.stdout


def test_a_file_of_zenohs_alone_is_served_with_a_key_expression(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zenoh.json5").write_text('{ mode: "router", plugins: { rest: {} } }')
    bare = run("check-config", "zenoh.json5")
    assert bare.returncode == 2
    assert "plugins.durable_cache: missing" in one_line(bare)
    assert "--key-expr" in one_line(bare)
    (tmp_path / "storing.json5").write_text("{ plugins: { storage_manager: { storages: {} } } }")
    storing = run("serve", "-c", "storing.json5")
    assert "durable-cache check-config --from-zenohd FILE" in one_line(storing)
    result = run("check-config", "zenoh.json5", "-k", "fleet/**")
    assert result.returncode == 0, result.stderr
    assert "fleet/**" in result.stderr


MISTAKEN = """{
  conect: {}, mode: "rooter",
  plugins: { durable_cache: {
    domain: "a b", http: { listen: "nowhere" },
    volumes: { quick: { backend: "memroy" }, db: { backend: "sql", url: "mysql://x/y" },
               pg: { backend: "postgres", url: "sqlite:///x" }, main: {},
               lake: { backend: "delta", pth: "x" } },
    storages: {
      lab: { key_expr: "lab//x", volume: "db", retension: 1, limits: { pool_thread: 3 },
             source: "me" },
      fleet: { retention: { age_seconds_max: "7 fortnights", samples_max: -1 } },
    } } } }
"""


@pytest.mark.parametrize("verb", ["check-config", "serve"])
def test_all_mistakes_are_named_at_once(verb: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(MISTAKEN)
    result = run(verb, "--config", "cache.json5")
    assert (result.returncode, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    for said in (
        "plugins.durable_cache.domain: expected 1 to 64",
        "plugins.durable_cache.http.listen: expected host:port",
        "plugins.durable_cache.volumes.pg.url: the backend 'postgres' wants postgresql://",
        'plugins.durable_cache.volumes.main.backend: name a backend, as in backend: "sql"',
        "storages.lab.retension: unknown setting; did you mean 'retention'?",
        "storages.lab.key_expr: 'lab//x'",
        'storages.fleet.retention.age_seconds_max: expected a number, or "90s", "1h 30m" or',
        "storages.fleet.retention.samples_max: expected a whole number >= 1",
        "storages.fleet: missing required field key_expr",
        "storages.fleet.volume: missing; name one of: quick, db, pg, main, lake",
        "volumes.quick.backend: no backend is called 'memroy'; installed: ",
        "volumes.db: backend 'sql': no driver for 'mysql'; write sqlite:/// or postgresql://",
        "volumes.lake.pth: unknown setting; did you mean 'path'?",
        "storages.lab.limits.pool_thread: unknown setting; did you mean 'pool_threads'?",
        "storages.lab: source 'me' is no source_id",
        "conect: Zenoh knows no such setting; did you mean connect?",
        "mode: Zenoh: unknown variant `rooter`",
    ):
        assert sum(said in line for line in lines) == 1, (said, result.stderr)
    assert len(lines) == 17, result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "cache.json5"], "nothing is silently created"


def test_what_zenohds_file_says_is_understood_or_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text("""{
      plugins: {
        rest: { http_port: 8000 }, storage_manager: { storages: {} }, webserver: {},
        durable_cache: {
          volumes: { sqlite: { url: "sqlite:///a.db" } },
          storages: {
            a: { key_expr: "a/**", strip_prefix: "a", volume: { id: "sqlite" } },
            b: { key_expr: "b/**", volume: "memory", acknowledge: "memory",
                 retention: { age_seconds_max: "7d", bytes_max: "10 MiB" },
                 recovery: { fetch_timeout_seconds: "1m 30s" },
                 limits: { queue_bytes_max: "1 GB", query_seconds_max: "500ms" } },
            c: { key_expr: "c/**" },
          } } } }""")
    result = run("check-config", "cache.json5")
    assert result.returncode == 0, result.stderr
    ours = json.loads(result.stdout)["plugins"]["durable_cache"]
    assert ours["volumes"]["sqlite"]["backend"] == "sql"
    assert [ours["storages"][name]["volume"] for name in "abc"] == ["sqlite", "memory", "sqlite"]
    b = ours["storages"]["b"]
    assert b["retention"]["age_seconds_max"] == 604_800
    assert b["retention"]["bytes_max"] == 10 << 20
    assert b["recovery"]["fetch_timeout_seconds"] == 90
    assert b["limits"]["queue_bytes_max"] == 1_000_000_000
    assert b["limits"]["query_seconds_max"] == 0.5
    for said in (
        "plugins.rest: its section is not read here; name an address under",
        "plugins.storage_manager: its section is not read here; name its storages under",
        "plugins.webserver: plugins of zenohd are not loaded here",
        "storages.a.strip_prefix: keys are stored whole",
    ):
        assert f"note: {said}" in result.stderr or said in result.stderr


def test_an_option_of_a_storage_on_its_volume_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text(
        GOOD.replace('key_expr: "lab/**"', 'key_expr: "lab/**", volume: { id: "quick", db: "x" }')
    )
    result = run("check-config", "cache.json5")
    assert result.returncode == 2
    assert "storages.lab.volume.db: only the volume's id stands here" in one_line(result)


def test_who_cannot_connect_is_pointed_to_connect(run: Run) -> None:
    result = run("serve", "-m", "client", "-e", "tcp/127.0.0.1:1")
    assert result.returncode == 1
    assert "is --connect right?" in one_line(result)
    assert "--listen" not in one_line(result)


@pytest.mark.parametrize("verb", ["lake", "spark"])
def test_every_verb_below_another_takes_json(verb: str) -> None:
    pytest.importorskip("deltalake")
    without = [
        parser.prog for parser in parsers_of(verb) if "--json" not in parser._option_string_actions
    ]
    assert not without


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_every_verb_takes_json(verb: str) -> None:
    parser = build_parser(verb)
    needed = {
        "put": ["a", "b"],
        "pipe": ["--key", "a"],
        "query": ["a"],
        "instances": ["a"],
        "replay": ["a", "--same-keys"],
        "purge": ["a", "--key-expr", "b"],
        "copy": ["a", "b"],
        "export": ["a", "b"],
        "import": ["a", "b"],
        "context": ["list"],
        "completion": ["bash"],
    }
    example = parser.parse_args([verb, *needed.get(verb, []), "--json"])
    assert (
        "json" in (getattr(example, name, "") for name in ("format", "log_format")) or example.json
    )


def test_results_are_json_where_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache.json5").write_text("""{ plugins: { durable_cache: {
        volumes: { a: { backend: "sqlite", url: "sqlite:///a.db" } , b: { backend: "sqlite", url: "sqlite:///b.db" } },
        storages: { lab: { key_expr: "lab/**", volume: "a" } } } } }""")
    config = ("--config", "cache.json5", "--json")
    migrated = run("migrate", *config)
    assert migrated.returncode == 0, migrated.stderr
    rows = [json.loads(line) for line in migrated.stdout.splitlines()]
    assert [row["volume"] for row in rows] == ["a", "b"]
    assert {row["found"] for row in rows} == {""}
    assert json.loads(run("export", "lab", "lab.jsonl", *config).stdout)["exported"] == 0
    assert json.loads(run("import", "lab.jsonl", "b/lab", *config).stdout)["imported"] == 0
    assert json.loads(run("copy", "a/lab", "b/lab", *config).stdout) == {
        "copied": 0, "conflicts": 0, "missing": 0, "refused": 0,
    }  # fmt: skip


def test_the_schema_knows_what_the_reader_knows(run: Run) -> None:
    shown = run("check-config", "--schema")
    assert shown.returncode == 0, shown.stderr
    schema = json.loads(shown.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    texts = [path.read_text() for path in (ROOT / "deploy/caches").glob("*.json5")]
    for page in ("README.md", "docs/tutorial.md", "docs/configuration.md"):
        found = re.findall(r"^```json5[^\n]*\n(\{.*?)^```", (ROOT / page).read_text(), re.M | re.S)
        assert found
        texts += found
    for text in texts:
        assert [error.message for error in validator.iter_errors(json5.loads(text))] == [], text
    wrong = [
        ("retention", "retension"), ("age_seconds_max", "age_seconds"), ("key_expr", "key_exp"),
        ('"sqlite"', '"sqlight"'), ('url: ', 'uri: '), ('"7d"', "true"),
    ]  # fmt: skip
    tutorial = next(text for text in texts if '"7d"' in text)
    for good, bad in wrong:
        assert good in tutorial
        document = json5.loads(tutorial.replace(good, bad))
        assert not validator.is_valid(document), bad
    described = schema["$defs"]["StorageSettings"]["properties"]["acknowledge"]["description"]
    assert described == "What an acknowledged sample survives: nothing, SIGKILL, a power cut."
