#!/usr/bin/env bash
# Sets up a checkout: system packages, .venv, native libraries. Asks nothing, repeats in a second.
#   scripts/setup.sh             what SigmaTrace and its demo need
#   scripts/setup.sh --dev       also what tests and style checks need (tests/rigs/packages.txt)
#   scripts/setup.sh --bench     also what the benchmarks compare with
#   scripts/setup.sh --rebuild   build the native libraries again if a source changed
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build pkg-config python3-venv python3-dev
  libfabric-dev libfabric-bin libucx-dev ucx-utils libibverbs-dev)
rebuild= dev= bench=
for option in "$@"; do
  case $option in
    --rebuild) rebuild=1 ;;
    --dev) dev=1 ;;
    --bench) dev=1; bench=1; packages+=(liblttng-ust-dev lttng-tools) ;;
    *) echo "setup: unknown option $option" >&2; exit 2 ;;
  esac
done
python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.sigmatrace-setup

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}

# Installs those of the named packages that are missing; says why it cannot.
install_packages() {
  local missing=() package root=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { say "these packages are missing: run this as root, or ask for" \
      "them to be installed: apt-get install ${missing[*]}" >&2; return 1; }
    root=(sudo -n)
  fi
  say "installing ${missing[*]}"
  local get=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y
    -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120)
  local install=("${get[@]}" install --no-install-recommends "${missing[@]}")
  local log
  log=$(mktemp)
  # The lists of a fresh machine are empty, those of an old one stale: then fetch them.
  "${install[@]}" >"$log" 2>&1 \
    || { "${get[@]}" update >>"$log" 2>&1 && "${install[@]}" >>"$log" 2>&1; } \
    || { cat "$log" >&2; say "apt-get could not install ${missing[*]}" >&2; return 1; }
  rm -f "$log"
}

# What the environment depends on: Python itself, and the project's declared dependencies.
fingerprint() { { "$python" -VV; pwd; cat pyproject.toml scripts/setup.sh; } | sha256sum; }

# What the native libraries depend on.
native_fingerprint() {
  find sigmatrace/capture/native -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum
}

build_native() {
  say "building the native libraries"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
  native_fingerprint >"$stamp.native"
}

create_venv() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "Python 3.11 or newer is needed; name one by PYTHON=..."
  say "installing into $venv${dev:+, with what tests need}"
  [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
  local pip=("$venv/bin/pip" install -q --disable-pip-version-check)
  "${pip[@]}" 'scikit-build-core>=0.11' 'cffi>=1.16' 'setuptools>=70'
  "${pip[@]}" --no-build-isolation -e ".${dev:+[dev]}"
  native_fingerprint >"$stamp.native"
  fingerprint >"$stamp"
  [ -z "$dev" ] || cp "$stamp" "$stamp.dev"
}

# The pins of dftracer-utils conflict with ours, so it has an environment of its own.
create_peer() {
  local pin
  pin=dftracer-utils==$(sed -n 's/^DFTRACER = "\(.*\)"$/\1/p' benchmarks/peers/__init__.py)
  local peer=.venv-dftracer
  ! is_current "$peer/.sigmatrace-setup" "$pin" || return 0
  say "installing $pin into $peer"
  rm -rf "$peer"
  "$python" -m venv "$peer" && "$peer/bin/pip" install -q --disable-pip-version-check "$pin" \
    && echo "$pin" >"$peer/.sigmatrace-setup"
}

is_current() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

install_packages "${packages[@]}" || exit 1
if [ "$dev" ]; then
  mapfile -t rig < <(grep -v '^#' tests/rigs/packages.txt)
  install_packages "${rig[@]}" || say "without them, tests with Slurm or a browser fail, and those with virtual machines do not run" >&2
fi
if ! is_current "$stamp${dev:+.dev}" "$(fingerprint)"; then
  create_venv
elif [ "$rebuild" ] && ! is_current "$stamp.native" "$(native_fingerprint)"; then
  build_native
fi
if [ "$bench" ]; then
  install_packages babeltrace2 || say "without babeltrace2, make bench says that it is missing" >&2
  create_peer || { rm -rf .venv-dftracer
    say "without dftracer-utils, make bench says that it is missing" >&2; }
fi
