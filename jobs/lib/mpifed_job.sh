# shellcheck shell=bash disable=SC2154  # the settings, in front
# What every job of mpifed does. `python -m mpifed.jobs` writes it into the scripts that it renders,
# behind the settings, so that a script needs no file but itself.
#
# The settings, in small letters lest they replace a variable of the environment: run_dir (the run
# directory, absolute), words (what to run, as for mpifed.run), experiment (the text of an experiment
# of the user's own, else empty), python, launcher (mpirun or srun), mpirun, mpi (for srun), bind_gpus
# and srun_container (options of srun), launcher_options, least_ranks (empty unless the number of nodes
# is SLURM's to choose), warn_seconds, max_restarts (0: never queued again), max_preemptions,
# max_failures, stage (an archive to unpack on every node, else empty), stage_when (always, or where it is
# faster than an import), scratch (where), image (the file of a container, else empty), container (words
# before the interpreter), stop_files (files that ask the job to stay stopped). The prologue has left `early` (a signal that came meanwhile) and `trouble` (why
# it failed), both empty as a rule.

process='' code=1 asked='' cancelled=no staged='' cause=''

# The job as SLURM's commands take it: the bare number of an array's last task means all of the array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-0}}
job=${job:-$SLURM_JOB_ID}
life=${SLURM_RESTART_COUNT:-0}

# note TEXT: to the output of the job, and to the events of the run, which `status` shows.
note() {
  local line
  line="$(date +%FT%T) job $job restart $life: $*"
  printf '%s\n' "$line"
  printf '%s\n' "$line" >>"$run_dir/job/events.txt"
}

# Ends the job for a reason that starting it again would not mend.
refuse() {
  note "$*"
  record_life failed
  exit 2
}

stays_stopped() {
  local file
  for file in "${stop_files[@]}"; do
    if [ -e "$file" ]; then return 0; fi
  done
  return 1
}

# Once a job has had nodes, SLURM wants as many tasks again, although the job would take fewer.
# shellcheck disable=SC2317,SC2329  # called by a trap
take_fewer() {
  [ -n "$least_ranks" ] || return 0
  if scontrol update JobId="$job" NumTasks="$least_ranks" 2>/dev/null; then
    note "would take $least_ranks ranks"
  fi
}

# Both requests reach this shell alone. The launcher hands USR1 on to the ranks, which agree on a
# round, write a checkpoint and end with 75.
# shellcheck disable=SC2317,SC2329  # called by the traps
hand_on() {
  note "received $1"
  asked=${asked:-$(date +%s)}
  if [ -n "$process" ]; then kill -USR1 "$process" 2>/dev/null; fi
  if [ "$1" = TERM ]; then
    cancelled=yes
    take_fewer # if SLURM has queued the job again, for the loss of a node
  fi
}

begin() {
  umask 077
  mkdir -p "$run_dir/job" || exit 2
  trap 'hand_on USR1' USR1
  trap 'hand_on TERM' TERM
  record_lost_lives
  if [ -e "$run_dir/DONE" ]; then
    note 'the run is finished already'
    exit 0
  fi
  if stays_stopped; then
    note 'stopped before it began, as was asked'
    exit 75
  fi
  if [ -n "${trouble:-}" ]; then refuse "$trouble"; fi
  if [ -n "${early:-}" ]; then hand_on "$early"; fi
  if [ -n "$experiment" ]; then
    local file=$run_dir/job/experiment.yaml
    if ! { printf '%s' "$experiment" >"$file.partial" && mv "$file.partial" "$file"; }; then
      refuse 'the experiment cannot be written to the run directory'
    fi
    words=("$file" "${words[@]}")
  fi
  if [ -n "$image" ] && ! [ -e "$image" ]; then refuse "the image $image does not exist"; fi
  # SLURM leaves SLURM_NTASKS out, or at the smallest that was asked for, where the tasks of a node
  # were given and the number of nodes is SLURM's to choose.
  ranks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES}
  if [ -n "${SLURM_NTASKS_PER_NODE:-}" ]; then
    ranks=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))
  fi
  threads=${SLURM_CPUS_PER_TASK:-1}
  export OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads OPENBLAS_NUM_THREADS=$threads
  # Since 22.05 srun does not take it from the job.
  if [ "$launcher" = srun ]; then export SRUN_CPUS_PER_TASK=$threads; fi
  export TTY_COMPATIBLE=0 # Open MPI gives rank 0 a terminal, although the output is a file
  note "$ranks ranks on $SLURM_JOB_NODELIST"
}

