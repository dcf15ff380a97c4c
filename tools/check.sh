#!/usr/bin/env bash
# Is the tree fit to be merged? Every step runs, each with its time; the first failures are at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}
failed=()

step() {
  local name=$1 began=$SECONDS
  shift
  printf '== %s\n' "$name"
  if timeout --kill-after=10 "${CHECK_STEP_SECONDS:-600}" "$@"; then
    printf '== %s: fine, %d s\n' "$name" $((SECONDS - began))
  else
    failed+=("$name")
    printf '== %s: FAILED, %d s\n' "$name" $((SECONDS - began))
  fi
}

# Only what is quick; what needs a server has its place in `make test`.
quick=(tests/test_tidy.py tests/test_imports.py tests/test_docs.py tests/test_pages.py tests/unit tests/golden
  tests/conformance/test_{memory,sql}.py tests/simulation/test_whole.py)

step format "$bin/ruff" format --check --quiet .
step lint "$bin/ruff" check --quiet .
step types "$bin/mypy"
step tests "$bin/python" -m pytest -q --numprocesses=2 -m 'not slow and not nightly and not postgres' "${quick[@]}"

if ((${#failed[@]})); then
  echo "check: FAILED: ${failed[*]}" >&2
  exit 1
fi
echo "check: all fine"
