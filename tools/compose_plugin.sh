#!/usr/bin/env bash
# Gets the compose plugin on a Debian whose release has none, from the next release's packages.
#
# The package is unpacked, not installed, into the cache folder; prints the DOCKER_CONFIG to use.
set -euo pipefail
folder=${DURABLE_CACHE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/durable-cache}/docker
plugin=$folder/cli-plugins/docker-compose
if ! [ -x "$plugin" ]; then
  archive=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$folder/cli-plugins"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$keyring] $archive trixie main" >"$work/sources.list"
  options=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root
    -o Acquire::Languages=none)
  cd "$work"
  apt-get "${options[@]}" update >&2
  apt-get "${options[@]}" download docker-compose >&2
  dpkg-deb -x docker-compose_*.deb unpacked
  mv unpacked/usr/libexec/docker/cli-plugins/docker-compose "$plugin"
fi
echo "$folder"
