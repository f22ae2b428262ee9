_mpifed() {
    local before previous subcommand
    local -a found
    before="${(j: :)words[1,CURRENT-1]}"
    previous="${words[CURRENT-1]}"
    (( CURRENT > 2 )) && subcommand="${words[2]}"
    found=(${(f)"$(_mpifed_candidates "$subcommand" "$previous" "$before" "$PREFIX" $((CURRENT - 1)))"})
    if (( $#found )) && [[ -n ${(M)found:#${PREFIX}*} ]]; then
        compadd -S ' ' -- ${found:#*=}
        compadd -S '' -- ${(M)found:#*=}
    else
        compset -P '*='
        _files
    fi
}
# autoloaded from fpath, or read by a shell that has run compinit
if [[ ${funcstack[1]} == _mpifed ]]; then
    _mpifed "$@"
else
    compdef _mpifed mpifed
fi
