#!/usr/bin/env bash
# Tests the Debian package: two builds are equal, lintian finds nothing, its bill of materials is whole, a minimal Debian
# installs, upgrades, removes and purges it, shells complete its commands, and a systemd runs its unit. Needs a Docker engine,
# the network of apt, and `scripts/setup package`. The last part needs an engine whose containers may mount control
# groups, and is skipped on others.
#
#   tests/package/run.sh target/debug/segue        # the example `writer` is beside it, in examples
set -euo pipefail

binary=$(realpath "$1")
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
container=segue-package-$$
readonly helper=segue:test-package-helper
proxies=()
trap 'docker rm --force "$container" "$container-shells" "$container-systemd" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

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

# Shells, a reader of manual pages, and what the site of the unit needs: etcd is a unit too, enabled when it is installed.
"$root/tests/image/build.sh" --tag "$helper" - <<DOCKERFILE || die "the image of the test's helpers cannot be built"
FROM $debian
RUN apt-get update \\
 && apt-get install -y --no-install-recommends bash-completion curl etcd-server fish jq mandoc systemd zsh \\
 && rm -rf /var/lib/apt/lists/*
DOCKERFILE
docker run --rm --name "$container-shells" --network none --volume "$work:/packages:ro" --volume "$here/shells.sh:/test/shells.sh:ro" \
  "$helper" bash /test/shells.sh "/packages/one/${package##*/}" || die "completions or manual pages, see above"

# What systemd needs of a container: to mount, also for the sandbox of a unit, and control groups of its own.
boot='mount -t cgroup2 none /sys/fs/cgroup && exec /lib/systemd/systemd'
grants=(--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined
  --cgroupns private --network none --tmpfs /run --tmpfs /tmp)
requests=skipped
if docker run --rm "${grants[@]}" "$helper" sh -c "${boot%% &&*}" >/dev/null 2>"$work/log"; then
  docker run --detach --name "$container-systemd" "${grants[@]}" --env container=docker --volume "$work:/packages:ro" \
    --volume "$here/supervised.sh:/test/supervised.sh:ro" --volume "${binary%/*}/examples/writer:/test/writer:ro" \
    "$helper" sh -c "$boot" >/dev/null
  requests=$(docker exec "$container-systemd" bash /test/supervised.sh "/packages/one/${package##*/}" \
    "/packages/newer/${newer##*/}") || die "under systemd, see above"
else
  echo "package: SKIPPED the unit under systemd: a container cannot mount its control groups: $(tail -n 1 "$work/log")" >&2
fi
echo "package: version=$version size_kb=$(($(stat --format %s "$package") / 1000)) reproducible=yes lintian=clean crates=$crates life=ok shells=ok systemd_requests=$requests"
