#!/bin/sh
# Prints what the program is made of as a CycloneDX document: host/sbom.sh [DEBIAN-PACKAGE]...
#
# The crates are those that are linked into the program on this platform, by the lock file, with their checksums: no
# macros, no build scripts, nothing that only tests use. The packages are the Debian ones whose files lie beside it. There
# is no time and no random number in it: the same sources give the same document.
#
# The Dockerfile runs it, so it needs nothing but cargo and what the smallest Debian has.
#
# Source: https://cyclonedx.org/docs/1.5/json/
set -eu
cd "$(dirname "$0")/.."

target=$(rustc -vV | sed -n 's/^host: //p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# DEPTH NAME vVERSION [(path)] [(*)]|LICENCE
cargo tree --locked --package operator-host --target "$target" --edges normal,no-proc-macro --prefix depth \
    --format ' {p}|{l}' >"$work/tree"

if [ $# -gt 0 ]; then
    # shellcheck disable=SC1091
    distribution=$(. /etc/os-release && echo "$ID-${VERSION_ID:-}")
    # The format is dpkg's.
    # shellcheck disable=SC2016
    dpkg-query --show --showformat='${Package}|${Version}|${Architecture}|'"$distribution"'\n' "$@" >"$work/packages"
else
    : >"$work/packages"
fi

awk -v lock=Cargo.lock -v packages="$work/packages" '
function quoted(text) { gsub(/["\\]/, "\\\\&", text); return "\"" text "\"" }
# What may not stand in a package URL as it is.
function escaped(text) { gsub(/%/, "%25", text); gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); gsub(/~/, "%7E", text); return text }
function component(text) { components = components (components == "" ? "" : ",\n") "    " text }
BEGIN {
    while ((getline line < lock) > 0) {
        split(line, part, "\"")
        if (line ~ /^name = /) name = part[2]
        if (line ~ /^version = /) version = part[2]
        if (line ~ /^checksum = /) checksum[name " " version] = part[2]
    }
}
{
    match($0, /^[0-9]+/); depth = substr($0, 1, RLENGTH) + 0
    bar = index($0, "|"); licence = substr($0, bar + 1); sub(/ \(\*\)$/, "", licence)
    split(substr($0, RLENGTH + 2, bar - RLENGTH - 2), word, " ")
    name = word[1]; version = substr(word[2], 2)
    ref = "pkg:cargo/" name "@" escaped(version)
    above[depth] = ref
    if (depth > 0 && !((above[depth - 1] " " ref) in edge)) {
        edge[above[depth - 1] " " ref] = 1
        depends[above[depth - 1]] = depends[above[depth - 1]] (depends[above[depth - 1]] == "" ? "" : ", ") quoted(ref)
    }
    if (ref in seen) next
    seen[ref] = 1; order[++count] = ref
    # An old form, in which a slash was for `OR`.
    gsub(/ *\/ */, " OR ", licence)
    text = sprintf("\"bom-ref\": %s, \"name\": %s, \"version\": %s, \"licenses\": [{\"expression\": %s}], \"purl\": %s",
        quoted(ref), quoted(name), quoted(version), quoted(licence), quoted(ref))
    if ((name " " version) in checksum)
        text = text sprintf(", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"%s\"}]", checksum[name " " version])
    if (depth == 0) program = "{\"type\": \"application\", " text "}"
    else component("{\"type\": \"library\", " text "}")
}
END {
    while ((getline line < packages) > 0) {
        split(line, part, "|")
        ref = "pkg:deb/debian/" escaped(part[1]) "@" escaped(part[2]) "?arch=" part[3] "&distro=" part[4]
        component(sprintf("{\"type\": \"library\", \"bom-ref\": %s, \"name\": %s, \"version\": %s, \"purl\": %s}",
            quoted(ref), quoted(part[1]), quoted(part[2]), quoted(ref)))
        beside = beside (beside == "" ? "" : ", ") quoted(ref)
    }
    root = order[1]
    if (beside != "") depends[root] = depends[root] ", " beside
    print "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,"
    print "  \"metadata\": {\"component\": " program "},"
    print "  \"components\": [\n" components "\n  ],\n  \"dependencies\": ["
    for (i = 1; i <= count; i++)
        printf "    {\"ref\": %s, \"dependsOn\": [%s]}%s\n", quoted(order[i]), depends[order[i]], i < count ? "," : ""
    print "  ]\n}"
}' "$work/tree"
