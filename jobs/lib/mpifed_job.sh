# shellcheck shell=bash
# What every job of mpifed does. `python -m mpifed.jobs` writes it into the scripts that it renders,
# behind the settings, so that a script needs no file but itself.
#
# The settings: RUN_DIR (the run directory, absolute), WORDS (what to run, as for mpifed.run),
# EXPERIMENT (the text of an experiment of the user's own, else empty), PYTHON, LAUNCHER (mpirun or
# srun), MPIRUN, MPI (for srun), BIND_GPUS (options of srun), LEAST_RANKS (empty unless the number of
# nodes is SLURM's to choose), MAX_RESTARTS (0: never queued again), STAGE (an archive to unpack on
# every node, else empty), SCRATCH (where), IMAGE (of a container, else empty), CONTAINER (words before
# the interpreter), STOP_FILES (files that ask the job to stay stopped).

RUN=() PROCESS='' CODE=1 ASKED=no CANCELLED=no STAGED=''

# The job as SLURM's commands take it: the bare number of an array's last task means all of the array.
JOB=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}}
JOB=${JOB:-$SLURM_JOB_ID}

# note TEXT: to the output of the job, and to the events of the run, which `status` shows.
note() {
  local line
  line="$(date +%FT%T) job $JOB restart ${SLURM_RESTART_COUNT:-0}: $*"
  printf '%s\n' "$line"
  printf '%s\n' "$line" >>"$RUN_DIR/job/events.txt"
}

# Ends the job for a reason that starting it again would not mend.
refuse() {
  note "$*"
  exit 2
}

stays_stopped() {
  local file
  for file in "${STOP_FILES[@]}"; do
    if [ -e "$file" ]; then return 0; fi
  done
  return 1
}

# Once a job has had nodes, SLURM wants as many tasks again, although the job would take fewer.
# shellcheck disable=SC2317,SC2329  # called by a trap
take_fewer() {
  [ -n "$LEAST_RANKS" ] || return 0
  if scontrol update JobId="$JOB" NumTasks="$LEAST_RANKS" 2>/dev/null; then
    note "would take $LEAST_RANKS ranks"
  fi
}

# Both requests reach this shell alone. The launcher hands USR1 on to the ranks, which agree on a
# round, write a checkpoint and end with 75.
# shellcheck disable=SC2317,SC2329  # called by the traps
hand_on() {
  note "received $1"
  ASKED=yes
  if [ -n "$PROCESS" ]; then kill -USR1 "$PROCESS" 2>/dev/null; fi
  if [ "$1" = TERM ]; then
    CANCELLED=yes
    take_fewer # if SLURM has queued the job again, for the loss of a node
  fi
}

begin() {
  umask 077
  mkdir -p "$RUN_DIR/job" || exit 2
  trap 'hand_on USR1' USR1
  trap 'hand_on TERM' TERM
  if [ -e "$RUN_DIR/DONE" ]; then
    note 'the run is finished already'
    exit 0
  fi
  if stays_stopped; then
    note 'stopped before it began, as was asked'
    exit 75
  fi
  if [ -n "$EXPERIMENT" ]; then
    local file=$RUN_DIR/job/experiment.yaml
    if ! { printf '%s' "$EXPERIMENT" >"$file.partial" && mv "$file.partial" "$file"; }; then
      refuse 'the experiment cannot be written to the run directory'
    fi
    WORDS=("$file" "${WORDS[@]}")
  fi
  if [ -n "$IMAGE" ] && ! [ -e "$IMAGE" ]; then refuse "the image $IMAGE does not exist"; fi
  # SLURM leaves SLURM_NTASKS out, or at the smallest that was asked for, where the tasks of a node
  # were given and the number of nodes is SLURM's to choose.
  RANKS=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}
  if [ -n "${SLURM_NTASKS_PER_NODE:-}" ]; then
    RANKS=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
  fi
  local threads=${SLURM_CPUS_PER_TASK:-1}
  export OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads
  export SRUN_CPUS_PER_TASK=$threads # since 22.05 srun does not take it from the job
  export TTY_COMPATIBLE=0            # Open MPI gives rank 0 a terminal, although the output is a file
  note "$RANKS ranks on $SLURM_JOB_NODELIST"
}

# Unpacks STAGE on the local disk of every node, so that a hundred ranks do not read ten thousand
# small files from the shared file system. Beside its final name first: nodes may share the disk.
# shellcheck disable=SC2317,SC2329  # not in every template
stage() {
  [ -n "$STAGE" ] || return 0
  [ "$ASKED" = no ] || return 0
  STAGED=$SCRATCH/mpifed-${JOB}-$(id -u)
  # SCRATCH may be open to all, and the name can be guessed: what another user made there is not used.
  # shellcheck disable=SC2016  # expanded by the bash on each node
  on_every_node bash -c 'mkdir -p -m 700 "$1" && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1"' \
    stage "$STAGED" || refuse "$STAGED cannot be made on every node, or belongs to somebody else"
  # shellcheck disable=SC2016  # expanded by the bash on each node
  on_every_node bash -c '
    set -e
    cd "$1"
    exec 9>lock
    flock 9
    [ ! -e environment ] || exit 0
    rm -rf unpacking
    mkdir unpacking
    tar -x -f "$2" -C unpacking
    mv unpacking environment' stage "$STAGED" "$STAGE" ||
    refuse "$STAGE cannot be unpacked in $STAGED on every node"
  PYTHON=$STAGED/environment/bin/python
  if [ -x "$STAGED/environment/bin/mpirun" ]; then MPIRUN=$STAGED/environment/bin/mpirun; fi
  note "unpacked $STAGE in $STAGED"
}

