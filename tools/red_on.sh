#!/usr/bin/env bash
# Which regression tests of this tree fail on the code of another commit, and which pass?
#
#   tools/red_on.sh COMMIT [tests/regressions/test_...py ...]
#
# Checks COMMIT out into a temporary folder, runs each file against its code and against the code
# here, and lists the tests. Needs no network; exits with 1 where a test fails on the code here.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
commit=$(git -C "$top" rev-parse --verify --quiet "$1^{commit}") || { echo "red_on: no commit $1" >&2; exit 2; }
shift
cd "$top"
files=("$@")
[ $# -gt 0 ] || files=(tests/regressions/test_*.py)
python=${PYTHON:-$top/.venv/bin/python}
there=$(mktemp -d)
trap 'git -C "$top" worktree remove --force "$there/code" >/dev/null 2>&1; rm -rf "$there"' EXIT
trap 'exit 130' INT TERM HUP
git -C "$top" worktree add --quiet --detach "$there/code" "$commit"
mkdir "$there/suite"
cp -r tests pyproject.toml "$there/suite"  # so that no file of the checkout is imported by accident

run() {  # run CODE FILE REPORT: a file against the code in a folder; 5 minutes, then what has ended
  (cd "$there/suite" && PYTHONPATH=$1:$1/backends:$there/suite PYTHONDONTWRITEBYTECODE=1 \
    timeout --signal=INT --kill-after=10 300 "$python" -m pytest -q -p no:cacheprovider --rootdir="$there/suite" \
    -c pyproject.toml --junitxml="$3" "$2") >"$3.log" 2>&1 || true
}

for file in "${files[@]}"; do
  name=$(basename "$file" .py)
  echo "red_on: $name" >&2
  run "$there/code" "$file" "$there/there-$name"
  run "$top" "$file" "$there/here-$name"
done
"$python" tools/red_on.py "$there" "$commit"
