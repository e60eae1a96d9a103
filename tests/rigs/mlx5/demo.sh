#!/usr/bin/env bash
# Traces a breadth-first search by the kernels of three processes, without a GPU and without a NIC,
# and says where the result is.
set -euo pipefail
cd "$(dirname "$0")/../../.."
bin=.venv/bin
out=demo-out/gpu
rm -rf "$out"
mkdir -p "$out"

step() { printf '\n== %s\n' "$*"; }

step "build the emulated NIC, the stand-in for CUDA, and the search"
"$bin/python" -m tests.rigs.mlx5.build "$out/rig" >/dev/null
echo "done: $out/rig"

step "search a graph of 1,024 vertices by one persistent kernel in each of three processes"
"$bin/sigmatrace-capture" --layers gpu --mode full -o "$out/run" -- "$bin/python" \
  -m tests.rigs.mlx5.bfs "$out/bfs" --rig "$out/rig" --ranks 3 --scale 10 threads=1

step "correlate"
"$bin/sigmatrace-pipeline" "+run=$out/run" 'export=[perfetto,json]'

step "the results"
echo "  trace    $out/run/sigmatrace-out/trace.pftrace"
echo "  summary  $out/run/sigmatrace-out/summary.txt"
echo "In the trace: below each process its GPU with the kernel and its doorbells, data and barriers"
echo "apart. docs/quickstart.md says how to look at a trace, tests/rigs/mlx5/README.md how to try more."
