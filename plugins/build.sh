#!/usr/bin/env bash
# Builds plugins to WebAssembly: plugins/build.sh [samples | NAME | FOLDER]...
#
# Without arguments, every plugin beside this script in Rust, Go and C; a name is one of those; a folder is a plugin anywhere.
# `samples` are those of `make run`; one whose tool-chain is not on this machine is left out.
# The results are target/plugins/NAME.wasm beside this script, whose paths are printed on standard output, one
# a line; progress goes to standard error. What a plugin offers as a plain WASI command (a cargo feature
# `command` and a binary NAME-command) is built too, to target/plugins/NAME-command.wasm. The results of a plugin
# outside of this checkout are target/plugins/NAME.wasm in its own folder.
#
# A folder with a go.mod is a plugin in Go, a plain WASI command; go.sh beside this script says with which Go. One with
# a plugin.c, plugin.js, plugin.ts, plugin.py, plugin.zig or assembly/plugin.ts is a plugin in C, JavaScript,
# TypeScript, Python, Zig or AssemblyScript, with a Makefile of its own; c.sh, js.sh and so on say with which compiler.
#
# The Rust target wasm32-wasip1 comes from rustup. Where rustup is not there or cannot download, it is put
# together from Debian's packages, in the user's cache folder. WASM_TOOLCHAIN=rustup or debian forces one.
set -euo pipefail

plugins=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=$plugins/target/plugins
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/wasm-toolchain
target=wasm32-wasip1

say() { echo "plugins: $*" >&2; }
die() { say "$*"; exit 1; }

has_target() {
    [[ -d $(rustc --print sysroot)/lib/rustlib/$target/lib ]]
}

