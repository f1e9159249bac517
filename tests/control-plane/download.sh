# shellcheck shell=bash
# Downloads files whose checksums are known. Sourced after lib.sh, never run.
#
# lib.sh has the colours, and who sources this reads `reason`:
# shellcheck disable=SC2034,SC2154
#
# The functions work in a condition, where bash ignores `set -e`: each failure is returned, with its words in `reason`.

# Milliseconds without a byte after which a server is given up: before the first byte of a file, and in the middle.
patience_at_start=2000
patience_in_the_middle=20000

# The words of the last failure.
reason=''

milliseconds() { echo "$((${EPOCHREALTIME/[.,]/} / 1000))"; }

# The size that the server announced, or nothing. With redirects, that of the last answer.
announced_size() { tr -d '\r' <"$1" | awk 'tolower($1) == "content-length:" { size = $2 } END { print size }'; }

# show_bytes LABEL BYTES HEADERS: on a terminal, a line that is written over and over.
show_bytes() {
    local done=$(($2 / 1000000)) total
    [[ -t 2 ]] || return 0
    total=$(announced_size "$3")
    printf '\r\e[K%s    %s … %d%s MB%s' "$dim" "$1" "$done" "${total:+ of $((total / 1000000))}" "$plain" >&2
}

# A URL for people: without the name and password that it may have.
public() { sed -E 's|^([a-z]+://)[^/@]*@|\1|' <<<"$1"; }

# fetch URL FILE: like `curl --output`, but gives up a server that is silent. curl itself has no limit for the time
# until the first byte.
fetch() {
    local url file=$2 headers=$2.headers words=$2.words host
    local now since sizes before='' patience silent='' status=0
    url=$(public "$1")
    host=${url#*://} host=${host%%/*}
    reason="cannot write $file"
    : >"$file" || return
    : >"$headers" || return
    start_job curl --fail --location --proto '=http,https' --silent --show-error \
        --dump-header "$headers" --output "$file" "$1" 2>"$words" 9>&-
    since=$(milliseconds)
    while kill -0 "$job" 2>/dev/null; do
        now=$(milliseconds)
        sizes=$(stat --format %s "$file" "$headers")
        # A redirect is an answer too: the next server has its own time.
        [[ $sizes == "$before" ]] || before=$sizes since=$now
        patience=$patience_in_the_middle
        [[ $sizes != 0$'\n'* ]] || patience=$patience_at_start
        if ((now - since >= patience)); then
            silent=yes
            stop_job
            break
        fi
        show_bytes "${file##*/}" "${sizes%%$'\n'*}" "$headers"
        sleep 0.1
    done
    wait "$job" 2>/dev/null || status=$?
    job=''
    [[ ! -t 2 ]] || printf '\r\e[K' >&2
    if [[ -n $silent && $patience == "$patience_at_start" ]]; then
        reason="$host did not answer within $((patience / 1000)) seconds"
    elif [[ -n $silent ]]; then
        reason="$url stopped in the middle: $host sent nothing for $((patience / 1000)) seconds"
    elif ((status != 0)); then
        # Without curl's "curl: (22) ".
        reason="$url: $(sed 's/^curl: ([0-9]*) //' "$words" | tail -n 1)"
    fi
    rm -f "$headers" "$words"
    ((status == 0))
}

# fetch_checked URL FILE sha256|sha512 CHECKSUM: fetches, and refuses another file than the one with that checksum.
fetch_checked() {
    local file=$2 algorithm=$3 expected=$4 actual
    fetch "$1" "$file" || return
    actual=$("${algorithm}sum" <"$file") actual=${actual%% *}
    reason="$(public "$1") is not the file that was expected:"
    reason+=" its $algorithm checksum is ${actual:0:12}…, not ${expected:0:12}…"
    [[ $actual == "$expected" ]]
}
