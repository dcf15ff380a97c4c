#!/usr/bin/env bash
# Builds the InfluxDB 2.7 server of the tests from its Go module, once, into a cache folder.
#
#   tools/build_influxd.sh                 build unless it is there; prints the binary's path
#   tools/build_influxd.sh --check         only say whether it is there or what is missing
#   tools/build_influxd.sh --install-deps  first install clang with apt-get (needs root)
#
# The folder is $DURABLE_CACHE_CACHE_DIR/influxd, else .cache/influxd of the repository. About five
# minutes on two cores; later runs return at once. Needs go, cargo, a C compiler, libclang.
set -euo pipefail

version=v2.7.12
module=github.com/influxdata/influxdb/v2
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${DURABLE_CACHE_CACHE_DIR:-$root/.cache}/influxd
binary=$cache/$version/influxd

say() { printf 'build_influxd: %s\n' "$*" >&2; }

is_built() { [ -x "$binary" ] && "$binary" version >/dev/null 2>&1; }

has_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] && return 0
  compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null ||
    compgen -G '/usr/lib/*-linux-gnu/libclang-[0-9]*.so*' >/dev/null ||
    compgen -G '/usr/lib64/libclang.so*' >/dev/null
}

missing() {
  local tool lack=()
  for tool in go cargo cc clang pkg-config; do
    command -v "$tool" >/dev/null || lack+=("$tool")
  done
  has_libclang || lack+=(libclang)
  printf '%s' "${lack[*]}"
}

case ${1:-} in
  --check)
    if is_built; then
      echo "$binary"
      exit 0
    fi
    say "not built yet; missing for a build: $(missing | sed 's/^$/nothing/')"
    exit 1
    ;;
  --install-deps)
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq clang libclang-dev pkg-config >/dev/null
    ;;
  '') ;;
  *)
    say "unknown argument: $1; see the head of this file"
    exit 2
    ;;
esac

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

if is_built; then
  echo "$binary"
  exit 0
fi

lack=$(missing)
if [ -n "$lack" ]; then
  say "cannot build influxd $version, missing: $lack (Debian: apt-get install clang libclang-dev pkg-config; go.dev, rustup.rs)"
  exit 1
fi

work=$cache/work
chmod -R u+w "$work" 2>/dev/null || true
rm -rf "$work"
mkdir -p "$work/bin"
started=$SECONDS
say "building influxd $version; this takes some minutes (log: $cache/build.log)"

build() {
  local fetch=$work/fetch source
  mkdir -p "$fetch"
  (cd "$fetch" && go mod init fetch && go mod download "$module@$version")
  source=$(go env GOMODCACHE)/$module@$version
  cp -r "$source" "$work/source"
  chmod -R u+w "$work/source"
  cd "$work/source"

  # Influx's own pkg-config builds the Rust half of Flux; it finds the system's one behind it.
  go build -o "$work/bin/pkg-config" github.com/influxdata/pkg-config

  # That half denies warnings that compilers newer than it have learned to give.
  cat >"$work/bin/cargo-allowing-warnings" <<'WRAPPER'
#!/usr/bin/env bash
grep -rl --include=lib.rs 'deny(warnings' . | xargs -r sed -i 's/deny(warnings/allow(warnings/'
exec cargo "$@"
WRAPPER
  chmod +x "$work/bin/cargo-allowing-warnings"

  PATH=$work/bin:$PATH \
    PKG_CONFIG=$work/bin/pkg-config \
    CARGO=$work/bin/cargo-allowing-warnings \
    RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN:-stable} \
    go build -tags sqlite_foreign_keys,sqlite_json \
    -ldflags "-s -w -X main.version=$version" -o "$work/influxd" ./cmd/influxd
}

if ! (set -e; build) >"$cache/build.log" 2>&1; then
  say "the build failed; the end of $cache/build.log:"
  tail -n 20 "$cache/build.log" >&2
  exit 1
fi

mkdir -p "$(dirname "$binary")"
mv "$work/influxd" "$binary"
chmod -R u+w "$work"
rm -rf "$work"
say "built in $((SECONDS - started)) s"
echo "$binary"
