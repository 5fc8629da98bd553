#compdef ocrfs
# zsh completion for ocrfs: it asks the program itself what it takes.

# Lines of `ocrfs help --list [COMMAND]`: NAME, VALUE, DEFAULT, HELP.
_ocrfs_ask() {
    _call_program ocrfs $program help --list $1 2>/dev/null
}

# The value of the kind $1, for the option $2.
_ocrfs_value() {
    case $1 in
    *\|*) compadd -- ${(s:|:)1} ;;
    DIR) _files -/ ;;
    FILE) _files ;;
    NAME:*) _command_names -e ;;
    *) _message "$2: $1" ;;
    esac
}

# The list behind -o: names, and values behind a =.
_ocrfs_list() {
    local name value preset text
    local -a flags valued

    compset -P '*,'
    _ocrfs_ask mount | while IFS=$'\t' read -r line; do
        name=${line%%$'\t'*} line=${line#*$'\t'}
        value=${line%%$'\t'*} text=${line##*$'\t'}
        [[ $name == -* ]] && continue
        if [[ -n $value ]] && compset -P "$name="; then
            _ocrfs_value $value $name
            return
        fi
        if [[ -n $value ]]; then
            valued+=("$name:$text")
        else
            flags+=("$name:$text")
        fi
    done
    # Not the tag "options": those have to begin with a dash.
    _describe -t values 'option' valued -S = -- flags -q -S ,
}

_ocrfs() {
    local program=$words[1] command=mount line name value text
    local -a commands options switches

    _ocrfs_ask | while IFS= read -r line; do
        commands+=("${line%%$'\t'*}:${line##*$'\t'}")
    done
    if (( CURRENT > 2 )) && [[ -n ${(M)commands:#$words[2]:*} ]]; then
        command=$words[2]
    fi
    _ocrfs_ask $command | while IFS= read -r line; do
        name=${line%%$'\t'*} line=${line#*$'\t'}
        value=${line%%$'\t'*} text=${line##*$'\t'}
        [[ $name == -* ]] || name=--$name
        switches+=("$name:$text")
        [[ -n $value ]] || continue
        if [[ $words[CURRENT-1] == $name && $name == -o ]]; then
            _ocrfs_list
            return
        elif [[ $words[CURRENT-1] == $name ]] || compset -P "$name="; then
            _ocrfs_value $value $name
            return
        fi
    done
    if [[ $PREFIX == -* ]]; then
        switches+=('--help:what the command takes' '--version:which version it is')
        _describe -o -t options 'option' switches
    elif [[ $words[2] == help && CURRENT -eq 3 ]]; then
        commands+=('mount:show SOURCE read-only, a text beside each image')
        _describe -t commands 'command' commands
    elif (( CURRENT == 2 )); then
        commands+=('help:what a command takes')
        _describe -t commands 'command' commands
        _files -/
    elif [[ $command == read ]]; then
        _files
    else
        # Words that a command begins with: cache stat|verify|clear.
        line=$(_ocrfs_ask | awk -F'\t' -v name=$command '
            $1 == name { split($2, word, " "); print word[1] }')
        if (( CURRENT == 3 )) && [[ $line == [a-z]*\|* ]]; then
            _ocrfs_value $line $command
        else
            _files -/
        fi
    fi
}

_ocrfs "$@"
