#!/usr/bin/env bash
# Makes the base images that the Dockerfiles name (of the image, and of the helpers of its test) on a machine that reaches
# no container registry: Debian by debootstrap, Rust from that and the installed toolchain. An image that is there stays.
#
#   tests/image/bases.sh            all of them
#   tests/image/bases.sh debian     only Debian; prints its name
#
# With BASES=pull it makes nothing: `docker build` and `docker run` pull them.
set -euo pipefail

readonly here=${BASH_SOURCE[0]%/*}
readonly dockerfiles=("$here/../../Dockerfile" "$here/Dockerfile")
readonly label=dev.segue.made-by=tests/image/bases.sh

say() { echo "bases: $*" >&2; }
die() { say "$*"; exit 1; }

# `FROM rust:1.95-bookworm AS build` → `rust:1.95-bookworm`
base_named() { sed -nE "s/^FROM ($1:[^ ]+).*/\1/p" "${dockerfiles[@]}" | sort -u; }
there() { docker image inspect "$1" >/dev/null 2>&1; }

debian=$(base_named debian)
rust=$(base_named rust)
if [ -z "$debian" ] || [ -z "$rust" ] || [ "$(wc -l <<<"$debian$rust")" != 1 ]; then
  die "expected one 'debian:…' and one 'rust:…' in the Dockerfiles, found '$debian' and '$rust'"
fi
only=${1:-}
[ "$only" != debian ] || echo "$debian"
[ "${BASES:-make}" = pull ] && exit 0
there "$debian" && { [ "$only" = debian ] || there "$rust"; } && exit 0

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)

work=$(mktemp -d)
trap '"${as_root[@]}" rm -rf "$work"' EXIT

make_debian() {
  local suite=${debian#*:}
  suite=${suite%-slim}
  if ! command -v debootstrap >/dev/null; then
    command -v apt-get >/dev/null ||
      die "no $debian here, and no Debian to make it from; with a registry at hand, BASES=pull lets docker pull it"
    say "installing debootstrap"
    "${as_root[@]}" apt-get install -y -qq debootstrap >/dev/null 2>&1 || {
      "${as_root[@]}" apt-get update -qq >&2
      "${as_root[@]}" apt-get install -y -qq debootstrap >/dev/null
    }
  fi
  say "making $debian with debootstrap (BASES=pull lets docker pull it instead)"
  "${as_root[@]}" env PATH="$PATH:/usr/sbin:/sbin" \
    debootstrap --variant=minbase "$suite" "$work/debian" >"$work/debootstrap.log" 2>&1 ||
    die "debootstrap failed: $(tail -n 3 "$work/debootstrap.log")"

  # What this machine's apt needs to reach its sources, that of the container does.
  apt-config dump 2>/dev/null | grep -E '^Acquire::(Check-|https?::|Retries )' |
    "${as_root[@]}" tee "$work/debian/etc/apt/apt.conf.d/90-as-on-the-host" >/dev/null || true

  # The same that Debian's own slim images lack.
  (
    cd "$work/debian"
    "${as_root[@]}" find usr/share/doc -type f ! -name copyright -delete
    "${as_root[@]}" rm -rf usr/share/{man,info,locale,lintian,linda} var/lib/apt/lists/* var/cache/apt/* \
      var/cache/debconf/*-old var/log/*
  )
  "${as_root[@]}" tar -C "$work/debian" --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -c . |
    docker import --change 'CMD ["bash"]' --change "LABEL $label" - "$debian" >/dev/null
}

make_rust() {
  command -v rustc >/dev/null || die "no $rust here, and no Rust toolchain to make it from"
  local version=${rust#*:}
  version=${version%%-*}
  case $(rustc --version) in
    "rustc $version".*) ;;
    *) die "the Dockerfiles want $rust, the toolchain here is $(rustc --version)" ;;
  esac
  say "making $rust from it and the installed toolchain"

  local context=$work/rust sysroot
  sysroot=$(rustc --print sysroot)
  mkdir -p "$context/toolchain/lib"
  # The compiler, cargo and the standard library; no documentation, no lints. Links where that works: it is half a gigabyte.
  mkdir "$context/toolchain/bin"
  cp "$sysroot/bin/rustc" "$sysroot/bin/cargo" "$context/toolchain/bin/"
  cp -a "$sysroot/lib/." "$context/toolchain/lib/"
  # The authorities that this machine trusts, its own ones among them.
  cp -L /etc/ssl/certs/ca-certificates.crt "$context/"
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $debian
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY ca-certificates.crt /etc/ssl/certs/
COPY toolchain /usr/local/rustup
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/local/rustup/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LABEL $label
DOCKERFILE
  "$here/build.sh" -t "$rust" "$context" || die "making $rust failed"
}

there "$debian" || make_debian
[ "$only" = debian ] || there "$rust" || make_rust
