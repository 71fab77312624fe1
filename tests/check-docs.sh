#!/bin/sh
# psd-environment(7) lists the environment variables that the sources name, all of them and no others.
set -eu
page=deploy/man/psd-environment.7
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# In the sources: strings that are a variable's name and nothing else. Texts of statuses look the same.
names='PSD_[A-Z0-9_]+|[A-Z]+_[A-Z0-9_]+|RANK|TERM|PATH'
grep -rohE "\"($names)\"" --include='*.c' --include='*.h' --exclude-dir=gen --exclude-dir=examples common server worker |
    tr -d '"' | grep -v '^PSD_ERR_' | sort -u >"$work/source"
# getenv of a name that the pattern above would miss.
grep -rohE 'getenv\("[^"]+"\)' --include='*.c' --include='*.h' common server worker |
    sed 's/.*"\(.*\)".*/\1/' | sort -u >"$work/getenv"
sed -nE 's/^\.B ([A-Z][A-Z0-9_]+)$/\1/p' "$page" | sort -u >"$work/page"
[ -s "$work/source" ] && [ -s "$work/page" ]

missing=$(sort -u "$work/source" "$work/getenv" | comm -23 - "$work/page")
extra=$(comm -13 "$work/source" "$work/page")
[ -z "$missing" ] || echo "check-docs: not in $page:" $missing >&2
[ -z "$extra" ] || echo "check-docs: in $page, but in no source:" $extra >&2
[ -z "$missing$extra" ] && echo "check-docs: ok"
