#!/usr/bin/env bash
# Captures two real programs of two processes each, correlates them, and says where the result is.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
out=demo-out
rm -rf "$out"
mkdir -p "$out"

step() { printf '\n== %s\n' "$*"; }

# A port below those that the kernel gives to sockets which ask for none: it stays free.
free_port() {
  local port first
  read -r first _ </proc/sys/net/ipv4/ip_local_port_range
  for ((port = first - 1 - RANDOM % (first / 2); ; port--)); do
    grep -q "$(printf ':%04X ' "$port")" /proc/net/tcp /proc/net/tcp6 || break
  done
  echo "$port"
}

# Traces the server and the client of a program as one run: NAME PORT SERVER-COMMAND CLIENT-COMMAND.
capture() {
  "$bin/sigmatrace-capture" -o "$out/$1" -- bash -c '
    port=$(printf ":%04X 0*:0000 0A" "$2")
    $3 >"$1-server.log" 2>&1 &
    until grep -q "$port" /proc/net/tcp /proc/net/tcp6; do
      kill -0 $! || { cat "$1-server.log"; exit 1; }
      sleep 0.02
    done
    $4 && wait $!' pair "$out/$1" "$2" "$3" "$4"
}

step "libfabric: fi_pingpong between two processes over TCP"
port=$(free_port)
options="-p tcp -e msg -I 20 -S all"
capture libfabric "$port" "fi_pingpong -B $port $options" "fi_pingpong -P $port $options 127.0.0.1"

step "UCX: ucx_perftest tag_lat between two processes over TCP"
port=$(free_port)
export UCX_TLS=tcp UCX_NET_DEVICES=lo
program="ucx_perftest -p $port -t tag_lat -n 1000 -w 50 -s 4096"
capture ucx "$port" "$program" "$program 127.0.0.1"

for name in libfabric ucx; do
  step "correlate: $name"
  "$bin/sigmatrace-pipeline" "+run=$out/$name" 'export=[perfetto,json,matrix]'
done

step "the results"
for name in libfabric ucx; do
  echo "$name:"
  echo "  trace    $out/$name/sigmatrace-out/trace.pftrace"
  echo "  picture  $out/$name/sigmatrace-out/matrix/rank-bytes.png"
  echo "  summary  $out/$name/sigmatrace-out/summary.txt"
done
echo "docs/quickstart.md says how to look at a trace."
