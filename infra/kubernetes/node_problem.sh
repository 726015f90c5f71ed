#!/bin/bash
# Plugin of node-problem-detector (custom plugin monitor): is a rank on this node at fault now, as `drumline exporter`
# knows? It needs bash alone. node_problem.json is the monitor's configuration.
#
#   node_problem.sh HOST PORT [NODE]        NODE: default $NODE_NAME, else the host's name
#
# Exits with 0 (no problem), 1 (a problem, a sentence on stdout) or 2 (not known).
host=${1:?host of drumline exporter} port=${2:?its port} node=${3:-${NODE_NAME:-$(hostname)}}

unknown() {
    echo "$1"
    exit 2
}

exec 3<> "/dev/tcp/$host/$port" || unknown "drumline's exporter does not answer at $host:$port"
printf 'GET /nodes/%s HTTP/1.0\r\nHost: %s\r\n\r\n' "$node" "$host" >&3
read -r -t 5 _ status _ <&3 || unknown "drumline's exporter does not answer at $host:$port"
[ "$status" = 200 ] || unknown "drumline's exporter answers $status"
while IFS= read -r -t 5 line <&3 && [ "$line" != $'\r' ]; do :; done
IFS= read -r -t 5 state <&3
IFS= read -r -t 5 sentence <&3
echo "$sentence"
case $state in
    ok) exit 0 ;;
    problem) exit 1 ;;
    *) exit 2 ;;
esac
