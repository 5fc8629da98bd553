# fish completion for ocrfs: it asks the program itself what it takes.

# Lines of `ocrfs help --list [COMMAND]`: NAME, VALUE, DEFAULT, HELP.
function __ocrfs_ask
    command ocrfs help --list $argv 2>/dev/null
end

# The command of the line, "mount" if its first word is none.
function __ocrfs_command
    set -l words (commandline -opc)
    if set -q words[2]; and contains -- $words[2] (__ocrfs_ask | cut -f1) help
        echo $words[2]
    else
        echo mount
    end
end

# Candidates for a value of the kind argv[1], each behind the text argv[2].
function __ocrfs_value
    switch $argv[1]
        case '*|*'
            printf '%s\n' "$argv[2]"(string split '|' -- $argv[1])
        case DIR
            printf '%s\n' "$argv[2]"(__fish_complete_directories (commandline -ct | string replace -r '.*=' ''))
    end
end

# The list behind -o: names, and values behind a =.
function __ocrfs_list
    set -l word (commandline -ct)
    set -l before (string match -r '.*,' -- $word)
    set -l last (string replace -r '.*,' '' -- $word)
    for line in (__ocrfs_ask mount | string match -v -- '-*')
        set -l part (string split \t -- $line)
        if string match -q -- "$part[1]=*" $last
            __ocrfs_value $part[2] "$before$part[1]="
        else if test -n "$part[2]"
            printf '%s%s=\t%s\n' "$before" $part[1] $part[4]
        else
            printf '%s%s\t%s\n' "$before" $part[1] $part[4]
        end
    end
end

# Switches and options of the command, or the value of the one before.
function __ocrfs_options
    set -l command (__ocrfs_command)
    for line in (__ocrfs_ask $command)
        set -l part (string split \t -- $line)
        string match -q -- '-*' $part[1]; or set part[1] --$part[1]
        printf '%s\t%s\n' $part[1] $part[4]
    end
    printf '%s\n' --help --version
end

# The kind of value that the word before this one takes.
function __ocrfs_before
    set -l words (commandline -opc)
    string match -q -- '-*' $words[-1]; or return
    for line in (__ocrfs_ask (__ocrfs_command))
        set -l part (string split \t -- $line)
        if contains -- $words[-1] $part[1] --$part[1]
            echo $part[2]
        end
    end
end

# Words that come without a dash.
function __ocrfs_arguments
    set -l command (__ocrfs_command)
    set -l words (commandline -opc)
    if test (count $words) -eq 1; or test $command = help
        __ocrfs_ask | while read -l line
            set -l part (string split \t -- $line)
            printf '%s\t%s\n' $part[1] $part[3]
        end
        test $command = help; and echo mount; or echo help
    else if test (count $words) -eq 2
        set -l line (__ocrfs_ask | string match -- "$command"\t'*')
        set -l first (string split \t -- $line)[2]
        string match -qr '^[a-z]+\|' -- $first
        and string split '|' -- (string split ' ' -- $first)[1]
    end
    if test $command = read
        __fish_complete_path (commandline -ct)
    else if not contains -- $command help doctor cache
        __fish_complete_directories (commandline -ct) ''
    end
end

function __ocrfs
    command -q ocrfs; or return
    set -l kind (__ocrfs_before)
    set -l word (commandline -ct)
    if test "$kind" = LIST; and test (commandline -opc)[-1] = -o
        __ocrfs_list
    else if test -n "$kind"
        __ocrfs_value $kind
    else if string match -q -- '--*=*' $word
        set -l name (string replace -r '=.*' '' -- $word)
        for line in (__ocrfs_ask (__ocrfs_command))
            set -l part (string split \t -- $line)
            test --$part[1] = $name; and __ocrfs_value $part[2] "$name="
        end
    else if string match -q -- '-*' $word
        __ocrfs_options
    else
        __ocrfs_arguments
    end
end

complete -c ocrfs -f -a '(__ocrfs)'
