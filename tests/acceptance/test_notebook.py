"""Does the notebook in `examples/` run from its first cell to its last, and show its plots?"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("polars")
pytest.importorskip("matplotlib")

import nbformat
from nbclient import NotebookClient

from tests.tree import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
CELL_SECONDS_MAX = 120

pytestmark = pytest.mark.slow


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Any:
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_a_notebook_is_kept_without_what_it_printed(notebook: Any) -> None:
    nbformat.validate(notebook)
    for cell in code_cells(notebook):
        assert not cell.outputs
        assert cell.execution_count is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_notebook_runs(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DURABLE_CACHE_")]:
        monkeypatch.delenv(name)
    # The kernel is this Python, with what this Python can import.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS_MAX,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    plots = [output for output in outputs if "image/png" in output.get("data", {})]
    drawn = [cell for cell in code_cells(notebook) if "plt.show()" in cell.source]
    assert len(plots) == len(drawn) > 0
    said = "".join(output.get("text", "") for output in outputs if output.get("name") == "stderr")
    assert set(said.splitlines()) == {"samples missed"}, "robot 2 keeps ten samples of a second"
    recovered = next(cell for cell in code_cells(notebook) if "wait_drained" in cell.source)
    counted = ast.literal_eval(recovered.outputs[-1]["data"]["text/plain"])
    assert counted["gaps still open"] == 0
    assert counted["missed"] > 0
    lost = next(cell for cell in code_cells(notebook) if cell.source.endswith("\ngaps"))
    table = lost.outputs[-1]["data"]["text/plain"]
    assert "fleet/2/pose" in table
    assert "fleet/1" not in table, "robot 1 still had what the cache missed"
