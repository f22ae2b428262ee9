# shellcheck shell=bash disable=SC2034
# A signal that comes meanwhile, and why a line below fails, are kept for `begin`.
early='' trouble=''
trap 'early=${early:-USR1}' USR1
trap 'early=TERM' TERM

said=$(mktemp) || exit 2
trap 'cat "$said" >&2; rm -f "$said"' EXIT
failed=0
prologue() {
# What fails in a function or in a file that is read is not the user's line.
trap 'failed=$?
  if [ "${FUNCNAME[0]}" = prologue ]; then
    trouble="the prologue failed with $failed: ${BASH_COMMAND%%$'"'\n'"'*}"
    return
  fi' ERR
#@ lines
}
prologue 2>"$said"
trap - ERR
# modules 3 say that they failed, but in words alone
if [ -z "$trouble" ] && grep -q '^ModuleCmd_.*:ERROR:' "$said"; then trouble='the prologue failed'; fi
if [ -n "$trouble" ]; then trouble=$trouble$(tail -n 1 "$said" | cut -c 1-300 | sed 's/^/: /'); fi
cat "$said" >&2
rm -f "$said"
trap - EXIT
