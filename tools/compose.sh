#!/usr/bin/env bash
# Brings the containers of docker-compose.yml up and down; makes secrets that are missing.
#
#   tools/compose.sh up         PROFILES="core influxdb lake observability" (default: core)
#   tools/compose.sh down       VOLUMES=forget deletes their data as well
#   tools/compose.sh secrets    only make the secrets that are missing
#   tools/compose.sh check      say in one line what is missing for `up`
#
# What cannot come up is told in one line each, and nothing half-up is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."
profiles=${PROFILES:-core}
secrets=deploy/secrets
wait_seconds=${COMPOSE_WAIT_SECONDS:-180}

fail() { echo "compose: $*" >&2; exit 1; }

compose() {
  local chosen=() profile
  for profile in $profiles; do chosen+=(--profile "$profile"); done
  docker compose "${chosen[@]}" "$@"
}

check_engine() {
  command -v docker >/dev/null || fail "no docker command; install Docker Engine 24 or newer"
  docker compose version >/dev/null 2>&1 || fail "no compose plugin; install docker-compose-plugin"
  docker version >/dev/null 2>&1 || fail "no engine answers: $(docker version 2>&1 | tail -1)"
}

check_profiles() {
  local profile known
  known=" $(docker compose --profile '*' config --profiles | tr '\n' ' ') "
  for profile in $profiles; do
    [[ $known == *" $profile "* ]] || fail "no profile is called '$profile'; there are:$known"
  done
}

make_secrets() {
  local name
  umask 022
  for name in postgres_password influxdb_password influxdb_token grafana_password; do
    [ -s "$secrets/$name" ] && continue
    [ -d "$secrets/$name" ] && rmdir "$secrets/$name"
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$secrets/$name.new"
    mv "$secrets/$name.new" "$secrets/$name"
    echo "compose: made $secrets/$name"
  done
}

published_ports() {
  compose config --format json | tr ',{' '\n\n' | sed -n 's/.*"published": *"\([0-9]*\)".*/\1/p'
}

check_ports() {
  local port
  [ -z "$(compose ps -q 2>/dev/null)" ] || return 0
  for port in $(published_ports); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      fail "port $port is in use; see docker-compose.yml for the variable that chooses another"
    fi
  done
}

tell_what_failed() {
  local service state health
  while IFS=$'\t' read -r service state health; do
    [ "$state" = running ] && [ "${health:-healthy}" = healthy ] && continue
    [ "$state" = created ] && continue
    echo "compose: $service is $state${health:+ and $health}: $(compose logs --no-color --no-log-prefix --tail 3 "$service" 2>&1 | grep -v '^$' | tail -1)" >&2
  done < <(compose ps -a --format '{{.Service}}\t{{.State}}\t{{.Health}}')
}

up() {
  local log
  log=$(mktemp)
  check_engine
  check_profiles
  make_secrets
  check_ports
  trap 'echo "compose: interrupted, taking down what came up" >&2; compose down --timeout 15; exit 130' INT TERM
  echo "compose: building the images, some minutes the first time"
  compose build --quiet >/dev/null 2>"$log" || { cat "$log" >&2; fail "the images could not be built, see above"; }
  if ! compose up --detach --quiet-pull --wait --wait-timeout "$wait_seconds"; then
    tell_what_failed
    compose down --timeout 15 >/dev/null 2>&1 || true
    fail "not everything became healthy within $wait_seconds s, see above; all is down again, data is kept"
  fi
  rm -f "$log"
  trap - INT TERM
  compose ps --format 'table {{.Service}}\t{{.Status}}\t{{.Ports}}'
}

down() {
  check_engine
  local forget=()
  [ "${VOLUMES:-}" = forget ] && forget=(--volumes)
  docker compose --profile '*' down --remove-orphans --timeout 15 "${forget[@]}"
}

case ${1:-} in
  up) up ;;
  down) down ;;
  secrets) make_secrets ;;
  check) check_engine; check_profiles; echo "compose: fine" ;;
  *) fail "say up, down, secrets or check" ;;
esac
