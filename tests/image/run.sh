#!/usr/bin/env bash
# Builds the image and tests it as a site would run it: etcd, two routers, a coordinator and its standby, and writer pods,
# each in a container of its own on a network of their own. While checked load runs, a writer joins, one leaves, a router
# and the leading coordinator are killed, and the writer comes back. Fails unless nothing was harmed, the image's bill of
# materials is whole, the binary lists the same crates and is optimised by deploy/pgo, its live page is served, and a second
# build has the same layers.
#
#   --short                without the second build, which compiles the workspace once more
#   BUILD_SECONDS=1800     how long each build may take (see build.sh)
#   BASES=pull             let docker pull the base images instead of making those that are missing (see bases.sh)
#
# The images stay, so that the next run builds only what has changed; `docker rmi segue:test segue:test-build
# segue:test-helper` removes them, `docker image prune` what earlier builds have left. Containers, network and volume are
# gone at the end, however it ends.
set -euo pipefail

here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
root=$(cd "$here/../.." && pwd)
readonly here root
readonly image=segue:test build_stage=segue:test-build helper=segue:test-helper again=segue:test-again
readonly run=segue-test-$$
readonly keyspace=orders etcd=http://etcd:2379
# The last part of each address: those that everybody knows keep theirs when they come back.
declare -rA host_part=([etcd]=10 [router-0]=20 [router-1]=21)

case ${1:-} in
  '') reproduce=yes ;;
  --short) reproduce=no ;;
  *) echo "usage: tests/image/run.sh [--short]" >&2; exit 2 ;;
esac

say() { echo "image: $*" >&2; }
die() { say "FAILED: $*"; exit 1; }

work=$(mktemp -d)
containers() { docker ps --all --quiet --filter "label=segue.run=$run"; }

clean_up() {
  local code=$?
  trap - EXIT
  if [ "$code" != 0 ] && [ -n "$(containers)" ]; then
    for container in $(containers); do
      say "the last words of $(docker inspect --format '{{.Config.Hostname}} ({{.State.Status}}, exit code {{.State.ExitCode}})' "$container"):"
      docker logs --tail 15 "$container" 2>&1 | sed 's/^/    /' >&2
    done
  fi
  containers | xargs -r docker rm --force --volumes >/dev/null
  docker network rm "$run" >/dev/null 2>&1 || true
  docker volume rm "$run" >/dev/null 2>&1 || true
  docker rmi "$again" >/dev/null 2>&1 || true
  rm -rf "$work"
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# await SECONDS WHAT COMMAND…: until the command succeeds.
await() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || die "waited in vain for $what"
    sleep 0.3
  done
}

# start NAME DOCKER_ARGUMENTS…: a container of that host name on the network.
start() {
  local name=$1
  shift
  local address=()
  [ -z "${host_part[$name]:-}" ] || address=(--ip "$prefix.${host_part[$name]}")
  docker run --detach --name "$run-$name" --hostname "$name" --label "segue.run=$run" \
    --network "$run" --network-alias "$name" "${address[@]}" "$@" >/dev/null
}

# As an orchestrator would that grants nothing: the image writes no file and needs no privilege.
start_segue() {
  start "$1" --read-only --cap-drop ALL --security-opt no-new-privileges \
    --volume "$here/$2.toml:/etc/segue/segue.toml:ro" "$image" run --config /etc/segue/segue.toml
}

start_writer() {
  # Routers are told an address, so it has to be its own one.
  # shellcheck disable=SC2016
  start "$1" --volume "$run:/log" "$helper" sh -c \
    'exec writer --etcd "$0" --keyspace "$1" --name "$2" --listen "$(hostname -i):8181" --log-dir /log' "$etcd" "$keyspace" "$1"
}

client() { docker exec "$run-client" "$@"; }
ready() { client curl --silent --fail --max-time 2 "http://$1:9090/ready"; }
status() { client segue status --etcd "$etcd" --keyspace "$keyspace" --json; }

