#!/usr/bin/env bash
# Makes .venv what the locks say: `tools/venv.sh run` for the service, `tools/venv.sh dev` for all.
#
# Idempotent: a stamp holds the hash of the locks, so the second call does nothing. VENV names
# another folder, PYTHON the interpreter to start from.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?run or dev}
venv=${VENV:-.venv}
fail() { echo "durable-cache: $*" >&2; exit 1; }

stamp_of() { cat requirements/build.txt "requirements/$1.txt" pyproject.toml | sha256sum | cut -d' ' -f1; }
is_done() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.lock-$1" 2>/dev/null)" = "$(stamp_of "$1")" ]; }
is_done dev && exit 0
[ "$kind" = run ] && is_done run && exit 0

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$candidate"; return; }
  done
  return 1
}
python=$(find_python) || fail "Python 3.11 or newer is needed, found $(${PYTHON:-python3} --version 2>&1 || echo none); set PYTHON=/path/to/python"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"

# A folder made by another interpreter, or moved here, is not repaired but made again.
if ! { [ -x "$venv/bin/pip" ] && "$venv/bin/python" -c 'import pip' 2>/dev/null && "$venv/bin/pip" --version >/dev/null 2>&1; }; then
  echo "durable-cache: making $venv with $("$python" --version)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
rm -f "$venv"/.lock-*

progress=off
[ -t 1 ] && progress=on
install() { "$venv/bin/pip" --disable-pip-version-check install --quiet --progress-bar "$progress" "$@"; }
echo "durable-cache: installing the locked dependencies ($kind) into $venv"
install --require-hashes -r requirements/build.txt || fail "the build tools could not be installed, see above"
install --require-hashes --no-build-isolation -r "requirements/$kind.txt" || fail "the dependencies could not be installed, see above"
install --no-deps --no-build-isolation -e . || fail "durable-cache itself could not be installed, see above"
stamp_of "$kind" >"$venv/.lock-$kind"
