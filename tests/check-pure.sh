#!/bin/bash
# The core is pure: its objects may call only memory and string functions, hashing, and common/ (which has no clock in
# the functions that the core uses).
#   tests/check-pure.sh LIBCORE LIBCOMMON
set -eu
allowed='malloc|calloc|realloc|free|mem(cpy|move|set|cmp)|str(len|nlen|cmp|ncmp|chr|rchr|str)|snprintf|vsnprintf|qsort|bsearch|XXH.*|__(popcount[sd]i2|stack_chk_fail|memcpy_chk|memset_chk|snprintf_chk|vsnprintf_chk)|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan)_.*'
own=$(nm --defined-only -P "$1" 2>/dev/null | awk 'NF >= 2 {print $1}' | sort -u)
common=$(nm --defined-only -P "$2" 2>/dev/null | awk 'NF >= 2 {print $1}' | grep -vE '^psd_(now_ns|log)' | sort -u)
bad=$(nm -u -P "$1" 2>/dev/null | awk 'NF == 2 && $2 == "U" {print $1}' | sort -u |
    comm -23 - <(echo "$own") | comm -23 - <(echo "$common") | grep -vxE "$allowed" || true)
if [ -n "$bad" ]; then
    echo "check-pure: the core calls what it must not:" $bad >&2
    exit 1
fi
outside=$(grep -nE '^#include "' server/core/*.[ch] | grep -vE '"(common|server/core)/' || true)
if [ -n "$outside" ]; then
    echo "check-pure: server/core includes more than common/:" >&2
    echo "$outside" >&2
    exit 1
fi
echo "check-pure: ok"
