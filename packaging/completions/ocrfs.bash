# bash completion for ocrfs: it asks the program itself what it takes.

# Lines of `ocrfs help --list [COMMAND]`: NAME, VALUE, DEFAULT, HELP.
_ocrfs_ask() {
    "$_ocrfs_program" help --list ${1+"$1"} 2>/dev/null
}

# The name of the value that $2, a switch or an option, of command $1 takes.
_ocrfs_takes() {
    _ocrfs_ask "$1" | awk -F'\t' -v name="$2" '
        BEGIN { option = name; sub(/^--/, "", option); gsub(/-/, "_", option) }
        $1 == name || $1 == option { print $2; exit }'
}

# Offers words that begin with $1; the others stand, one a line, on input.
_ocrfs_offer() {
    local IFS=$'\n'

    mapfile -t COMPREPLY < <(compgen -W "$(cat)" -- "$1")
}

# Offers values that begin with $1, of the kind $2. Files and folders are left
# to readline, which knows how to quote them.
_ocrfs_offer_value() {
    case $2 in
    *\|*) _ocrfs_offer "$1" <<< "${2//|/$'\n'}" ;;
    DIR) compopt -o dirnames ;;
    FILE) compopt -o default ;;
    NAME:*) mapfile -t COMPREPLY < <(compgen -c -- "$1") ;;
    esac
}

# The list behind -o, as far as it is written: $1.
_ocrfs_offer_list() {
    local last=${1##*,} before=${1%"${1##*,}"}

    if [[ $last == *=* ]]; then
        _ocrfs_offer_value "${last#*=}" "$(_ocrfs_takes mount "${last%%=*}")"
        COMPREPLY=("${COMPREPLY[@]/#/$before${last%%=*}=}")
    else
        _ocrfs_offer "$last" < <(_ocrfs_ask mount |
            awk -F'\t' '!/^-/ { print $1 ($2 == "" ? "" : "=") }')
        COMPREPLY=("${COMPREPLY[@]/#/$before}")
        compopt -o nospace
    fi
}

_ocrfs_offer_options() {
    _ocrfs_offer "$2" < <(printf '%s\n' --help --version
        _ocrfs_ask "$1" | awk -F'\t' '{ print /^-/ ? $1 : "--" $1 }')
}

# What is no option: $1 the command, $2 the word, $3 its place on the line.
_ocrfs_offer_argument() {
    local takes

    takes=$(_ocrfs_ask | awk -F'\t' -v name="$1" '
        $1 == name { split($2, word, " "); print word[1] }')
    if [[ $takes == [a-z]*\|* && $3 -eq 2 ]]; then
        _ocrfs_offer_value "$2" "$takes"
    elif [[ $1 == read ]]; then
        compopt -o default
    else
        compopt -o dirnames
    fi
}

_ocrfs() {
    local _ocrfs_program=$1 line=${COMP_LINE:0:COMP_POINT} cur prev command=mount
    local -a words

    # Whole words, whatever COMP_WORDBREAKS makes of = and : in them.
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[-1]} prev=${words[-2]} COMPREPLY=()
    if [[ ${#words[@]} -gt 2 ]] && _ocrfs_ask | cut -f1 | grep -qxF -e "${words[1]}"; then
        command=${words[1]}
    fi
    if [[ $prev == -o ]]; then
        _ocrfs_offer_list "$cur"
    elif [[ $cur == --*=* ]]; then
        _ocrfs_offer_value "${cur#*=}" "$(_ocrfs_takes "$command" "${cur%%=*}")"
        COMPREPLY=("${COMPREPLY[@]/#/${cur%%=*}=}")
    elif [[ $cur == -* ]]; then
        _ocrfs_offer_options "$command" "$cur"
    elif [[ $prev == -* && -n $(_ocrfs_takes "$command" "$prev") ]]; then
        _ocrfs_offer_value "$cur" "$(_ocrfs_takes "$command" "$prev")"
    elif [[ ${words[1]} == help || ${#words[@]} -eq 2 ]]; then
        _ocrfs_offer "$cur" < <(_ocrfs_ask | cut -f1
            [[ ${words[1]} == help ]] && echo mount || echo help)
        [[ ${words[1]} == help && ${#words[@]} -gt 2 ]] || compopt -o plusdirs
    else
        _ocrfs_offer_argument "$command" "$cur" $((${#words[@]} - 1))
    fi
    # Readline replaces only what stands behind the last of its breaks.
    if [[ $cur == *[=:]* && $COMP_WORDBREAKS == *[=:]* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*[=:]}"}"}")
    fi
} 2>/dev/null

complete -F _ocrfs ocrfs