# shellcheck disable=SC2317,SC2329  # not in every template
on_every_node() {
  srun --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" "$@"
}

# shellcheck disable=SC2317,SC2329  # not in every template
clear_stage() {
  [ -n "$STAGED" ] || return 0
  on_every_node rm -rf "$STAGED" || note "$STAGED was not removed on every node"
  STAGED=''
}

# The plugin of srun that speaks the language of the MPI library that mpi4py uses.
choose_mpi() {
  [ "$MPI" = auto ] || return 0
  local library offered candidate
  local -a fitting
  library=$("${CONTAINER[@]}" "$PYTHON" -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split("\n")[0].strip("\0"))') || refuse 'mpi4py does not find an MPI library'
  case $library in
    *CRAY*) fitting=(cray_shasta pmi2) ;;
    *MPICH* | *MVAPICH* | *Intel*) fitting=(pmi2) ;;
    *'Open MPI'*) fitting=(pmix) ;;
    *) refuse "job.mpi=auto does not know $library; name one of srun --mpi=list" ;;
  esac
  library=${library%%,*}
  offered=" $(srun --mpi=list 2>&1 | tr -s '[:space:]' ' ') "
  for candidate in "${fitting[@]}"; do
    case $offered in
      *" $candidate "*)
        MPI=$candidate
        note "srun --mpi=$MPI for $library"
        return
        ;;
    esac
  done
  refuse "$library needs srun --mpi=${fitting[0]}, which this SLURM does not have; try job.launcher=mpirun"
}

launch() {
  RUN=("${CONTAINER[@]}" "$PYTHON" -m mpifed.run "${WORDS[@]}" --output "$RUN_DIR" --resume --expect-ranks "$RANKS")
  case $LAUNCHER in
    mpirun) in_background "$MPIRUN" -n "$RANKS" "${RUN[@]}" ;;
    srun)
      choose_mpi
      in_background srun --mpi="$MPI" --ntasks="$RANKS" --cpus-per-task="$OMP_NUM_THREADS" \
        --kill-on-bad-exit=1 "${BIND_GPUS[@]}" "${RUN[@]}"
      ;;
  esac
}

# A trap runs only while the shell waits, and wait returns at every trapped signal: so until the
# launcher is really gone.
in_background() {
  CODE=75
  [ "$ASKED" = no ] || return 0
  "$@" &
  PROCESS=$!
  while true; do
    wait "$PROCESS"
    CODE=$?
    kill -0 "$PROCESS" 2>/dev/null || break
  done
  PROCESS=''
}

# Whether the run is to go on in another life of this job. 138, and 10 of MPICH's mpirun: USR1 came
# while the ranks were still starting, and ended them. 0: the launcher was ended from outside, as some
# do at a pre-emption. Where one rank ends before the others a launcher may say anything, but the run
# has noted why.
goes_on() {
  case $CODE in
    0 | 10 | 75 | 138) return 0 ;;
  esac
  grep -q '"status": "stopped"' "$RUN_DIR/summary.json" 2>/dev/null || pre_empted
}

# At a pre-emption without a signal of the user's SLURM ends the ranks, but tells this shell nothing.
pre_empted() {
  local text preempted started
  text=$(scontrol show job "$JOB" 2>/dev/null) || return 1
  preempted=$(sed -n 's/.*PreemptTime=\([0-9][^ ]*\).*/\1/p' <<<"$text")
  started=$(sed -n 's/.*StartTime=\([0-9][^ ]*\).*/\1/p' <<<"$text")
  # an earlier life may have been pre-empted as well
  [ -n "$preempted" ] && ! [[ $preempted < $started ]]
}

queue_again() {
  if [ "${SLURM_RESTART_COUNT:-0}" -ge "$MAX_RESTARTS" ]; then
    note "not finished after ${SLURM_RESTART_COUNT:-0} restarts; python -m mpifed.jobs resume goes on"
    exit 76
  fi
  # A job that was cancelled just now must not be revived.
  if [ "$(squeue --noheader --jobs="$JOB" --format=%T 2>/dev/null)" != RUNNING ] || [ "$CANCELLED" = yes ]; then
    note 'not queued again: SLURM is ending the job'
    exit 75
  fi
  note 'queued again'
  local ended=no
  trap 'ended=yes' TERM
  if scontrol requeue "$JOB"; then
    take_fewer
    trap - TERM
    if [ "$ended" = no ]; then exec sleep 60; fi # until SLURM ends this shell
    exit 75
  fi
  note 'SLURM did not queue the job again; python -m mpifed.jobs resume goes on'
  exit 75
}

# A launcher's exit status says little; it is DONE that tells whether the run finished.
finish() {
  trap '' USR1
  note "the launcher ended with $CODE"
  clear_stage
  if [ -e "$RUN_DIR/DONE" ]; then
    note 'finished'
    exit 0
  fi
  # scancel, the time limit and a node that fails send TERM. SLURM itself queues again what a node
  # took down; queueing the others again would revive a job that was cancelled.
  if [ "$CANCELLED" = yes ]; then
    note 'ended from outside'
    exit 143
  fi
  if stays_stopped; then
    note 'stopped, as was asked'
    exit 75
  fi
  if goes_on; then queue_again; fi
  note 'failed'
  exit "$CODE"
}
