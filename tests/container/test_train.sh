# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# The digits demo over containers: psd, 2 servers and 4 trainers, a container each, seen by psctl from outside.

start_digits() { # servers s0, s1 and trainers t2 .. t5
    local i common=(--env PSD_JOB=digits --env PSD_WORLD_SIZE=6)
    for i in 0 1; do
        start s$i "${common[@]}" --env PSD_RANK=$i -- psworker --role server || return 1
    done
    for i in 2 3 4 5; do
        start t$i "${common[@]}" --env PSD_RANK=$i -- \
            digits_train --servers 2 --data /usr/local/share/psd/digits.csv || return 1
    done
}

# The losses that both printed, epoch by epoch, are the same up to rounding.
same_losses() { # LOG_OF_CONTAINER
    timeout 60 "$PSD_BUILD/examples/digits_reference" --data "$here/../../worker/examples/data/digits.csv" > "$scratch/reference" || return
    log "$1" | awk '/^epoch /{print $4}' > "$scratch/losses"
    awk '/^epoch /{print $4}' "$scratch/reference" | paste "$scratch/losses" - | awk '
        NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $2 + 2e-6) bad = 1 }
        END { exit bad || NR == 0 }' || why "the losses differ from those of one process"
}

six_ranks_seen() { is "$(psctl ranks 2> /dev/null | grep -c ' active ')" 6 "active ranks" 2> /dev/null; }

train_digits() {
    start_psd && start_digits || return
    until_true 20 six_ranks_seen || return
    until_true 20 in_log t2 '^epoch ' || return
    psctl tables | grep -q digits || why "psctl sees no table" || return
    local i
    for i in 2 3 4 5; do is "$(exit_of t$i 90)" 0 "exit status of t$i" || return; done
    for i in 0 1; do is "$(exit_of s$i)" 0 "exit status of s$i" || return; done
    has t2 'digits_train: accuracy=0.9[6-9]' && same_losses t2
}

killed_server_ends_the_training() {
    start_psd && start_digits || return
    until_true 20 in_log t2 '^epoch 2' || return
    podman kill s1 > /dev/null
    local i
    for i in 2 3 4 5; do
        is "$(exit_of t$i)" 1 "exit status of t$i" || return
        has t$i 'rank 1|worker s1' || return
    done
    is "$(exit_of s0)" 0 "exit status of the other server: the job has ended"
}

check "psd, 2 servers and 4 trainers train; psctl sees them from outside" train_digits
check "a killed server ends the training with a sentence that names it" killed_server_ends_the_training
