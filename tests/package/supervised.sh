#!/usr/bin/env bash
# The unit of the package under a real systemd: run.sh runs it as root in a container whose first process that is. A reload and an
# upgrade of the package are hot restarts under load, a mistake changes nothing, a crash is repaired, and a stop drains.
#
#   supervised.sh PACKAGE NEWER_PACKAGE
set -euo pipefail

readonly config=/etc/segue/segue.toml router=http://127.0.0.1:8080 etcd=http://127.0.0.1:2379 work=/run/test
readonly partitions=16

die() {
  echo "systemd: $*" >&2
  systemctl status --no-pager --full segue.service >&2 || true
  journalctl --unit segue.service --no-pager --lines 20 >&2 || true
  exit 1
}
quietly() { "$@" >/tmp/log 2>&1 || { cat /tmp/log >&2; die "failed: $*"; }; }

# await SECONDS WHAT COMMAND…: until the command succeeds.
await() {
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || die "waited in vain for $what"
    sleep 0.1
  done
}

property() { systemctl show --property "$1" --value segue.service; }
gone() { [ ! -e "/proc/$1" ]; }
settled() { segue wait settled --etcd "$etcd" --timeout 1s; }
loaded() { [ -n "$(find "$work/log" -type f -size +0)" ]; }
is() { [ "$(property "$1")" = "$2" ]; }
refuses_clients() { ! (exec 3<>/dev/tcp/127.0.0.1/8080); }

# has_replaced PID: another process is the main one, it is the running program of the unit, and the old one has ended well.
has_replaced() {
  local main
  main=$(property MainPID)
  [ "$main" != "$1" ] || die "after $2 the main process is the old one"
  is ActiveState active || die "after $2 the unit is $(property ActiveState)"
  grep -qz '^run$' "/proc/$main/cmdline" || die "after $2 the main process is not 'segue run'"
  await 60 "the end of the old process after $2" gone "$1"
  is MainPID "$main" && is ActiveState active && is NRestarts 0 || die "the end of the old process after $2 has changed the unit"
}

# is_refused WHAT REASON: a reload fails and says why, and the running process stays.
is_refused() {
  local main
  main=$(property MainPID)
  ! systemctl reload segue.service 2>/dev/null || die "a reload succeeded with $1"
  is MainPID "$main" && is ActiveState active && is NRestarts 0 || die "a reload with $1 has changed the unit"
  # The journal takes lines a moment later than the command ends.
  await 10 "'$2' in the journal" sh -c "journalctl --unit segue.service --no-pager | grep -qF '$2'"
}

# --- the site: etcd, a coordinator and two writers beside the unit ---

mkdir -p "$work/log"
await 30 "etcd" bash -c 'exec 3<>/dev/tcp/127.0.0.1/2379'
quietly dpkg --install "$1"
cat >"$work/coordinator.toml" <<TOML
[store]
endpoints = ["$etcd"]
[coordinator]
partitions = $partitions
TOML
cat >"$config" <<TOML
[store]
endpoints = ["$etcd"]
[router]
listen = "127.0.0.1:8080"
hot_restart_socket = "/run/segue/router.sock"
[router.partition]
header = "x-partition"
[admin]
listen = "127.0.0.1:9090"
TOML
cp "$config" "$work/good.toml"
segue run --config "$work/coordinator.toml" >"$work/coordinator.log" 2>&1 &
for number in 0 1; do
  /test/writer --etcd "$etcd" --name "writer-$number" --listen "127.0.0.1:$((8181 + number))" --log-dir "$work/log" \
    >"$work/writer-$number.log" 2>&1 &
done

quietly systemctl start segue.service
is ActiveState active || die "the unit is $(property ActiveState) after its start"
[ "$(stat --format %U "/proc/$(property MainPID)")" = segue ] || die "the process has another user"
await 60 "the first placement" settled

segue bench "$router" --partitions "$partitions" --clients 8 --rate 200 --duration 1h --log-dir "$work/log" --json \
  >"$work/report.json" 2>"$work/bench.log" &
load=$!
await 30 "the load" loaded

# --- reloads and an upgrade under load ---

main=$(property MainPID)
quietly systemctl reload segue.service
has_replaced "$main" "a reload"

echo 'nonsense = 1' >>"$config"
is_refused "a mistake in the file" nonsense
# The file is sound, and etcd listens there.
sed 's/127.0.0.1:9090/127.0.0.1:2379/' "$work/good.toml" >"$config"
is_refused "an address that is taken" 'Address already in use'
cp "$work/good.toml" "$config"

main=$(property MainPID)
quietly systemctl reload segue.service
has_replaced "$main" "a reload after a failed one"

main=$(property MainPID)
quietly dpkg --install "$2"
has_replaced "$main" "an upgrade"

kill -0 "$load" 2>/dev/null || die "the load ended by itself: $(cat "$work/bench.log")"
kill -TERM "$load"
wait "$load" || die "the load ended with exit code $?: $(tail -c 2000 "$work/report.json" "$work/bench.log")"
requests=$(jq .requests "$work/report.json")
sound='.requests > 0 and .checked.log_records > 0 and .lost + .duplicated + .misrouted + .reordered + .dual_writer_overlaps == 0
  and ([.errors[][]] | add // 0) == 0'
jq --exit-status "$sound" "$work/report.json" >/dev/null || die "not all requests were applied once: $(jq 'del(.history)' "$work/report.json")"

# --- a crash of a process that systemd has not started itself ---

main=$(property MainPID)
kill -KILL "$main"
await 30 "a new process after a crash" is NRestarts 1
await 30 "it to serve" is ActiveState active
is MainPID "$main" && die "the killed process is still the main one"

# --- a stop finishes what is in flight ---

exec 3<>/dev/tcp/127.0.0.1/8080
printf 'PUT /keys/last HTTP/1.1\r\nhost: segue\r\nx-partition: 1\r\nx-request-id: 1\r\nx-sequence: 1\r\ncontent-length: 4\r\n\r\nha' >&3
await 10 "the request to be in flight" sh -c "curl --silent http://127.0.0.1:9090/metrics | grep -q '^segue_requests_in_flight.* [1-9]'"
systemctl stop --no-block segue.service
await 10 "the end to begin" is ActiveState deactivating
await 10 "the router to refuse clients" refuses_clients
printf 'lf' >&3
read -r -t 20 answer <&3 || die "the request in flight got no response"
[[ $answer == "HTTP/1.1 20"* ]] || die "the request in flight was answered by $answer"
exec 3>&-
await 60 "the unit to end" is ActiveState inactive
is Result success && is ExecMainStatus 0 || die "the unit ended as $(property Result)"
echo "$requests"
