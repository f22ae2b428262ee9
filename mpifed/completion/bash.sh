_mpifed() {
    local line current before previous subcommand count word
    line=${COMP_LINE:0:COMP_POINT}
    current=${line##*[[:space:]]}
    before=${line%"$current"}
    read -r -a word <<<"$before"
    count=${#word[@]}
    subcommand=${word[1]:-}
    previous=${word[count - 1]:-}
    local IFS=$'\n'
    # shellcheck disable=SC2207 # a candidate is a line
    COMPREPLY=($(compgen -W "$(_mpifed_candidates "$subcommand" "$previous" "$before" "$current" "$count")" -- "$current"))
    if [ "${#COMPREPLY[@]}" = 1 ] && [ "${COMPREPLY[0]}" != "${COMPREPLY[0]%=}" ]; then
        compopt -o nospace 2>/dev/null
    fi
    case "$COMP_WORDBREAKS" in
    *=*) # bash replaces what follows the last = alone
        case "$current" in
        *=*) COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*=}"}"}") ;;
        esac
        ;;
    esac
}
complete -o default -F _mpifed mpifed
