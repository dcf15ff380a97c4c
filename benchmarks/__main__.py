"""Every benchmark in turn, at a size that ends within half an hour: ``make bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = (
    ("ingest.py", "--seconds", "20"),
    ("ingest.py", "--seconds", "60", "--rate", "50000"),
    ("ingest.py", "--seconds", "20", "--rate", "10000"),
    ("recovery.py", "--stored", "1000", "100000", "1000000", "10000000"),
    ("streams.py", "--streams", "1000000"),
)


def main() -> int:
    failed = 0
    for name, *arguments in RUNS:
        print(f"\n# {name} {' '.join(arguments)}", flush=True)
        script = Path(__file__).with_name(name)
        failed += subprocess.call([sys.executable, str(script), *arguments, *sys.argv[1:]]) != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
