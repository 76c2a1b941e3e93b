#!/usr/bin/env bash
# `docker build` that reaches the network as this machine does: through its own interfaces, resolver and proxies.
set -euo pipefail

args=(--network host)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  # Docker knows these names and keeps their values out of the image.
  [ -z "${!name:-}" ] || args+=(--build-arg "$name")
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! docker build "${args[@]}" "$@" >"$log" 2>&1; then
  tail -n "${BUILD_LOG_LINES:-60}" "$log" >&2
  exit 1
fi
