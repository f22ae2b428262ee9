again=$run_dir/job/again.txt # what was said of the jobs that continue this one, a line each
restarts=$(cat "$again" 2>/dev/null | wc -l)
take_fewer() { :; }
running() { :; }
preempted() { false; }
# A user may not put a running job back into the queue: another job continues the run.
queue_again() {
  if [ "$(newest_checkpoint)" = "$before" ]; then sleep 30; fi
  if [ -n "$cancelled" ] || stopped; then finish 75 'not queued again, as requested'; fi
  if said=$("${submission[@]}" <"$run_dir/job/job.sh"); then printf '%s\n' "$said" >>"$again" && exit 0; fi
}
# No signal reaches this shell alone before the limit, or for `python -m mpifed.jobs stop`.
watch() {
  while sleep 5 && kill -0 $$; do
    if stopped || [ "$SECONDS" -ge "$warn_after" ]; then kill -USR1 $$ && return; fi
  done >/dev/null 2>&1
}
