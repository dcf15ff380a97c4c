"""A process that appends to the suite's storage and says so, until somebody kills it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from durable_cache.model.sample import Sample, SampleBatch
from durable_cache.testing.conformance.hooks import StorageHooks
from durable_cache.testing.samples import sample

BATCH_SAMPLES = 50
BATCHES_MAX = 100_000


def batch_of(number: int) -> list[Sample]:
    """Return the samples of the child's `number`-th batch."""
    first = number * BATCH_SAMPLES
    return [sample(sn, "suite/killed") for sn in range(first, first + BATCH_SAMPLES)]


def main(module_path: str, suite: str, directory: str, name: str) -> None:
    """Append batches, printing the number of each one that was acknowledged."""
    module = _load(module_path)
    found: object = module
    for part in suite.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, StorageHooks)):
        raise TypeError(f"{suite} of {module_path} is no subclass of the suite")
    with found().open(Path(directory), name) as storage:
        for number in range(BATCHES_MAX):
            storage.append(SampleBatch(batch_of(number)))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


def _load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite_under_test", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:5])