use_rustup() {
    has_target && return
    command -v rustup >/dev/null || return 1
    say "adding the Rust target $target"
    timeout 300 rustup target add "$target" >&2 && has_target
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

# Debian's `rustc-web` is a recent compiler that knows the target, `rust-web-src` the standard library's source,
# `wasi-libc` the C library under it. Their compiler does not find Debian's C library by itself, and the packaged
# folders are not ours to write into: so a folder of links that looks to the compiler like its own.
use_debian() {
    local packages=(rustc-web rust-web-src wasi-libc) package missing=()
    command -v apt-get >/dev/null || die "needs rustup, or Debian's packages ${packages[*]}"
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' ||
            missing+=("$package")
    done
    if ((${#missing[@]})); then
        export DEBIAN_FRONTEND=noninteractive
        say "installing ${missing[*]} with apt-get, to compile Rust to $target"
        as_root apt-get install --yes --no-install-recommends "${missing[@]}" >&2 || {
            as_root apt-get update >&2
            as_root apt-get install --yes --no-install-recommends "${missing[@]}" >&2
        }
    fi

    local lld compiler version sysroot
    compiler=$(dpkg-query --listfiles rustc-web | grep -E '/bin/rustc$' | head -n 1)
    lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-lld
    [[ -x $lld ]] || lld=$(command -v wasm-ld || command -v rust-lld) ||
        die "found no linker: the installed Rust has no rust-lld, and there is no wasm-ld"
    version=$(dpkg-query --show --showformat='${Package}-${Version} ' "${packages[@]}" | sha256sum | cut -c 1-16)
    sysroot=$cache/$version
    # `complete` is written last: a folder without it was left half-way and is created again.
    if [[ ! -e $sysroot/complete ]]; then
        make_sysroot "$compiler" "$sysroot"
    fi

    export RUSTC=$sysroot/rustc RUSTC_BOOTSTRAP=1
    export CARGO_TARGET_WASM32_WASIP1_LINKER=$lld
    cargo_options+=("-Zbuild-std=std,panic_abort")
}

make_sysroot() {
    local compiler=$1 sysroot=$2 packaged libc
    say "preparing $sysroot"
    packaged=$("$compiler" --print sysroot)
    libc=$(dpkg-query --listfiles wasi-libc | grep '/libc\.a$' | head -n 1)
    libc=${libc%/*}
    rm -rf "$sysroot"
    mkdir -p "$sysroot/lib/rustlib/$target/lib/self-contained"
    local entry
    for entry in "$packaged"/lib/rustlib/*; do
        [[ ${entry##*/} == "$target" ]] || ln -s "$entry" "$sysroot/lib/rustlib/"
    done
    ln -s "$libc"/crt1-*.o "$libc/libc.a" "$sysroot/lib/rustlib/$target/lib/self-contained/"
    printf '#!/bin/sh\nexec "%s" --sysroot "%s" "$@"\n' "$compiler" "$sysroot" >"$sysroot/rustc"
    chmod +x "$sysroot/rustc"
    : >"$sysroot/complete"
}

# The file that tells a plugin with a Makefile of its own.
sources=(plugin.c plugin.js plugin.ts plugin.py plugin.zig assembly/plugin.ts)

has_source() {
    local source
    for source in "${sources[@]}"; do
        [[ -f $1/$source ]] && return
    done
    return 1
}

# Prints the folders of the plugins beside this script: those with a library for WebAssembly, those in Go and in C.
all_plugins() {
    local manifest
    for manifest in "$plugins"/*/Cargo.toml; do
        if grep -q cdylib "$manifest"; then echo "${manifest%/Cargo.toml}"; fi
    done
    for manifest in "$plugins"/*/go.mod; do
        if [[ -f $manifest ]]; then echo "${manifest%/go.mod}"; fi
    done
    for manifest in "$plugins"/*/plugin.c; do
        if [[ -f $manifest ]]; then echo "${manifest%/plugin.c}"; fi
    done
}

# Prints the names of the samples of `make run`.
samples() {
    echo dns echo mysql myapp webapp
    if GO_FETCH=no "$plugins/go.sh" >/dev/null 2>&1; then
        echo hello
    else
        say "leaving out hello, which is in Go: there is none on this machine. \`plugins/build.sh hello\` fetches one, and a host that runs takes the plugin up"
    fi
    if [[ -x /usr/sbin/rabbitmq-server ]] && "$plugins/python.sh" >/dev/null; then
        echo rabbitmq
    else
        say "leaving out rabbitmq, which needs a RabbitMQ on this machine and the tool-chain for Python: see plugins/rabbitmq/README.md"
    fi
}

build_go() {
    local folder=$1 name go
    name=$(sed -n 's/^module  *\(.*\)/\1/p' "$folder/go.mod" | head -n 1)
    name=${name##*/}
    go=$("$plugins/go.sh")
    say "building $name"
    mkdir -p "$work/go"
    (cd "$folder" && GOTOOLCHAIN=local GOOS=wasip1 GOARCH=wasm "$go" build -trimpath -ldflags='-s -w' \
        -o "$work/go/$name.wasm" . >&2)
    install_file "$work/go/$name.wasm" "$name"
}

build_with_make() {
    local folder=$1 name arguments=()
    name=$(cd "$folder" && basename "$PWD")
    [[ ! -f $folder/plugin.c ]] || arguments+=("CC=$("$plugins/c.sh")")
    [[ ! -f $folder/plugin.js && ! -f $folder/plugin.ts ]] || arguments+=("COMPONENTIZE=$("$plugins/js.sh")")
    [[ ! -f $folder/plugin.py ]] || arguments+=("COMPONENTIZE=$("$plugins/python.sh")")
    [[ ! -f $folder/plugin.zig ]] || arguments+=("ZIG=$("$plugins/zig.sh")")
    [[ ! -f $folder/assembly/plugin.ts ]] || arguments+=("ASC=$("$plugins/assemblyscript.sh")")
    say "building $name"
    make --silent --directory "$folder" "${arguments[@]}" >&2
    install_file "$folder/build/$name.wasm" "$name"
}

build() {
    local folder=$1 name place checkout
    local manifest=$folder/Cargo.toml
    place=$(cd "$folder" && pwd -P)
    checkout=$(cd "$plugins/.." && pwd -P)
    if [[ $place/ != "$checkout"/* ]]; then
        # Its name may be that of a plugin here, which a host may be running.
        local results=$place/target/plugins work=${CARGO_TARGET_DIR:-$place/target}
        mkdir -p "$results"
    fi
    if [[ -f $folder/go.mod ]]; then
        build_go "$folder"
        return
    fi
    if has_source "$folder"; then
        build_with_make "$folder"
        return
    fi
    [[ -f $manifest ]] || die "$folder holds no plugin: there is no Cargo.toml, no go.mod and none of ${sources[*]}"
    [[ -n $prepared ]] || prepare_rust
    name=$(sed -n 's/^name *= *"\(.*\)"/\1/p' "$manifest" | head -n 1)
    if [[ ! -f $folder/crd.json ]]; then
        say "writing $folder/crd.json from the plugin's types"
        # The test that compares it fails once, for it was out of date.
        (cd "$folder" && cargo test --lib --target-dir "$work" crd_matches_the_types >/dev/null 2>&1) || true
    fi
    say "building $name"
    cargo_build "$folder" --lib
    install_result "${name//-/_}" "$name"
    if grep -q "\"$name-command\"" "$manifest"; then
        cargo_build "$folder" --bin "$name-command" --features command
        install_result "$name-command" "$name-command"
    fi
}

cargo_build() {
    local folder=$1
    shift
    (cd "$folder" && cargo build --release --target "$target" --target-dir "$work" "${cargo_options[@]}" "$@" >&2)
}

# Moved into place, so that a host which watches the folder never reads half a file; left alone when it is the
# same, so that it does not reload.
install_result() {
    install_file "$work/$target/release/$1.wasm" "$2"
}

install_file() {
    local built=$1 result=$results/$2.wasm
    if ! cmp -s "$built" "$result"; then
        cp "$built" "$result.new"
        mv "$result.new" "$result"
    fi
    echo "$result"
}

cargo_options=(--quiet)
work=${CARGO_TARGET_DIR:-$plugins/target}
prepared=''

# A toolchain for Rust plugins, found or installed before the first of them.
prepare_rust() {
    case ${WASM_TOOLCHAIN:-} in
        '') use_rustup || use_debian ;;
        rustup) use_rustup || die "rustup cannot add the target $target" ;;
        debian) use_debian ;;
        *) die "WASM_TOOLCHAIN is rustup or debian" ;;
    esac

    # What makes a plugin small, said here too for plugins in other workspaces; and no path of this machine in it.
    export CARGO_PROFILE_RELEASE_{OPT_LEVEL=s,LTO=true,CODEGEN_UNITS=1,PANIC=abort,STRIP=true}
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} sources
    sources=$("${RUSTC:-rustc}" --print sysroot)/lib/rustlib/src
    export CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="--remap-path-prefix=$cargo_home/registry/src/= --remap-path-prefix=$plugins/= --remap-path-prefix=$sources/="
    prepared=yes
}

mkdir -p "$results"
(($#)) || mapfile -t folders < <(all_plugins)
(($# == 0)) || folders=("$@")
[[ ${1:-} != samples ]] || mapfile -t folders < <(samples | tr ' ' '\n')
for folder in "${folders[@]}"; do
    [[ -d $plugins/$folder && $folder != */* && $folder != .* ]] && folder=$plugins/$folder
    build "$folder"
done
