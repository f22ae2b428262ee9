#!/bin/bash
# A run of mpifed under Flux. Before its limit it stops with a checkpoint and submits itself again, until RUN_DIR/DONE
# exists. Change the lines down to `launch` for your cluster, then: flux batch jobs/flux.sh synthetic-fedem clients=100
# flux: --job-name=mpifed
# flux: --nslots=100
# flux: --cores-per-slot=1
# flux: --time-limit=3600s
until=3540 # seconds from the start, a minute before the limit, when the run is asked to stop
ranks=100 threads=1 max_restarts=100 words=("$@")
script=jobs/flux.sh run_dir=${RUN_DIR:-$PWD/runs/mpifed-$(flux getattr jobid)}
launch() { # first of all: module load gcc openmpi; source venv/bin/activate
  exec flux run --ntasks="$ranks" --cores-per-task="$threads" -o exit-on-error python3 -m mpifed.run "$@"
}
# The rest is for every cluster.
restarts=${RESTARTS:-0} cancelled=''
export OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads TTY_COMPATIBLE=0
finish() { echo "$(date +%FT%T) restart $restarts: $2"; exit "$1"; }
stop() { flux job killall --force --signal=USR1; } # the ranks, which end with 75; a signal would end `flux run` alone
umask 077 && mkdir -p "$run_dir/job" || exit 2
[ ! -e "$run_dir/DONE" ] || finish 0 'finished'
launch "${words[@]}" --output "$run_dir" --resume --expect-ranks "$ranks" & process=$!
trap stop USR1
trap 'cancelled=yes; stop' TERM # of flux cancel, or of the limit itself
(sleep "$until" && kill -USR1 $$) >/dev/null 2>&1 & clock=$!
while wait "$process"; code=$?; kill -0 "$process" 2>/dev/null; do :; done # wait returns at every signal
kill "$clock" 2>/dev/null
[ ! -e "$run_dir/DONE" ] || finish 0 'finished'
[ -z "$cancelled" ] || finish 143 'ended from outside'
[ ! -e "$run_dir/job/stop" ] || finish 75 'stopped, as requested'
[[ $code =~ ^(0|75)$ || $SECONDS -ge $until ]] || finish "$code" "failed: the launcher ended with $code"
[ "$restarts" -lt "$max_restarts" ] || finish 76 "not finished after $restarts restarts"
export RUN_DIR=$run_dir RESTARTS=$((restarts + 1))
flux --parent batch "$script" "${words[@]}" || finish 75 'Flux takes no other job'
