#!/bin/sh
# Runs cargo with the options of a release: host/release/cargo.sh COMMAND [ARGUMENT]...
#
#   CARGO_TARGET_DIR=/target host/release/cargo.sh build --profile release --package operator-host
#
# The Dockerfile runs it, so it needs nothing but Rust and what the smallest Debian has. What is built has other options than
# that of `cargo build`: it wants a folder of its own.
#
# The same sources give the same program: versions from the lock file, and no path of this build in it.
#
# Small, too. With frame pointers the tables by which a stack is unwound are a third smaller, and profilers find their way
# without them; C needs none, since no panic passes through it. On x86-64 Rust links with lld (since 1.90): functions that
# are the same are there once, and relocations are packed (which glibc reads since 2.36). All of it is a twelfth of the
# program.
#
# Small in memory as well: the functions that run in an ordinary day lie side by side (functions.ld, which `make order`
# writes), so that the others need not be resident. The names there are those of the mangling v0: they contain the types of
# generic functions, and of hashes only those of crates. Functions that the compiler takes for unlikely are in sections like
# all others, since some of them run at every start.
set -eu
cd "$(dirname "$0")/../.."
home=${CARGO_HOME:-$HOME/.cargo}

cargo fetch --locked --target "$(rustc -vV | sed -n 's/^host: //p')"
RUSTFLAGS="-Cforce-frame-pointers=yes -Csymbol-mangling-version=v0"
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$PWD=. --remap-path-prefix=$home=cargo"
for crates in "$home"/registry/src/*; do
    RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$crates="
done
if [ "$(uname -m)" = x86_64 ]; then
    RUSTFLAGS="$RUSTFLAGS -Clink-arg=-Wl,--icf=all -Clink-arg=-Wl,-z,pack-relative-relocs"
    RUSTFLAGS="$RUSTFLAGS -Cllvm-args=-profile-guided-section-prefix=false"
    RUSTFLAGS="$RUSTFLAGS -Clink-arg=-Wl,-T,$PWD/host/release/functions.ld"
fi
# Cargo does not see that the linker would read another script.
if [ -n "$(find host/release/functions.ld -newer host/src/main.rs)" ]; then
    touch host/src/main.rs
fi
export RUSTFLAGS CARGO_INCREMENTAL=0
export CFLAGS="-fno-asynchronous-unwind-tables -ffile-prefix-map=$CARGO_TARGET_DIR=target -ffile-prefix-map=$home=cargo"
command=$1
shift
exec cargo "$command" --locked "$@"
