#!/usr/bin/env bash
# `docker build` that reaches the network as this machine does: through its own interfaces, resolver and proxies. Quiet,
# unless it fails; BUILD_SECONDS is how long it may take.
set -euo pipefail

args=(--network host --force-rm)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  # Docker knows these names and keeps their values out of the image.
  [ -z "${!name:-}" ] || args+=(--build-arg "$name")
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
timeout --foreground "${BUILD_SECONDS:-1800}" docker build "${args[@]}" "$@" >"$log" 2>&1 || code=$?
[ "$code" = 0 ] && exit 0
tail -n 60 "$log" >&2
[ "$code" != 124 ] || echo "build: took longer than ${BUILD_SECONDS:-1800} s (BUILD_SECONDS)" >&2
exit 1
