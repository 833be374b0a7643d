#!/bin/bash
# The example of docs/parallel.md: two ranks find one another through a launcher's variables and train as one
# does; of a rank that never comes the other says so: parallel_test.sh PROGRAM
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GLOO_SOCKET_IFNAME=lo
"$(dirname "$0")/pieces_test.sh" "$program" parallel

# A port that is free, or was a moment ago.
port=$((20000 + RANDOM % 10000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
rank() { OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$1 OMPI_COMM_WORLD_LOCAL_SIZE=2 \
  MASTER_PORT=$port timeout 3600 "$program" parallel "$2"; }
# By day one of each kind: the others are parts of them.
ways=(data sharded stages heads)
[[ -z ${PLIMSOLL_NIGHTLY:-} ]] || ways+=(agreed pipeline tensor trainer)
for way in "${ways[@]}"; do
  "$program" parallel "$way" >"$folder/alone"
  rank 1 "$way" >"$folder/second" &
  rank 0 "$way" >"$folder/first"
  wait $!
  [[ $(wc -l <"$folder/alone") == 10 && ! -s $folder/second ]]
  diff "$folder/alone" "$folder/first"
  port=$((port + 1))
done
"$program" parallel devices
if RANK=1 WORLD_SIZE=2 "$program" parallel 2>"$folder/error"; then exit 1; fi
grep -q 'MASTER_ADDR' "$folder/error"
echo "parallel_test: two ranks train as one does"