# Unpacks `stage` on the local disk of every node, so that a hundred ranks do not read ten thousand
# small files from the shared file system. Beside its final name first: nodes may share the disk.
# shellcheck disable=SC2317,SC2329  # not in every template
stage() {
  [ -n "$stage" ] || return 0
  [ -z "$asked" ] || return 0
  if [ "$stage_when" = faster ] && ! is_faster; then return 0; fi
  staged=$scratch/mpifed-${job}-$(id -u)
  # The directory may be open to all, and the name can be guessed: what another user made there is not
  # used.
  # shellcheck disable=SC2016  # expanded by the bash on each node
  on_every_node bash -c 'mkdir -p -m 700 "$1" && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1"' \
    stage "$staged" || refuse "$staged cannot be made on every node, or belongs to somebody else"
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
    mv unpacking environment' stage "$staged" "$stage" ||
    refuse "$stage cannot be unpacked in $staged on every node"
  python=$staged/environment/bin/python
  if [ -x "$staged/environment/bin/mpirun" ]; then mpirun=$staged/environment/bin/mpirun; fi
  note "unpacked $stage in $staged"
}

# Whether unpacking the environment takes less time than an import from where it is waits for files,
# measured on this node before ranks start; yes where it cannot be measured.
# shellcheck disable=SC2317,SC2329  # not in every template
is_faster() {
  local said status
  said=$("$python" -m mpifed.jobs.importing "$stage" "$scratch" 2>&1)
  status=$?
  note "$said"
  [ "$status" != 1 ]
}

# shellcheck disable=SC2317,SC2329  # not in every template
on_every_node() {
  srun --mpi=none --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --nodes="$SLURM_JOB_NUM_NODES" "$@"
}

# shellcheck disable=SC2317,SC2329  # not in every template
clear_stage() {
  [ -n "$staged" ] || return 0
  on_every_node rm -rf "$staged" || note "$staged was not removed on every node"
  staged=''
}

# The plugin of srun that speaks the language of the MPI library that mpi4py uses.
choose_mpi() {
  [ "$mpi" = auto ] || return 0
  local library offered candidate
  local -a fitting once=()
  if [ ${#srun_container[@]} -gt 0 ]; then once=(srun --mpi=none --ntasks=1 --nodes=1 "${srun_container[@]}"); fi
  library=$("${once[@]}" "${container[@]}" "$python" -c '
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
        mpi=$candidate
        note "srun --mpi=$mpi for $library"
        return
        ;;
    esac
  done
  refuse "$library needs srun --mpi=${fitting[0]}, which this SLURM does not have; try job.launcher=mpirun"
}

launch() {
  # What an earlier life has said of its end says nothing of this one's.
  rm -f "$run_dir/summary.json" || refuse 'the run directory cannot be written'
  local -a run=("${container[@]}" "$python" -m mpifed.run "${words[@]}" --output "$run_dir" --resume --expect-ranks "$ranks")
  case $launcher in
    mpirun)
      # An mpirun starts one daemon a node by an srun of its own. With these that srun would bind the
      # daemon, and all ranks below it, to the processors and the memory of a single task.
      in_background env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK \
        "$mpirun" -n "$ranks" "${launcher_options[@]}" "${run[@]}"
      ;;
    srun)
      choose_mpi
      in_background srun --mpi="$mpi" --ntasks="$ranks" --cpus-per-task="$threads" --kill-on-bad-exit=1 \
        "${bind_gpus[@]}" "${srun_container[@]}" "${launcher_options[@]}" "${run[@]}"
      ;;
  esac
}

# A trap runs only while the shell waits, and wait returns at every trapped signal: so until the
# launcher is really gone.
in_background() {
  code=75
  [ -z "$asked" ] || return 0
  "$@" &
  process=$!
  # a signal that came since the line before has found no process to be handed to
  if [ -n "$asked" ]; then kill -USR1 "$process" 2>/dev/null; fi
  while true; do
    wait "$process"
    code=$?
    kill -0 "$process" 2>/dev/null || break
  done
  process=''
}

# The lives of a job, one line each in job/lives.txt: the job, how often it had been restarted, how that
# life ended, and the newest checkpoint then.

newest_checkpoint() {
  local -a found=("$run_dir"/checkpoints/round-*.h5)
  if [ -e "${found[-1]}" ]; then printf '%s' "${found[-1]##*/}"; else printf 'none'; fi
}

# record_life HOW
record_life() {
  printf '%s %s %s %s\n' "$job" "$life" "$1" "$(newest_checkpoint)" >>"$run_dir/job/lives.txt"
}

# What SLURM ended without a signal to this script, as at the loss of a node, recorded in the next life.
record_lost_lives() {
  local earlier
  for ((earlier = 0; earlier < life; earlier++)); do
    grep -q "^$job $earlier " "$run_dir/job/lives.txt" 2>/dev/null ||
      printf '%s %s lost none\n' "$job" "$earlier" >>"$run_dir/job/lives.txt"
  done
}

# lives HOW ...: how many of this job ended so.
lives() {
  local how
  how=$(printf '|%s' "$@")
  grep -c -E "^$job [0-9]+ (${how#|}) " "$run_dir/job/lives.txt" 2>/dev/null
}

# Seconds to wait before the next life: none after one that left a checkpoint, and after each further
# one that left none twice as long, up to a quarter of an hour.
pause() {
  local idle=0 newest number how checkpoint
  newest=$(newest_checkpoint)
  while read -r number _ how checkpoint; do
    if [ "$number" != "$job" ] || [ "$how" = lost ]; then continue; fi
    if [ "$checkpoint" = "$newest" ]; then idle=$((idle + 1)); else idle=0; fi
  done <"$run_dir/job/lives.txt"
  if [ "$newest" != none ]; then idle=$((idle - 1)); fi
  if [ "$idle" -le 0 ]; then
    printf 0
  elif [ "$idle" -ge 7 ]; then
    printf 900
  else
    printf '%d' $((15 << (idle - 1)))
  fi
}

stopped() { [ "$code" = 75 ] || grep -q '"status": "stopped"' "$run_dir/summary.json" 2>/dev/null; }

# What `scontrol show job` says of a point in time, in seconds since 1970; false where it says none.
time_of() {
  local text
  text=$(scontrol show job "$job" 2>/dev/null | sed -n "s/.*\b$1=\([0-9][^ ]*\).*/\1/p")
  [ -n "$text" ] && date -d "$text" +%s 2>/dev/null
}

# At a pre-emption without a signal of the user's SLURM ends the ranks, but tells this shell nothing.
pre_empted() {
  local preempted started
  # an earlier life may have been pre-empted as well
  preempted=$(time_of PreemptTime) && started=$(time_of StartTime) && [ "$preempted" -ge "$started" ]
}

# SLURM looks every half minute whether to warn of the limit, and may be a minute early.
limit_was_near() {
  local end
  [ -n "$asked" ] && end=$(time_of EndTime) && [ $((end - asked)) -le $((warn_seconds + 90)) ]
}

# Whether the run continues in another life of this job, and in `cause` why this one ended. 138, and
# 10 of MPICH's mpirun: USR1 came while the ranks were still starting, and ended them; then a launcher
# may also say 255, or that it was ended by a signal. 0: the launcher was ended from outside, as some do
# at a pre-emption. Where one rank ends before the others a launcher may say anything, but the run has
# noted why.
goes_on() {
  if pre_empted; then
    cause=preempted
    return 0
  fi
  if limit_was_near; then
    cause=time-limit
  elif [ -n "$asked" ] || stopped; then
    cause=signal
  else
    cause=unexplained
  fi
  case $code in
    0 | 10 | 138) return 0 ;;
  esac
  stopped || { [ -n "$asked" ] && [ "$code" -ge 128 ]; }
}