# holds FILTER: whether the keyspace is as the jq filter says.
holds() { status | docker exec --interactive "$run-client" jq --exit-status "$1"; }
readonly settled='(.partitions > 0) and .unowned == 0 and .handoffs == []'
owns_some() { echo "$settled and any(.pods[]; .name == \"$1\" and .partitions > 0)"; }

# Cutovers that the router which is never killed has made.
cutovers() { client curl --silent --fail http://router-0:9090/metrics | awk '/^segue_cutovers_total/ { sum += $NF } END { print sum + 0 }'; }

# Whether the routers have answered enough requests to speak of a load.
is_loaded() {
  for router in router-0 router-1; do client curl --silent --fail "http://$router:9090/metrics"; done |
    awk '/^segue_requests_total/ { sum += $NF } END { exit !(sum > 1000) }'
}

# The live page, as a browser gets it: it may load nothing from elsewhere.
page_is_served() {
  local answer
  answer=$(client curl --silent --fail --include "http://$1:9090/") || return 1
  grep -qi "^content-security-policy: default-src 'none';" <<<"$answer" && grep -q '<title>' <<<"$answer"
}

# Docker's own word for how the container runs, and the kernel's for its user.
is_confined() {
  [ "$(docker inspect --format '{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}' "$run-$1")" = 'true [ALL]' ] &&
    [ "$(docker top "$run-$1" -o pid,uid | awk 'NR > 1 { print $2 }' | sort -u)" = 65532 ]
}

layers() { docker image inspect --format '{{json .RootFS.Layers}}' "$1"; }

# ends_well NAME: on SIGTERM, within its time, with 0.
ends_well() {
  docker stop -t 60 "$run-$1" >/dev/null
  local code
  code=$(docker inspect --format '{{.State.ExitCode}}' "$run-$1")
  [ "$code" = 0 ] || die "$1 ended with exit code $code on SIGTERM"
}

# build WHAT ARGUMENTS…
build() {
  local what=$1
  shift
  "$here/build.sh" "$@" || die "$what cannot be built"
}

# --- the images ---

docker info >/dev/null 2>&1 || die "no Docker engine can be reached"
"$here/bases.sh"
say "building $image (minutes, the first time)"
began=$SECONDS
build "the image's build stage" --target build --tag "$build_stage" "$root"
build "the image" --tag "$image" "$root"
size_mb=$(($(docker image inspect --format '{{.Size}}' "$image") / 1000000))
say "built in $((SECONDS - began)) s: $size_mb MB"
reproducible=unknown
if [ "$reproduce" = yes ]; then
  say "building it again"
  build "the image's second build" --build-arg BUILD=2 --tag "$again" "$root"
  [ "$(layers "$again")" = "$(layers "$image")" ] || die "two builds differ: $(layers "$image") and $(layers "$again")"
  reproducible=yes
fi
docker create --name "$run-bill" --label "segue.run=$run" "$image" >/dev/null
docker cp "$run-bill:/usr/share/doc/segue/segue.cdx.json" "$work/sbom.json"
crates=$("$root/.tools/package/bin/python" "$root/tests/package/sbom.py" "$work/sbom.json") || die "the bill of materials is not sound"
docker cp "$run-bill:/usr/local/bin/segue" "$work/segue"
auditable=$("$here/auditable.py" "$work/segue" "$work/sbom.json") || die "the list of crates in the binary is not sound"
counted=$("$root/scripts/counted" "$root/deploy/pgo/segue.profdata" "$work/segue")
[ "$counted" -ge 50 ] || die "the binary has $counted % of the functions that deploy/pgo counts; renew it with 'make pgo'"
say "building $helper"
build "the image of the test's helpers" --build-arg "IMAGE=$image" --build-arg "BUILD_STAGE=$build_stage" --tag "$helper" "$here"

[ "$(docker image inspect --format '{{json .Config.Entrypoint}} {{.Config.User}}' "$image")" = '["segue"] 65532:65532' ] ||
  die "the image's entry point or user is not what it should be"
docker run --rm --network none "$image" --version >/dev/null || die "the image's binary does not start"

# --- the site ---

# Docker knows which subnet is free, but hands out addresses in it only if it was named.
docker network create "$run" >/dev/null
subnet=$(docker network inspect --format '{{(index .IPAM.Config 0).Subnet}}' "$run")
docker network rm "$run" >/dev/null
docker network create --internal --subnet "$subnet" "$run" >/dev/null
docker volume create "$run" >/dev/null
prefix=${subnet%.*}

say "starting etcd, routers, coordinators and writers on $subnet"
start client --volume "$run:/log" "$helper" sleep 3600
start etcd "$helper" etcd --data-dir /var/lib/etcd-test \
  --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls "$etcd"
await 30 "etcd" client curl --silent --fail "$etcd/health"
start_segue coordinator-0 coordinator
start_segue coordinator-1 coordinator
start_segue router-0 router
start_segue router-1 router
for writer in writer-0 writer-1 writer-2; do start_writer "$writer"; done
for part in coordinator-0 coordinator-1 router-0 router-1; do await 30 "$part to be ready" ready "$part"; done
await 60 "the first placement" holds "$settled and (.pods | length) == 3 and (.routers | length) == 2"
for part in coordinator-0 router-0; do
  is_confined "$part" || die "$part runs as another user, with capabilities, or can write to its root"
  page_is_served "$part" || die "$part does not serve the live page"
done
before=$(cutovers)

# --- moves under load ---

say "load"
# It ends when the steps have: how long they take depends on the machine.
# shellcheck disable=SC2016
client sh -c 'echo $$ >/tmp/load && exec segue bench http://router-0:8080 http://router-1:8080 --partitions 64 --clients 32 \
  --bursts 4 --rate 2000 --duration 1h --log-dir /log --json' >"$work/report.json" 2>"$work/bench.log" &
load=$!
await 30 "the load" is_loaded

say "writer-3 joins"
start_writer writer-3
await 60 "writer-3 to get its share" holds "$(owns_some writer-3)"

say "writer-0 leaves"
ends_well writer-0
await 30 "the rest to have it all" holds "$settled and (.pods | length) == 3"

say "router-1 is killed and comes back"
docker kill "$run-router-1" >/dev/null
docker start "$run-router-1" >/dev/null
await 30 "router-1 to be ready again" ready router-1

leader=$(status | docker exec --interactive "$run-client" jq --raw-output .leader)
say "$leader, which leads, is killed"
docker kill "$run-$leader" >/dev/null
await 30 "another leader" holds ".leader != null and .leader != \"$leader\""

say "writer-0 comes back"
docker start "$run-writer-0" >/dev/null
await 60 "writer-0 to get its share" holds "$(owns_some writer-0)"

kill -0 "$load" 2>/dev/null || die "the load ended by itself"
moved=$(($(cutovers) - before))
await 30 "quiet" holds "$settled"
# shellcheck disable=SC2016
client sh -c 'kill -TERM "$(cat /tmp/load)"'
wait "$load" && bench_code=0 || bench_code=$?

# --- what came of it ---

for part in router-0 router-1; do ends_well "$part"; done
read_report() { docker exec --interactive "$run-client" jq "$@" <"$work/report.json"; }
read_report --exit-status '.requests > 0' >/dev/null 2>&1 || {
  sed 's/^/    /' "$work/bench.log" >&2
  die "the load sent nothing (exit code $bench_code)"
}
requests=$(read_report .requests)
harm=$(read_report '.lost + .duplicated + .misrouted + .reordered + .dual_writer_overlaps')
errors=$(read_report --compact-output .errors)
say "answers that were no success: $errors"
if [ "$harm" != 0 ]; then
  read_report '{lost, duplicated, misrouted, reordered, dual_writer_overlaps, harm}' >&2
  die "$harm requests of $requests were harmed"
fi
[ "$bench_code" = 0 ] || die "the load ended with exit code $bench_code: $(tail -n 3 "$work/bench.log")"
read_report --exit-status '.checked.log_records > 0' >/dev/null || die "the load did not see the writers' logs"
[ "$moved" -gt 0 ] || die "nothing was moved"
echo "image: size_mb=$size_mb crates=$crates auditable=$auditable counted=$counted% reproducible=$reproducible requests=$requests cutovers=$moved harm=0"
