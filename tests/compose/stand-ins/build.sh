#!/usr/bin/env bash
# Builds the stand-ins for published images, under their names, from local base images.
#
#   tests/compose/stand-ins/build.sh [ZENOHD]    ZENOHD is made by: cargo install zenohd --version 1.10.2
#
# Needs an engine with debian:12-slim, python:3.11-slim, postgres:16 and influxdb:2.7. Without ZENOHD
# a session of zenoh-python routes. A pass with stand-ins shows the wiring and our code against live
# servers, not how the published images behave.
set -euo pipefail
zenohd=${1:+$(realpath "$1")}
cd "$(dirname "$0")"
export DOCKER_BUILDKIT=0
have() { docker image inspect "$1" >/dev/null 2>&1; }
stand_in() { have "$2" || docker build -q -t "$2" "$1" >/dev/null; echo "$2: $1 stands in"; }

docker tag python:3.11-slim python:3.11.14-slim-bookworm
docker tag postgres:16 postgres:16.11
if [ -n "$zenohd" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cp zenohd/Dockerfile "$zenohd" "$folder"
  docker build -q -t eclipse/zenoh:1.10.2 "$folder" >/dev/null
  echo "eclipse/zenoh:1.10.2: zenohd stands in"
else
  stand_in zenoh eclipse/zenoh:1.10.2
fi
stand_in influxdb influxdb:2.7.12
stand_in prometheus prom/prometheus:v3.5.0
