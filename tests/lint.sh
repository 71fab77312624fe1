#!/bin/bash
# clang-format, clang-tidy and cppcheck over the project's own C.
#   tests/lint.sh FLAGS
set -u
flags=$1
bad=0
files=$(git ls-files -co --exclude-standard '*.c' '*.h' | grep -v '^proto/gen/')
sources=$(echo "$files" | grep '\.c$')
clang-format --dry-run -Werror $files || bad=1
cppcheck --quiet --enable=warning,portability --inline-suppr --std=c11 --error-exitcode=1 -I. -Icommon -Iworker \
    --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=normalCheckLevelMaxBranches \
    -j2 $(echo "$sources" | grep -v '^tests/') || bad=1
echo "$sources" | grep -v '^tests/' | xargs -P2 -n1 sh -c 'clang-tidy --quiet "$@" -- '"$flags"' 2>&1 | grep -v "warnings* generated" | grep . && exit 1; exit 0' sh || bad=1
[ $bad = 0 ] && echo "lint: ok"
exit $bad
