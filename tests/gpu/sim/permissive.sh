#!/bin/bash
# Weakens one rule of the simulator at a time and runs the test that is there for it: the test must fail.
#   tests/gpu/sim/permissive.sh BUILD CC CFLAGS LDFLAGS
# Ends with "N passed, N failed": a rule passes if its test noticed.
set -u
build=$1 cc=$2 cflags=$3 ldflags=$4
here=tests/gpu/sim
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
export CASE_SECONDS=${CASE_SECONDS:-5}

weaken() { # source sed-script program case...
    local source=$1 script=$2 program=$3 lib objects status name
    shift 3
    rm -rf "$work/lib" && mkdir "$work/lib"
    sed -E "$script" "$here/$source" >"$work/$source"
    if cmp -s "$here/$source" "$work/$source"; then
        echo "FAIL $source: nothing to weaken: $script"
        failed=$((failed + 1))
        return
    fi
    cp "$build/$here"/lib*.so.* "$work/lib"
    case $source in rt_*) lib=$(ls "$work"/lib/libcudart.so.*) ;; *) lib=$work/lib/libnccl.so.2 ;; esac
    objects=$(ls "$build/obj/$here/${source%%_*}"_*.o | grep -v "/${source%.c}.o")
    $cc $cflags -w -I$here -c -o "$work/weak.o" "$work/$source" &&
        $cc -shared -Wl,-soname,"$(basename "$lib")" $ldflags -o "$lib" "$work/weak.o" $objects "$build/obj/$here/settings.o" \
            $([[ $source == nc_* ]] && ls "$work"/lib/libcudart.so.*) -lm '-Wl,-rpath,$ORIGIN' || { failed=$((failed + 1)); return; }
    for name in "$@"; do
        LD_LIBRARY_PATH=$work/lib ONLY=$name timeout 30 "$build/$here/tests/$program" >"$work/out" 2>&1
        status=$?
        if [ $status = 0 ]; then
            echo "FAIL \"$name\" does not notice $source with $script"
            failed=$((failed + 1))
        elif ! grep -q '^FAIL ' "$work/out"; then
            echo "FAIL \"$name\" did not run: exit status $status"
            failed=$((failed + 1))
        else
            passed=$((passed + 1))
        fi
    done
}

# As it is, everything passes.
for program in "$build/$here"/tests/test_*; do
    if ! timeout 120 "$program" >"$work/out" 2>&1; then
        cat "$work/out"
        echo "0 passed, 1 failed"
        exit 1
    fi
done

# Sends, receives, groups
weaken nc_kernel.c 's/return atomic_load\(&l->to->tail\) == .*/return true;/' test_p2p \
    'a send waits' 'crossed ungrouped' 'an empty send' 'a longer send' 'a group completes'
weaken nc_kernel.c 's/buffered > 0 && bytes <= buffered/buffered > 0/' test_p2p 'buffered sends'
weaken nc_kernel.c 's/^(        \*finished = \*finished && l->at == l->count;)/\1\n        if (!*finished) break;/' test_p2p 'a grouped exchange'
weaken nc_kernel.c 's/\*finished = \*finished && l->at == l->count/*finished = (i > 0 \&\& *finished) || l->at == l->count/' test_p2p 'a group completes'
weaken nc_group.c 's/if \(--current.depth > 0\)/if (--current.depth > 0 \&\& current.count == 0)/' test_p2p 'a group starts at its end'
weaken nc_kernel.c '/^static bool receive_progress/,/^}/s/l->ops\[l->at\]/l->ops[l->count - 1 - l->at]/' test_p2p 'a pair is first in'
weaken nc_kernel.c 's/return bytes == 0 \? 1 : .*/return 1;/' test_p2p 'a longer send' 'a longer receive'
weaken nc_api.c 's/ \|\| op.kind == NC_SEND \|\| op.kind == NC_RECV//' test_p2p 'an empty send'
weaken nc_kernel.c 's/return sends == receives;/return true;/' test_p2p 'send to self'
weaken nc_kernel.c '/^ncclResult_t nc_kernel_connect/,/^}/s/return .*/return ncclSuccess;/' test_p2p 'the first use'
weaken nc_kernel.c '/^ncclResult_t nc_kernel_connect/,/^}/s/return .*/return ncclSuccess;/' test_collectives 'the first collective'
weaken nc_group.c '/^ncclResult_t nc_group_leave/,/^}/s/current.error = result;/;/' test_p2p 'a failed group'
weaken nc_kernel.c 's/streams, count, \*last/streams, 1, *last/' test_p2p 'a group joins'

