#!/bin/bash
# A run of mpifed under PBS. Before its limit it stops with a checkpoint and submits itself again, until RUN_DIR/DONE
# exists. Change the lines down to `launch` for your cluster and your run, then: qsub jobs/pbs.sh
#PBS -N mpifed
#PBS -l select=4:ncpus=25:mpiprocs=25 -l place=scatter
#PBS -l walltime=01:00:00
#PBS -j oe
until=3540 # seconds from the start, a minute before the walltime, when the run is asked to stop
ranks=100 threads=1 max_restarts=100 words=(synthetic-fedem clients=100)
script=$PBS_O_WORKDIR/jobs/pbs.sh run_dir=${RUN_DIR:-$PBS_O_WORKDIR/runs/$PBS_JOBNAME-${PBS_JOBID%%.*}}
launch() { # first of all: module load gcc openmpi; source venv/bin/activate
  exec timeout --foreground --preserve-status --signal=USR1 "$until" \
    mpirun -n "$ranks" python3 -m mpifed.run "$@"
}
# The rest is for every cluster.
restarts=${RESTARTS:-0} cancelled=''
export OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads TTY_COMPATIBLE=0
finish() { echo "$(date +%FT%T) restart $restarts: $2"; exit "$1"; }
cd "$PBS_O_WORKDIR" && umask 077 && mkdir -p "$run_dir/job" || exit 2
[ ! -e "$run_dir/DONE" ] || finish 0 'finished'
launch "${words[@]}" --output "$run_dir" --resume --expect-ranks "$ranks" & process=$!
trap 'cancelled=yes; kill -USR1 "$process"' TERM # of qdel, or of the limit itself; ranks end with 75
while wait "$process"; code=$?; kill -0 "$process" 2>/dev/null; do :; done # wait returns at every signal
[ ! -e "$run_dir/DONE" ] || finish 0 'finished'
[ -z "$cancelled" ] || finish 143 'ended from outside'
[ ! -e "$run_dir/job/stop" ] || finish 75 'stopped, as requested'
[[ $code =~ ^(0|75)$ || $SECONDS -ge $until ]] || finish "$code" "failed: the launcher ended with $code"
[ "$restarts" -lt "$max_restarts" ] || finish 76 "not finished after $restarts restarts"
qsub -v "RUN_DIR=$run_dir,RESTARTS=$((restarts + 1))" "$script" || finish 75 'PBS takes no other job'
