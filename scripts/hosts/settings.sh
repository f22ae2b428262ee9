# shellcheck shell=bash disable=SC2034  # used by the scripts that source it
# What scripts/hosts/start, enter, link and stop share; start explains the variables.
ROOT=${LOCAL_HOSTS_ROOT:-/tmp/mpifed-hosts}
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'hosts/%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
  say "$*"
  exit 2
}

# Others may write to the directory above: nothing is believed that they could have put there.
check_root() {
  [ "$(stat --format='%F %u %a' "$ROOT")" = "directory $(id -u) 700" ] ||
    die "LOCAL_HOSTS_ROOT=$ROOT is not a directory of yours with mode 0700; choose another"
}
if [ -e "$ROOT" ] || [ -L "$ROOT" ]; then check_root; fi

# born PROCESS: when it began, in ticks since the system did (field 22 of proc(5)).
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

# first HOST: the process that keeps the namespaces of a host; they end with it. Its number may be
# another's by now, unless that began at the same time.
first() {
  local process=none began=never
  { read -r process began <"$ROOT/${1/#10.77.0./node}"; } 2>/dev/null || true
  [ "$(born "$process")" = "$began" ] || die "there is no host $1; scripts/hosts/start N makes node1 to nodeN"
  echo "$process"
}

# end HOST: kills all processes of a host at once; its namespaces end with them.
end() {
  local keeper space process
  if ! keeper=$(first "$1") || ! space=$(readlink "/proc/$keeper/ns/net"); then return 0; fi
  for process in /proc/[0-9]*; do
    if [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$space" ]; then kill -KILL "${process#/proc/}" 2>/dev/null; fi
  done
  true
}