# Collectives
weaken nc_kernel.c '/^static bool collective_progress/,/^}/s/return moved;/return (l->at++, l->step = 0, true);/' test_collectives \
    'a missing rank' 'another order' 'another count'
weaken nc_api.c 's/op.count > 0 \|\| op.kind == NC_SEND/op.kind != NC_BROADCAST || op.kind == NC_SEND/' test_collectives 'an empty collective'
weaken nc_kernel.c 's/is_serial \? (.*) : &comm->last;/is_serial ? \1 : \&(mark *){NULL};/' test_collectives 'one kernel'
weaken nc_kernel.c '/^static bool progress/,/^}/{s/if \(!\*finished\)/if (false)/; s/while \(c->at < c->count && collective_progress\(k, c\)\)/if (c->at < c->count \&\& collective_progress(k, c))/}' \
    test_collectives 'collectives come first'
weaken nc_ring.c '/^static bool all_reduce/,/^}/s/s->receives = s->reduces = step > 0;/s->receives = step > 0;/' test_collectives \
    'every reduction, 2'
weaken nc_reduce.c 's/out\[i\] = a > b \? a : b;/out[i] = a;/' test_collectives 'every reduction, 3'
weaken nc_reduce.c 's/double scaled = nearbyint\(/double scaled = 1 + floor(/' test_collectives 'every reduction, 2'
weaken nc_api.c 's/op->comm->redops\[custom\].used && .*\);/op->comm->redops[custom].used);/' test_collectives 'a scaled sum'

# Communicators
weaken nc_comm.c 's/\} else if \(result == ncclInProgress\) \{/} else if (false) {/' test_comm 'init waits'
weaken nc_comm.c '/^static bool all_arrived/,/^}/s/return .*/return true;/' test_comm 'init waits'
weaken nc_comm.c 's/peer->host == mine->host && strcmp/false \&\& strcmp/' test_comm 'one GPU for two'
weaken nc_comm.c 's/if \(id != NULL && \*id/if (false \&\& *id/' test_comm 'one GPU, two hosts'
weaken nc_comm.c 's/peer->version != mine->version/false/' test_comm 'mixed versions'
weaken nc_comm.c '/Bootstrap Root/,/^}/s/nc_comm_wait\(comm, also, never, NULL\);/;/' test_comm 'a rank twice'
weaken nc_kernel.c 's/while \(!finished && !atomic_load\(&comm->aborted\)\)/while (!finished)/' test_comm 'abort frees'
weaken nc_comm.c 's/^    if \(unpublish\(comm\)\) \{/    if (false) {/' test_comm 'bad arguments'
weaken nc_init.c '/^static bool all_posted/,/^}/s/return false;/return true;/' test_comm 'split waits'
weaken nc_init.c 's/peer->split_key < job->key \|\|/peer->split_key > job->key ||/' test_comm 'split'
weaken nc_init.c 's/return job->child != NULL \? nc_comm_join\(.*/return job->child ? nc_comm_join(job->child, NULL) : ncclSuccess;/;
    s/if \(!nc_comm_wait\(parent, NULL, all_posted, job\)\)/while (!all_posted(parent, job))/' test_comm 'abort stops a split'
