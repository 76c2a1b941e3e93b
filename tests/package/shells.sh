#!/usr/bin/env bash
# What the package's completions and manual pages do: run.sh runs it as root in a container with shells and mandoc. The completions
# of bash and zsh are asked by the key Tab at a terminal.
#
#   shells.sh PACKAGE
set -euo pipefail

die() { echo "shells: $*" >&2; exit 1; }

dpkg --install "$1" >/tmp/log 2>&1 || { cat /tmp/log >&2; die "the package cannot be installed"; }

# asked SHELL WORDS: what the shell makes of the words when Tab is pressed behind them. Ctrl-A goes back to put `echo` in front.
asked() {
  printf '%s\t\001echo "GOT:" \nexit\n' "$2" | TERM=dumb script --quiet --command "$1" /dev/null 2>&1 | tr -d '\r' |
    sed -nE 's/^GOT: ?(.*[^ ]) *$/\1/p'
}

# Of both shells that are asked by Tab.
mkdir /tmp/shells
echo 'source /usr/share/bash-completion/bash_completion' >/tmp/shells/.bashrc
printf '%s\n' 'bindkey -e' 'unsetopt ZLE_BRACKETED_PASTE' 'autoload -Uz compinit' 'compinit -u' >/tmp/shells/.zshrc
cd /etc/segue
for shell in "bash --rcfile /tmp/shells/.bashrc -i" "env ZDOTDIR=/tmp/shells zsh -i"; do
  while IFS='|' read -r words expected; do
    got=$(asked "$shell" "$words")
    [ "$got" = "$expected" ] || die "${shell##*env}: '$words' and Tab give '$got', not '$expected'"
  done <<'ASKED'
segue st|segue status
segue status --rou|segue status --routers
segue wait se|segue wait settled
segue completions fi|segue completions fish
segue check --config segue.t|segue check --config segue.toml
segue demo --scenario rol|segue demo --scenario rolling
ASKED
done
[ "$(fish --command "complete --do-complete='segue st'" | cut -f1)" = status ] || die "fish does not complete 'segue st'"
[ "$(fish --command "complete --do-complete='segue status --rou'" | cut -f1)" = --routers ] || die "fish does not complete an option"

# Every command of the help has a page, which mandoc and the index of pages can read.
commands=$(segue --help | sed -n '/^Options:/q; s/^  \([a-z-]*\)  .*/\1/p' | grep -vx help)
[ "$(wc -w <<<"$commands")" -gt 15 ] || die "the help lists only: $commands"
for command in $commands; do
  page=/usr/share/man/man1/segue-$command.1.gz
  [ -e "$page" ] || die "segue $command has no manual page"
  # Not -q: grep would end before mandoc has written everything, and mandoc with it.
  mandoc "$page" | grep "^ *segue-$command - [A-Z]" >/dev/null || die "$page does not say what segue $command is"
done
for page in /usr/share/man/man1/segue*.1.gz /usr/share/man/man5/segue.toml.5.gz; do
  mandoc -T lint -W error "$page" || die "mandoc finds errors in $page"
  # Pages to which this one refers.
  for other in $(mandoc "$page" | grep -oE 'segue(-[a-z]+)+\(1\)' | sort -u); do
    [ -e "/usr/share/man/man1/${other%(1)}.1.gz" ] || die "$page refers to $other, which is missing"
  done
done
