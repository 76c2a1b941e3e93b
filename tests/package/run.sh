#!/usr/bin/env bash
# Tests the Debian package: two builds are equal, lintian finds nothing, its bill of materials is whole, and a minimal Debian
# installs, upgrades, removes and purges it. Needs a Docker engine, the network of apt, and `scripts/setup package`.
#
#   tests/package/run.sh target/verify/segue
set -euo pipefail

binary=$(realpath "$1")
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
container=segue-package-$$
proxies=()
trap 'docker rm --force "$container" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

die() { echo "package: FAILED: $*" >&2; exit 1; }
mkdir "$work/one" "$work/two" "$work/newer"
# Compression takes a minute at the level of a release, and makes no difference here.
export LEVEL=0

package=$("$root/deploy/debian/build" "$binary" "$work/one")
sleep 1 # so that a time of the build would differ
again=$("$root/deploy/debian/build" "$binary" "$work/two")
cmp "$package" "$again" || die "two builds of one binary differ"
version=$(dpkg-deb --field "$package" Version)
newer=$(VERSION=$version+newer "$root/deploy/debian/build" "$binary" "$work/newer")

[ "$(dpkg-deb --info "$package" conffiles)" = /etc/segue/segue.toml ] || die "the configuration is no conffile"
# An error or a warning of lintian fails; deploy/debian/lintian-overrides has the exceptions with their reasons.
lintian --fail-on error,warning --tag-display-limit 0 "$package" || die "lintian has objections"

dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/share/doc/segue/segue.cdx.json >"$work/sbom.json"
crates=$("$root/.tools/package/bin/python" "$here/sbom.py" "$work/sbom.json") || die "the bill of materials is not sound"

debian=$("$root/tests/image/bases.sh" debian)
docker run --detach --rm --name "$container" --network host --volume "$work:/packages:ro" --volume "$here/life.sh:/life.sh:ro" \
  "$debian" sleep infinity >/dev/null
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -z "${!name:-}" ] || proxies+=(--env "$name")
done
docker exec "${proxies[@]}" --env DEBIAN_FRONTEND=noninteractive "$container" \
  bash /life.sh "/packages/one/${package##*/}" "/packages/newer/${newer##*/}" || die "see above"
echo "package: version=$version size_kb=$(($(stat --format %s "$package") / 1000)) reproducible=yes lintian=clean crates=$crates life=ok"
