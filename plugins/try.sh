#!/usr/bin/env bash
# Builds another version of the Echo sample, for a host that runs, such as that of `make run`:
#
#   plugins/try.sh changed    gives every pod a label that no version before it gave
#   plugins/try.sh broken     panics as soon as there are pods to make
#   plugins/try.sh original   is the sample as it is
#
# The source is changed for as long as the build takes, and then it is as before.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$here/echo/src/lib.rs
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

case ${1:-} in
    changed) edit='s/"labels": { "app": name }/"labels": { "app": name, "tried": "'$(date +%H%M%S)'" }/' ;;
    broken) edit='s/^fn reconcile(.*$/&\n    assert!(request.parent.spec.replicas == 0, "broken on purpose by plugins\/try.sh");/' ;;
    original) edit= ;;
    *) usage ;;
esac

if [[ -n $edit ]]; then
    copy=$(mktemp)
    cp -p "$source" "$copy"
    trap 'cp -p "$copy" "$source"; rm -f "$copy"' EXIT
    sed -i "$edit" "$source"
    if cmp -s "$source" "$copy"; then
        echo "plugins/try.sh: $source does not read as expected any more" >&2
        exit 1
    fi
fi
touch "$source"
"$here/build.sh" echo
