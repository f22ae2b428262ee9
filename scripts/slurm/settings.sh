# shellcheck shell=bash disable=SC2034  # used by the scripts that source it
# What scripts/slurm/start and stop share; start explains the variables.
ROOT=${LOCAL_SLURM_ROOT:-/tmp/mpifed-slurm}
NODES=${LOCAL_SLURM_NODES:-4}
CPUS=${LOCAL_SLURM_CPUS:-32}
GPUS=${LOCAL_SLURM_GPUS:-0}
BIND=${LOCAL_SLURM_BIND:-no}
PORT=${LOCAL_SLURM_PORT:-16817}
REQUEUE_DELAY=${LOCAL_SLURM_REQUEUE_DELAY:-10}
KILL_WAIT=${LOCAL_SLURM_KILL_WAIT:-5}
GRACE=${LOCAL_SLURM_GRACE:-10}
HOSTS=${LOCAL_SLURM_HOSTS:-no}
PREEMPT_SIGNAL=${LOCAL_SLURM_PREEMPT_SIGNAL:-yes}

MARK=.mpifed-slurm # what tells our directory from another

say() { printf 'slurm/%s: %s\n' "$(basename "$0")" "$*" >&2; }

# Others may write to the directory above: nothing is believed that they could have put there.
check_root() {
  [ "$(stat --format='%F %u %a' "$ROOT")" = "directory $(id -u) 700" ] && [ -f "$ROOT/$MARK" ] && return
  say "LOCAL_SLURM_ROOT=$ROOT is not a directory of this script and yours with mode 0700; choose another"
  exit 2
}
if [ -e "$ROOT" ] || [ -L "$ROOT" ]; then check_root; fi

# born PROCESS: when it began, in ticks since the system did (field 22 of proc(5)).
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

UNSHARE=(unshare --uts --ipc --mount --propagation private)
APART=no
if "${UNSHARE[@]}" true 2>/dev/null; then APART=yes; fi
PATH=$PATH:/usr/sbin:/sbin
ON=() # before a command that asks the controller
if [ "$HOSTS" = yes ]; then ON=("$(dirname "${BASH_SOURCE[0]}")/../hosts/enter" node1); fi
export SLURM_CONF=$ROOT/slurm.conf
