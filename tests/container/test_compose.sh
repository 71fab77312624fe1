# shellcheck shell=bash disable=SC2154,SC2086 # variables are from lib.sh, none with blanks
# deploy/compose.yaml as it is, by docker-compose over podman's own service.

compose() {
    DOCKER_HOST=unix://$scratch/podman.sock PSD_IMAGE=$PSD_IMAGE timeout 60 docker-compose --project-name psd \
        --file "$here/../../deploy/compose.yaml" "$@" < /dev/null
}

container_of() { compose ps -q "$1" 2> /dev/null; } # SERVICE

compose_trains() {
    local id
    compose up -d --no-build > "$scratch/compose.log" 2>&1 || { cat "$scratch/compose.log" >&2; return 1; }
    until_true 20 eval "timeout 10 '$PSD_BUILD/bin/psctl' -c tcp://127.0.0.1:5577 ranks 2> /dev/null | grep -c ' active ' | grep -qx 6" || return
    id=$(container_of trainer2)
    is "$(exit_of "$id" 60)" 0 "exit status of trainer2" || return
    has "$id" 'digits_train: accuracy=0.9[6-9]' && has "$id" ': shared memory, ' && has_not "$id" ': TCP,' || return
    is "$(exit_of "$(container_of server0)")" 0 "exit status of server0" || return
    compose down --volumes > "$scratch/compose.log" 2>&1 || { cat "$scratch/compose.log" >&2; return 1; }
}

if command -v docker-compose > /dev/null; then
    podman system service -t 0 "unix://$scratch/podman.sock" > /dev/null 2>&1 &
    service=$!
    until_true 10 test -S "$scratch/podman.sock"
    check "deploy/compose.yaml trains; psctl sees it at the published port" compose_trains
    kill $service
    wait $service 2> /dev/null
else
    skip "deploy/compose.yaml" "no docker-compose here (a Debian package)"
fi
