#!/usr/bin/env bash
# Brings the containers of docker-compose.yml up and down; makes secrets that are missing.
#
#   tools/compose.sh up         PROFILES="core influxdb lake observability" (default: core)
#   tools/compose.sh down       VOLUMES=forget deletes their data as well
#   tools/compose.sh secrets    only make the secrets that are missing
#   tools/compose.sh check      say in one line what is missing for `up`
#
# What cannot come up is told in one line each, and nothing half-up is left behind: what ran before
# goes on running, what this start added is gone again. Volumes are kept.
set -euo pipefail
cd "$(dirname "$0")/.."
profiles=${PROFILES:-core}
project=${COMPOSE_PROJECT_NAME:-durable-cache}
secrets=deploy/secrets
wait_seconds=${COMPOSE_WAIT_SECONDS:-180}
log=
ran_before=
chosen=()

fail() { echo "compose: $*" >&2; exit 1; }

for profile in $profiles; do chosen+=(--profile "$profile"); done
compose() { docker compose "${chosen[@]}" "$@"; }

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

made_with() {  # made_with SECRET: the volume that keeps what SECRET was at its first start
  case $1 in
    postgres_password) echo "${project}_postgres-data" ;;
    influxdb_*) echo "${project}_influxdb-data" ;;
    grafana_password) echo "${project}_grafana-data" ;;
  esac
}

has_volume() { docker volume inspect "$(made_with "$1")" >/dev/null 2>&1; }

make_secrets() {
  local name
  umask 022
  for name in $(sed -n 's#^ *file: \./deploy/secrets/##p' docker-compose.yml); do
    [ -s "$secrets/$name" ] && continue
    [ -d "$secrets/$name" ] && rmdir "$secrets/$name"
    has_volume "$name" && continue
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >"$secrets/$name.new"
    mv "$secrets/$name.new" "$secrets/$name"
    echo "compose: made $secrets/$name"
  done
}

check_secrets() {
  local name
  for name in $(compose config | sed -n 's#^ *file: .*/deploy/secrets/##p'); do
    [ -s "$secrets/$name" ] || fail "$secrets/$name is missing, and volume $(made_with "$name") was" \
      "made with it; put the file back, or delete all data: make compose-down VOLUMES=forget"
  done
}

published_ports() {
  compose config --format json | tr ',{' '\n\n' | sed -n 's/.*"published": *"\([0-9]*\)".*/\1/p'
}

check_ports() {
  local wanted ours name port
  wanted=" $(published_ports | tr '\n' ' ') "
  ours=$(compose ps --format '{{.Ports}}')
  while IFS=: read -r name port; do
    port=${!name:-$port}
    [[ $wanted == *" $port "* && $ours != *":$port->"* ]] || continue
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      fail "port $port is in use; choose another: $name=..."
    fi
  done < <(sed -n 's/.*\${\([A-Z_]*_PORT\):-\([0-9]*\)}.*/\1:\2/p' docker-compose.yml)
}

run() {  # run ARGUMENTS...: compose in the background, so that a signal is answered at once
  docker compose "${chosen[@]}" "$@" &
  wait "$!"
}

take_down() {  # removes what this start added
  local service added attempt
  trap '' INT TERM HUP
  for attempt in 1 2 3; do  # what the engine was making when it was interrupted comes up late
    added=()
    for service in $(compose ps -a --services); do
      [[ $ran_before == *" $service "* ]] || added+=("$service")
    done
    if [ -z "${ran_before// /}" ]; then
      compose down --timeout 15 >/dev/null 2>&1 || true
    elif ((${#added[@]})); then
      compose rm --stop --force "${added[@]}" >/dev/null 2>&1 || true
    fi
    ((${#added[@]})) || break
  done
}

interrupted() {  # interrupted CODE
  trap '' INT TERM HUP
  echo "compose: interrupted, taking down what came up" >&2
  local child
  for child in $(jobs -p); do  # also the one that was started just now
    kill "$child" 2>/dev/null && wait "$child" || true
  done
  take_down
  exit "$1"
}

last_line() {
  compose logs --no-color --no-log-prefix --tail 5 "$1" 2>&1 |
    sed 's/\x1b\[[0-9;]*[A-Za-z]//g' | awk 'NF { last = $0 } END { print last ? last : "it has said nothing" }'
}

tell_what_failed() {  # one line for what is broken; if nothing is, for what is still starting
  local service state health slow=() broken=0
  while IFS=$'\t' read -r service state health; do
    case $state/$health in
      created/* | running/healthy | running/) ;;
      running/starting) slow+=("$service") ;;
      *)
        [ "$state" = running ] && state=$health
        echo "compose: $service is $state: $(last_line "$service")" >&2
        broken=1
        ;;
    esac
  done < <(compose ps -a --format '{{.Service}}\t{{.State}}\t{{.Health}}')
  ((broken)) && return
  for service in "${slow[@]}"; do
    echo "compose: $service is not healthy yet: $(last_line "$service")" >&2
  done
}

up() {
  check_engine
  check_profiles
  make_secrets
  check_secrets
  check_ports
  ran_before=" $(compose ps --services | tr '\n' ' ') "
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  trap 'interrupted 129' HUP
  local progress=quiet
  [ -t 2 ] && progress=auto
  echo "compose: building the images, some minutes the first time"
  run build --quiet >/dev/null 2>"$log" || {
    tail -20 "$log" >&2
    fail "the images could not be built, see above"
  }
  run --progress "$progress" up --detach --quiet-pull --wait --wait-timeout "$wait_seconds" || {
    tell_what_failed
    take_down
    fail "not everything became healthy within $wait_seconds s, see above; what came up is down again, data is kept"
  }
  trap - INT TERM HUP
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