# Each cause has a limit of its own: what a cluster takes from a job is not a fault of the run. All of
# them together hold where the record of the lives cannot be written.
may_restart() {
  local number limit name
  case $cause in
    preempted) name=max_preemptions limit=$max_preemptions number=$(lives preempted lost ended) ;;
    unexplained) name=max_failures limit=$max_failures number=$(lives unexplained) ;;
    *) name=max_restarts limit=$max_restarts number=$(lives time-limit signal) ;;
  esac
  if [ "$max_restarts" = 0 ]; then name=max_restarts limit=0 number=1; fi
  if [ "${number:-0}" -le "$limit" ] && [ "$life" -lt $((max_restarts + max_preemptions + max_failures)) ]; then
    return 0
  fi
  note "not finished, and not queued again ($cause): job.$name is $limit; python -m mpifed.jobs resume continues it"
  return 1
}

queue_again() {
  local seconds ended=no
  may_restart || exit 76
  # A job that was cancelled just now must not be revived.
  if [ "$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null)" != RUNNING ] || [ "$cancelled" = yes ]; then
    note 'not queued again: SLURM is ending the job'
    exit 75
  fi
  seconds=$(pause)
  note "queued again ($cause)$([ "$seconds" = 0 ] || printf ', to start in %s s' "$seconds")"
  trap 'ended=yes' TERM
  if scontrol requeue "$job"; then
    # The nodes are free meanwhile; SLURM ends this shell, so quickly.
    [ "$seconds" = 0 ] || scontrol update JobId="$job" StartTime="now+${seconds}seconds" ||
      note 'SLURM takes no later start for it'
    take_fewer
    trap - TERM
    if [ "$ended" = no ]; then exec sleep 60; fi # until SLURM ends this shell
    exit 75
  fi
  note 'SLURM did not queue the job again; python -m mpifed.jobs resume continues it'
  exit 75
}

# A launcher's exit status says little; it is DONE that tells whether the run finished.
finish() {
  trap '' USR1
  note "the launcher ended with $code"
  clear_stage
  if [ -e "$run_dir/DONE" ]; then
    record_life finished
    note 'finished'
    exit 0
  fi
  # scancel, the time limit and a node that fails send TERM. SLURM itself queues again what a node
  # took down; queueing the others again would revive a job that was cancelled.
  if [ "$cancelled" = yes ]; then
    record_life ended
    note 'ended from outside'
    exit 143
  fi
  if stays_stopped; then
    record_life stopped
    note 'stopped, as was asked'
    exit 75
  fi
  if goes_on; then
    record_life "$cause"
    queue_again
  fi
  record_life failed
  note 'failed'
  exit "$code"
}
