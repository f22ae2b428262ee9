# Unpack the environment on the disk of every node, which then reads no small files from the shared one.
# Nodes may share the disk, and another user may have made the directory, whose name can be guessed.
on_every_node() {
  srun --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" "$@"
}
staged=$scratch/mpifed-$job-$(id -u)
on_every_node bash -c '
  set -e
  mkdir -p -m 700 "$1"
  [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1" && cd "$1" || { echo "$1 belongs to somebody else" >&2; exit 1; }
  exec 9>lock
  flock 9
  if [ -e environment ]; then exit 0; fi
  rm -rf unpacking && mkdir unpacking
  tar -x -f "$2" -C unpacking
  mv unpacking environment' stage "$staged" "$stage" || finish 2 "$stage cannot be unpacked in $staged on every node, or that belongs to somebody else"
python=$staged/environment/bin/python
if [ -x "$staged/environment/bin/mpirun" ]; then mpirun=$staged/environment/bin/mpirun; fi
note "unpacked $stage in $staged, mpirun is $mpirun"
