# What the tests of this folder share: starting psd and ranks on hosts, waiting with deadlines, the verdict. To
# be sourced inside sandbox.sh, with PSD_BUILD set; net.sh comes with it.
# shellcheck shell=bash

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=/run/psd-hosts # goes with the sandbox
mkdir -p "$work"
export PSD_JOIN_TIMEOUT_MS=25000
unset PSD_RUN_DIR XDG_RUNTIME_DIR # ranks that are killed leave records: in the /dev/shm of their host
# shellcheck source=tests/hosts/net.sh
. "$here/net.sh"

bin=$PSD_BUILD/bin
ranks=$PSD_BUILD/tests/hosts/ranks
port=5577
passed=0 failed=0 skipped=0
only=${only:-} # a pattern of the names of the tests to run

fail() { # SENTENCE: the return value of a test that has failed
    echo "  $*"
    return 1
}

# Tries the command until it succeeds.
wait_for() { # SECONDS COMMAND...
    local deadline=$((${EPOCHREALTIME/./} + $1 * 1000000))
    shift
    until "$@"; do
        [ "${EPOCHREALTIME/./}" -lt $deadline ] || return 1
        sleep 0.02
    done
}

is_gone() { ! kill -0 "$1" 2>/dev/null; } # PID of a child

# Waits for a child and gives its exit status; 255, and a sentence, if it does not end.
end_of() { # SECONDS PID WHAT
    wait_for "$1" is_gone "$2" || { echo "  $3 has not ended within $1 s"; return 255; }
    wait "$2" 2>/dev/null
}

psd_up() { [ -s "$work/ready" ]; }

# Sets PSD_COORDINATOR: by the host's name, or the address in $listen.
start_psd() { # HOST OPTIONS...
    local host=$1 on
    shift
    on_host "$host"
    rm -f "$work/ready"
    PSD_COORDINATOR=${listen:-tcp://$host:$port}
    export PSD_COORDINATOR
    "${on[@]}" "$bin/psd" --listen "$PSD_COORDINATOR" --insecure --ready-fd 3 "$@" \
        3> "$work/ready" > "$work/psd" 2>&1 &
    wait_for 10 psd_up || fail "psd did not start on $host"
}

# Rank R on a host; its output is $work/rankR, its PID ${pid[R]}. Variables may be given before the program.
pid=()
start_rank() { # R HOST [NAME=VALUE]... PROGRAM ARGUMENT...
    local r=$1 on
    on_host "$2"
    shift 2
    "${on[@]}" env "PSD_RANK=$r" "$@" > "$work/rank$r" 2>&1 < /dev/null &
    pid[r]=$!
}

# All ranks end with this status.
ranks_end() { # SECONDS STATUS
    local r status result=0
    for r in "${!pid[@]}"; do
        end_of "$1" "${pid[r]}" "rank $r"
        status=$?
        [ $status = "$2" ] || { echo "  rank $r ended with status $status instead of $2"; result=1; }
    done
    return $result
}

says() { # FILE PATTERN: an extended regular expression that some line matches
    grep -qE -- "$2" "$work/$1" || fail "$1 does not say: $2"
}

silent() { # FILE PATTERN
    ! grep -qE -- "$2" "$work/$1" || fail "$1 says what it should not: $2"
}

said_within() { # SECONDS FILE PATTERN
    wait_for "$1" grep -qsE -- "$3" "$work/$2" || fail "$2 does not say within $1 s: $3"
}

end_children() {
    local children
    children=$(jobs -p)
    # shellcheck disable=SC2086 # several
    [ -z "$children" ] || kill -KILL $children 2>/dev/null
    wait 2>/dev/null # until their ports are free
}

# Runs a test function in a shell of its own, on healed hosts; what it has started is ended after it.
check() { # NAME
    local start=$SECONDS name=$1 log
    [ -z "$only" ] || [[ $name =~ $only ]] || return 0
    rm -f "$work"/rank* "$work"/psd "$work"/psrun "$work"/srun
    heal 2>/dev/null
    if (trap end_children EXIT; "test_$name") > "$work/verdict" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - start)) s)"
        grep "^  " "$work/verdict"
    else
        failed=$((failed + 1))
        echo "FAIL $name ($((SECONDS - start)) s)"
        cat "$work/verdict"
        for log in "$work"/psd "$work"/psrun "$work"/srun "$work"/rank*; do
            [ -s "$log" ] && tail -n 8 "$log" | sed "s/^/    ${log##*/}: /"
        done
    fi
}

skip() { # NAME WHY
    skipped=$((skipped + 1))
    echo "skip: $1: $2"
}

finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ]
}
