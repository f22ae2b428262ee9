# shellcheck shell=bash disable=SC2034  # used by the scripts that source it
# What scripts/hosts/start, enter, link and stop share; start explains the variables.
ROOT=${LOCAL_HOSTS_ROOT:-/tmp/mpifed-hosts}
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'hosts/%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
  say "$*"
  exit 2
}

# first HOST: the process that keeps the namespaces of a host; they end with it.
first() { cat "$ROOT/${1/#10.77.0./node}" 2>/dev/null || die "there is no host $1; scripts/hosts/start N makes node1 to nodeN"; }

# end HOST: kills all processes of a host at once; its namespaces end with them.
end() {
  local space process
  space=$(readlink "/proc/$(first "$1")/ns/net") || return 0
  for process in /proc/[0-9]*; do
    if [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$space" ]; then kill -KILL "${process#/proc/}" 2>/dev/null; fi
  done
  true
}
