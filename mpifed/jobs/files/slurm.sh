job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}}
job=${job:-$SLURM_JOB_ID}
scheduler=SLURM restarts=${SLURM_RESTART_COUNT:-0} nodes=$SLURM_JOB_NODELIST threads=${SLURM_CPUS_PER_TASK:-1}
# SLURM leaves SLURM_NTASKS at the smallest where the number of nodes is its to choose.
ranks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}
if [ -n "${SLURM_NTASKS_PER_NODE:-}" ]; then
  ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
  export SLURM_TASKS_PER_NODE="$SLURM_NTASKS_PER_NODE(x$SLURM_JOB_NUM_NODES)" # the slots of Open MPI's mpirun
fi
# Once a job has had nodes, SLURM wants as many tasks again, although the job would take fewer.
take_fewer() { [ -z "$least_ranks" ] || scontrol update JobId="$job" NumTasks="$least_ranks"; }
# A job that was cancelled just now must not be revived.
running() { [ "$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null)" = RUNNING ]; }
shown() { scontrol show job "$job" 2>/dev/null | sed -n "s/.*\b$1=\([0-9][^ ]*\).*/\1/p"; }
# A pre-emption without a signal ends the ranks alone; an earlier life may have been pre-empted as well.
preempted() { at=$(shown PreemptTime) && [ -n "$at" ] && ! [[ $at < $(shown StartTime) ]]; }
queue_again() {
  trap 'ended=yes' TERM # by which SLURM ends this shell now, and scontrol, whose answer then says nothing
  scontrol requeue "$job"
  for _ in {1..12}; do # a SLURM that is slow queues the job again after scontrol has given up
    if [ -z "$ended" ] && running; then sleep 5 && continue; fi
    take_fewer
    if [ "$(newest_checkpoint)" = "$before" ]; then scontrol update JobId="$job" StartTime=now+30seconds; fi
    exit 75
  done
}
