#!/usr/bin/env bash
# Pins every dependency with its hashes, for Python 3.11 to 3.13 alike, into requirements/*.txt.
#
# The files name no address to download from: where packages come from is the installer's setting.
#   build      what builds wheels            run    what `make run` needs
#   dev        every extra and all tools     postgres, influxdb, delta, spark, frame, mcap, top    one extra each
# All agree with each other: the small ones take their versions from dev.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${LOCK_VENV:-.cache/lock-venv}
[ -x "$venv/bin/uv" ] || { "${PYTHON:-python3}" -m venv "$venv" && "$venv/bin/pip" -q install uv; }

compile() {
  local output=requirements/$1.txt
  shift
  echo "lock: $output"
  "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-emit-index-url --no-emit-find-links --no-annotate --output-file "$output" "$@"
  if grep -nE '^-|://' "$output"; then
    echo "lock: $output names an address or an option, see above" >&2
    exit 1
  fi
}

compile build requirements/build.in
compile dev --extra all --extra testing -c requirements/build.txt pyproject.toml requirements/dev.in
compile run -c requirements/dev.txt pyproject.toml
for extra in postgres influxdb delta spark frame mcap top; do
  compile "$extra" --extra "$extra" -c requirements/dev.txt pyproject.toml
done
