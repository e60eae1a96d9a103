#!/usr/bin/env bash
# Captures two real programs of two processes each, correlates them, and says where the result is.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
out=demo-out
rm -rf "$out"
mkdir -p "$out"

step() { printf '\n== %s\n' "$*"; }

# A free TCP port, so that two demos do not meet.
port() { "$bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Server and client of one program as one command; the client is started again until the server
# listens. Arguments: port, then the program; the client gets the server's name at its end.
pair='
port=$1; shift
"$@" >"$LOG" 2>&1 & server=$!
while ! grep -qi "$(printf ":%04X 00000000:0000 0A" "$port")" /proc/net/tcp /proc/net/tcp6; do
  kill -0 $server 2>/dev/null || { cat "$LOG" >&2; exit 1; }
done
"$@" 127.0.0.1 && wait $server'

capture() { # NAME PORT PROGRAM...
  local name=$1
  shift
  LOG=$out/$name-server.log "$bin/sigmatrace-capture" -o "$out/$name" --run-id "demo-$name" \
    -- bash -c "$pair" pair "$@"
}

step "libfabric: fi_pingpong, two processes over TCP"
p=$(port)
capture libfabric "$p" fi_pingpong -B "$p" -P "$p" -p tcp -e msg -I 100 -S all

step "UCX: ucx_perftest tag_lat, two processes over TCP"
p=$(port)
UCX_TLS=tcp UCX_NET_DEVICES=lo capture ucx "$p" ucx_perftest -p "$p" -t tag_lat -n 2000 -w 100 -s 4096

for name in libfabric ucx; do
  step "correlate: $name"
  "$bin/sigmatrace-pipeline" "+run=$out/$name" 'export=[perfetto,json,matrix]'
done

step "where it is"
find "$out" -path '*sigmatrace-out*' -type f | sort
echo
echo "Open a trace (.pftrace) in the Perfetto UI; docs/quickstart.md says how, also offline."
