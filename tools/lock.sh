#!/usr/bin/env bash
# Pins every dependency with its hashes, for Python 3.11 to 3.13 alike, into requirements-*.txt.
#
# The files name no address to download from: where packages come from is the installer's setting.
# requirements-build.txt  what builds wheels         requirements-run.txt  what `make run` needs
# requirements-dev.txt    every extra and all tools
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${LOCK_VENV:-.cache/lock-venv}
[ -x "$venv/bin/uv" ] || { "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/pip" -q install uv; }

compile() {
  local output=$1
  shift
  echo "lock: $output"
  "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links --no-annotate --output-file "$output" "$@"
  if grep -nE '^-|://' "$output"; then
    echo "lock: $output names an address or an option, see above" >&2
    exit 1
  fi
}

compile requirements-build.txt requirements-build.in
compile requirements-dev.txt --extra all --extra testing -c requirements-build.txt \
  pyproject.toml requirements-dev.in
compile requirements-run.txt -c requirements-dev.txt pyproject.toml
