# shellcheck shell=bash
# What the set-up scripts share: talking to the person on stderr, Debian packages, long steps with progress.
# Sourced, never run.

# Removes what another script writes over and over in the last line of the terminal.
line=''
[[ ! -t 2 ]] || line=$'\r\e[K'

if [[ -t 2 && -z "${NO_COLOR:-}" ]]; then
    bold=$'\e[1m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
    bold='' red='' dim='' plain=''
fi

say() { printf '%s%s==>%s %s\n' "$line" "$bold" "$plain" "$*" >&2; }

# fail WHAT-HAPPENED WHAT-TO-DO
fail() {
    printf '%s%serror:%s %s\n' "$line" "$red" "$plain" "$1" >&2
    [[ $# -lt 2 ]] || printf '  %s\n' "$2" >&2
    exit 1
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this step needs root and there is no sudo: $*" "Run that command as root, then start again."
    fi
}

# cargo_tool PROGRAM PACKAGE@VERSION OPTION...: prints where the program is, which cargo compiles into the user's cache once.
cargo_tool() {
    local program=$1 package=$2 cache
    shift 2
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/$program/${package#*@}
    if [[ ! -x $cache/bin/$program ]]; then
        say "Compiling $package"
        cargo install --quiet --locked "$package" "$@" --root "$cache" >&2 || return
    fi
    echo "$cache/bin/$program"
}

cargo_deny_version=0.20.2
cargo_deny_cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/cargo-deny/$cargo_deny_version

# Prints the program cargo-deny, if there is one.
cargo_deny() {
    command -v cargo-deny || ! [[ -x $cargo_deny_cache/cargo-deny ]] || echo "$cargo_deny_cache/cargo-deny"
}

# One background job at a time, in a process group of its own, so that all of it can be stopped: the children of
# a script's ordinary background job do not even see Ctrl-C. It must not use the terminal: the system would stop it.
job=''
start_job() {
    set -m
    "$@" </dev/null &
    job=$!
    set +m
}
stop_job() {
    [[ -z $job ]] || kill -TERM -- "-$job" 2>/dev/null || true
}
# Ctrl-C and SIGTERM end the script, and its end runs the EXIT trap of the script, which stops the job.
trap 'exit 130' INT
trap 'exit 143' TERM

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# lasted WHAT SECONDS: adds to `phases` what took more than a moment.
phases=''
lasted() { (($2 < 5)) || phases+="$1 $(clock "$2"), "; }

# Prints how far cargo is whose words are in the file CARGO_WORDS, such as " · the host: 12/405 crates"; nothing without it.
cargo_progress() {
    local crates
    [[ -f ${CARGO_WORDS:-} ]] || return 0
    crates=$(tail -c 4096 "$CARGO_WORDS" | tr '\r' '\n' | sed -nE 's|.*\] ([0-9]+/[0-9]+)[:, ].*|\1|p' | tail -n 1)
    [[ -z $crates ]] || printf ' · the host: %s crates' "$crates"
}

# show_progress LABEL SECONDS: says how long a step has taken, and how much is left when `usual`, its usual seconds, is set.
# A terminal sees a line that ticks, a pipe a line every ten seconds.
show_progress() {
    local left='' text
    if [[ -n ${usual:-} ]]; then
        left=", about $(clock $((usual - $2))) left"
        (($2 < usual)) || left=", longer than the usual $(clock "$usual")"
    fi
    text="    $1 … $(clock "$2")$left"
    if [[ -t 2 ]]; then
        printf '\r\e[K%s%s%s%s' "$dim" "$text" "$(cargo_progress)" "$plain" >&2
    elif (($2 >= told + 10)); then
        told=$2
        printf '%s%s\n' "$text" "$(cargo_progress)" >&2
    fi
}

# wait_for LABEL PID: waits for a job, with progress. Returns its status.
wait_for() {
    local started=$SECONDS told=0
    while kill -0 "$2" 2>/dev/null; do
        show_progress "$1" $((SECONDS - started))
        sleep 0.2
    done
    [[ ! -t 2 ]] || printf '\r\e[K' >&2
    wait "$2"
}

# with_progress LABEL LOG COMMAND...: runs a long step with its output in LOG, and says how far it is. When the step fails,
# the end of LOG is shown and the script ends. Never call it in a condition: bash would ignore `set -e` inside the step.
with_progress() {
    local label=$1 log=$2 started=$SECONDS status=0 now
    shift 2
    start_job "$@" >"$log" 2>&1 9>&-
    wait_for "$label" "$job" || status=$?
    job=''
    now=$((SECONDS - started))
    if ((status != 0)); then
        printf '    %s failed after %s; the last lines it wrote:\n' "$label" "$(clock "$now")" >&2
        tail -n 20 "$log" | sed 's/^/    | /' >&2
        fail "this step failed: $label" "The whole log: $log"
    elif ((now >= 5)); then
        printf '    %s: done in %s\n' "$label" "$(clock "$now")" >&2
    fi
}

has_package() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# One apt at a time, from whichever of our scripts it is called, and one refresh of the lists.
apt_refreshed=''
refresh_package_lists() {
    [[ -z $apt_refreshed ]] || return 0
    as_root apt-get -o DPkg::Lock::Timeout=600 -qq update >&2 ||
        fail "apt-get update failed" "See its message above: this machine must reach its Debian mirror."
    apt_refreshed=yes
}

# install_packages WHY PACKAGE...: installs by name those that are missing.
install_packages() {
    local why=$1 package missing=()
    shift
    for package in "$@"; do
        has_package "$package" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null ||
        fail "these Debian packages are needed and there is no apt-get here: ${missing[*]}" "They are for: $why."
    say "Installing ${missing[*]}: $why"
    refresh_package_lists
    # RUNLEVEL and the empty front end: nothing asks, nothing starts a service.
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -o DPkg::Lock::Timeout=600 -qq -y \
        --no-install-recommends install "${missing[@]}" >/dev/null ||
        fail "apt-get could not install: ${missing[*]}" "See its message above; they are for: $why."
}
