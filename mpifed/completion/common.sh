# shellcheck shell=sh disable=SC2119,SC2120 # lists of one case take no arguments
# Prints candidates for the word $4, where $1 is the subcommand, $2 the word before, $3 the line
# before, and $5 how many words are before it.
_mpifed_candidates() {
    case "$4" in
    -*)
        _mpifed_options "$1"
        return
        ;;
    esac
    if [ "$5" -le 1 ]; then
        _mpifed_subcommands
        return
    fi
    case "$2" in
    -*)
        _mpifed_after "$1 $2"
        case "$2" in --list | --track) return ;; esac
        ;;
    esac
    if [ "$1" = jobs ] && [ "$5" -eq 2 ]; then
        _mpifed_arguments jobs
        return
    fi
    if [ -z "$(_mpifed_configured "$1")" ]; then
        [ "$5" -gt 2 ] || _mpifed_arguments "$1"
        return
    fi
    case "$4" in
    *=*)
        _mpifed_values "${4%%=*}" | while read -r _mpifed_value; do
            printf '%s\n' "${4%%=*}=$_mpifed_value"
        done
        return
        ;;
    esac
    _mpifed_arguments run
    {
        _mpifed_plain_keys
        [ "$1" != jobs ] || _mpifed_job_keys
        _mpifed_sections | while read -r _mpifed_section; do
            _mpifed_name=
            case " $3 " in
            *" $_mpifed_section="*)
                _mpifed_name=" $3 "
                _mpifed_name=${_mpifed_name##* "$_mpifed_section"=}
                _mpifed_name=${_mpifed_name%% *}
                ;;
            esac
            _mpifed_component_keys "$_mpifed_section $_mpifed_name"
        done
    } | while read -r _mpifed_word; do
        printf '%s=\n' "$_mpifed_word"
    done
}