weaken nc_comm.c '/^static bool host_finalized/,/^}/s/return false;/return true;/' test_comm 'finalize waits'
weaken nc_comm.c 's/psd_gpusim_mark_wait\(comm->last\);/;/; /^static bool host_finalized/,/^}/s/return false;/return true;/' test_comm 'finalize flushes'
weaken nc_kernel.c '/injected asynchronous/,/return;/s/nc_comm_wait\(comm, NULL, never, NULL\);/;/' test_comm 'an asynchronous error'
weaken nc_comm.c 's/while \(settings_hit\(settings_get\(\)->abort_hang_rank, comm->rank\)\)/while (false)/' test_comm 'an abort that hangs'
weaken nc_kernel.c 's/if \(settings_hit\(set->slow_rank, comm->rank\)\)/if (false)/' test_comm 'a slow peer'
weaken nc_api.c '/^static ncclResult_t check_pointer/,/^}/s/return ncclInvalidArgument;/return ncclSuccess;/' test_comm 'pointers'
weaken nc_kernel.c '/^static bool has_illegal_address/,/^}/s/return true;/return false;/' test_comm 'unchecked pointers'
weaken nc_memory.c 's/at.type != cudaMemoryTypeDevice \|\| at.device != comm->device/false/' test_comm 'registration'
weaken nc_group.c 's/current.blocking == is_blocking/true/' test_comm 'groups do not mix'
weaken nc_group.c 's/current.jobs != NULL && current.count > 0/false/' test_comm 'groups do not mix'
weaken nc_comm.c 's/atomic_exchange\(&comm->in_call, true\)/false/' test_comm 'two threads'
weaken nc_kernel.c 's/settings_get\(\)->is_serial \? .* : &comm->last/\&comm->last/' test_comm 'kernels are serial'
weaken nc_segment.c '/^void seg_unlink/,/^}/s/unlink\(seg->path\);/;/' test_comm 'a killed rank'
weaken nc_segment.c 's/unlinkat\(dirfd\(list\), entry->d_name, 0\);/;/' test_comm 'a killed rank'

weaken nc_log.c 's/snprintf\(last_error.*/;/' test_comm 'the log'
weaken rt_stream.c '/^static cudaError_t launch/,/^}/s/rt_device_error\(device\) != cudaSuccess/false/' test_comm 'unchecked pointers'

# CUDA runtime
weaken rt_stream.c '/^static bool depends/,/^}/s/return .*/return false;/' test_cudart 'the legacy' 'a copy waits'
weaken rt_stream.c 's/in_host_func = it->host_func;/;/' test_cudart 'host functions'
weaken rt_stream.c '/^static void run_item/,/^}/s/rt_mark_wait\(it->after\[i\]\);/;/' test_cudart 'events' 'the legacy'
weaken rt_event.c 's/return event->recorded != NULL/return/; s/rt_stream_device\(stream\) != event->device/false/' test_cudart 'events'
weaken rt_stream.c 's/return own_stream\(device\);/handle = NULL;/' test_cudart 'the per-thread'
weaken rt_memory.c '/^static bool stage/,/^}/s/c->from = c->staging;/;/' test_cudart 'copies'
weaken rt_memory.c 's/error = drain\(stream\);/;/' test_cudart 'a copy waits'
weaken rt_memory.c 's/bool wait = target.type == cudaMemoryTypeUnregistered \|\|/bool wait =/' test_cudart 'copies'
weaken rt_memory.c '/^static bool fits/,/^}/s/return (is_device|!is_device).*/return true;/' test_cudart 'copies'
weaken rt_memory.c '/^static cudaError_t release/,/^}/s/rt_device_wait\(a->device\);/;/' test_cudart 'free waits'
weaken rt_memory.c 's/memset\(base, FILL,/memset(base, 0,/' test_cudart 'memory'
weaken rt_memory.c 's/a->base == pointer && a->type == type && a->mapped != 0/true/; s/a != NULL && a->base == pointer;/a != NULL;/' test_cudart 'memory'
weaken rt_device.c 's/return error != cudaSuccess \? error : rt_device_error\(current_device\);/return error;/' test_comm 'unchecked pointers'
weaken rt_device.c 's/set->driver_version \/ 1000 < CUDART_VERSION \/ 1000/false/' test_cudart 'an old driver'
weaken rt_device.c 's/const char \*list = getenv\("CUDA_VISIBLE_DEVICES"\);/const char *list = NULL;/' test_comm 'visible devices'

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
