#!/bin/sh
# After `make install`: lets programs find libpsd.so, or says how they can.
#   deploy/ldconfig.sh DESTDIR LIBDIR
set -eu
destdir=$1
libdir=$2
PATH=$PATH:/usr/sbin:/sbin
if [ -n "$destdir" ]; then
    echo "  NOTE    installed below $destdir: run ldconfig once the files are in $libdir"
    exit 0
fi
[ "$(id -u)" = 0 ] && ldconfig
ldconfig -p | grep -q "=> $libdir/libpsd\.so\." ||
    echo "  NOTE    the dynamic linker does not know $libdir: set LD_LIBRARY_PATH=$libdir, or add it to /etc/ld.so.conf"
