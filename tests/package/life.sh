#!/usr/bin/env bash
# The life of the package on a minimal Debian: run.sh runs it there as root.
#
#   life.sh PACKAGE NEWER_PACKAGE
set -euo pipefail

config=/etc/segue/segue.toml

die() { echo "package: $*" >&2; exit 1; }
has() { for path in "$@"; do [ -e "$path" ] || die "$path is missing"; done; }
has_not() { for path in "$@"; do [ ! -e "$path" ] || die "$path is left"; done; }
quietly() { "$@" >/tmp/log 2>&1 || { cat /tmp/log >&2; die "failed: $*"; }; }

# The images of Debian's own exclude manual pages and documentation.
rm -f /etc/dpkg/dpkg.cfg.d/docker
echo 'Acquire::Retries "3";' >/etc/apt/apt.conf.d/80-retries
quietly apt-get update -qq
# The smaller one of the two that can make the user.
quietly apt-get install -y -qq --no-install-recommends systemd-standalone-sysusers

# A file of the administrator from before the first installation. Without the option dpkg asks which one to take.
mkdir /etc/segue
echo '# from before' >"$config"
! apt-get install -y -qq --no-install-recommends "$1" </dev/null >/tmp/log 2>&1 || die "nobody was asked about $config"
grep -q "'/etc/segue/segue.toml'" /tmp/log || { cat /tmp/log >&2; die "the installation failed without the question"; }
quietly apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "$1"
[ "$(cat "$config")" = '# from before' ] || die "the installation has changed the configuration"
quietly apt-get purge -y -qq segue

quietly apt-get install -y -qq --no-install-recommends "$1"
has /usr/bin/segue "$config" /lib/systemd/system/segue.service /usr/share/man/man1/segue.1.gz /usr/share/man/man1/segue-check.1.gz \
  /usr/share/bash-completion/completions/segue /usr/share/zsh/vendor-completions/_segue \
  /usr/share/fish/vendor_completions.d/segue.fish /usr/share/doc/segue/copyright
getent passwd segue >/dev/null || die "there is no user segue"
segue --version >/dev/null
for example in /usr/share/doc/segue/examples/*.toml; do
  segue check --config "$example" 2>/tmp/log || { cat /tmp/log >&2; die "$example is refused"; }
done
# Without a role nothing starts by accident.
! segue check --config "$config" 2>/dev/null || die "the configuration as installed runs something"

echo '# of the administrator' >>"$config"
quietly apt-get install -y -qq "$2"
[ "$(dpkg-query --show --showformat '${Version}' segue)" = "$(dpkg-deb --field "$2" Version)" ] || die "it was not upgraded"
grep -q 'of the administrator' "$config" || die "the upgrade has changed the configuration"

quietly apt-get remove -y -qq segue
has_not /usr/bin/segue /lib/systemd/system/segue.service
has "$config"

touch /etc/segue/router.key
quietly apt-get purge -y -qq segue
has_not "$config"
has /etc/segue/router.key

rm /etc/segue/router.key
quietly apt-get install -y -qq --no-install-recommends "$1"
quietly apt-get purge -y -qq segue
has_not /etc/segue /usr/share/doc/segue
