#!/usr/bin/env bash
# Builds the documentation as a site: host/docs/book.sh FOLDER. Fails when a link in it leads nowhere.
#
# Uses the mdbook on the PATH, or one in the user's cache, which cargo compiles there once (some minutes).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/../../tests/control-plane/lib.sh"
mkdir -p "${1:?the folder for the site}"
out=$(cd "$1" && pwd)
cd "$here/../.."

mdbook=$(command -v mdbook || cargo_tool mdbook mdbook@0.5.4 --no-default-features --features search) ||
    fail "mdbook cannot be installed" "Install it and put it on the PATH."

# The pages keep their places, so that the links between them, and to files beside them, hold here too.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z --cached --others --exclude-standard '*.md' 'host/docs/*.svg' wit LICENSE manifests/monitoring |
    grep --null-data --invert-match '^host/author/templates/' | xargs --null cp --parents --target-directory "$work" --
cp "$here/book.toml" "$work"
sed -e 's#](#](host/docs/#' -e 's#](host/docs/\.\./\.\./#](#' "$here/SUMMARY.md" >"$work/SUMMARY.md"
# mdbook makes index.html of README.md, but not of the links to it.
find "$work" -name '*.md' -exec sed -i -E 's#(\]\([^)]*)\bREADME\.md#\1index.md#g' {} +
find "$work" -name README.md -execdir mv {} index.md ';'
# Build in the copy: mdbook takes the folder of book.toml, and `src` is the same one.
MDBOOK_BOOK__SRC=. "$mdbook" build --dest-dir "$out" "$work"
tests/links.py --site "$out"
say "The documentation is in $out/index.html"
