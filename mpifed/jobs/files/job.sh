#!/bin/bash
# mpifed: runs, and is queued again until RUN_DIR/DONE exists. docs/slurm.md and docs/clusters.md explain it.
#@ directives

set -uo pipefail
umask 077
#@ settings
#@ scheduler
asked='' cancelled='' process='' ended=''

# note TEXT: to the output of the job, and to the events that `python -m mpifed.jobs status` shows.
note() {
  printf '%s job %s restart %s: %s\n' "$(date +%FT%T)" "$job" "$restarts" "$*" |
    tee -a "$run_dir/job/events.txt"
}
finish() { # finish CODE TEXT
  note "$2"
  exit "$1"
}
stopped() {
  for file in "${stop_files[@]}"; do if [ -e "$file" ]; then return 0; fi; done
  return 1
}
newest_checkpoint() { printf '%s\n' "$run_dir"/checkpoints/round-*.h5 | tail -n 1; }
pass_on() { kill -USR1 "$process" 2>/dev/null; }

# USR1 asks for a checkpoint and another life of the job; TERM (scancel, the limit, a lost node) for a
# checkpoint. Both reach this shell alone: the launcher hands USR1 on to the ranks, which end with 75.
request() {
  note "received $1"
  asked=yes
  if [ -n "$process" ]; then pass_on; fi
  if [ "$1" = TERM ]; then cancelled=yes && take_fewer; fi # SLURM queues a job again that lost a node
}
mkdir -p "$run_dir/job" || exit 2
trap 'request USR1' USR1
trap 'request TERM' TERM
if [ -e "$run_dir/DONE" ]; then finish 0 'the run is finished already'; fi
if stopped; then finish 75 'stopped before it began, as requested'; fi
#@ watch
#@ prologue
#@ experiment

export OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads
export TTY_COMPATIBLE=0 # Open MPI gives rank 0 a terminal, although the output is a file
note "$ranks ranks on $nodes"
#@ launcher
before=$(newest_checkpoint) code=75
rm -f "$run_dir/summary.json" || finish 2 'the run directory cannot be written'
if [ -z "$asked" ]; then
  "${launcher[@]}" "${container[@]}" "$python" -m mpifed.run "${words[@]}" --output "$run_dir" --resume \
    --expect-ranks "$ranks" &
  process=$!
  if [ -n "$asked" ]; then pass_on; fi # a signal since the line before
  while # wait returns at every trapped signal
    wait "$process"
    code=$?
    kill -0 "$process" 2>/dev/null
  do :; done
fi
trap '' USR1
note "the launcher ended with $code"
if [ -e "$run_dir/DONE" ]; then finish 0 'finished'; fi
if [ -n "$cancelled" ]; then finish 143 'ended from outside'; fi
if stopped; then finish 75 'stopped, as requested'; fi

# 138, and 10 of MPICH's mpirun: USR1 came while the ranks were starting. 0: the launcher was ended from
# outside. Where one rank ends before the others a launcher may say anything, but the run has noted why.
case $code in
  0 | 10 | 75 | 138) ;;
  *) if ! preempted && ! { [ -n "$asked" ] && [ "$code" -ge 128 ]; } &&
    ! grep -q '"status": "stopped"' "$run_dir/summary.json" 2>/dev/null; then finish "$code" 'failed'; fi ;;
esac
if [ "$restarts" -ge "$max_restarts" ]; then
  finish 76 "not finished, and job.max_restarts is $max_restarts; python -m mpifed.jobs resume continues it"
fi
if [ -n "$cancelled" ] || ! running; then finish 75 "not queued again: $scheduler is ending the job"; fi
note 'queued again'
queue_again
finish 75 "$scheduler did not queue the job again; python -m mpifed.jobs resume continues it"
