"""U11: README's Python passes `mypy --strict` as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import durable_cache

TREE = Path(durable_cache.__file__).parents[1]


def test_readmes_python_passes_mypy_strict(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (TREE / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 2
    # Names that the page's other blocks defined would hide a block that does not stand by itself.
    names = []
    for at, block in enumerate(blocks):
        names.append(tmp_path / f"readme_{at}.py")
        names[-1].write_text(block)
    (tmp_path / "typed.py").write_text(
        "import zenoh\nimport durable_cache as dc\n"
        "def both(session: zenoh.Session) -> None:\n"
        '    sure = dc.declare_reliable_publisher(session, "a", acknowledgements=2).put(b"1")\n'
        "    reveal_type(sure)\n"
        '    plain = dc.declare_reliable_publisher(session, "a")\n'
        "    reveal_type(plain.delete)\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *names, tmp_path / "typed.py"],
        cwd=TREE,
        env={**os.environ, "MYPYPATH": str(TREE)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert re.search(r'Revealed type is "[a-z_.]+\.Receipt"', said)
    assert re.search(r'Revealed type is "def \(.*\)( -> None)?"', said)
