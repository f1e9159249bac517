#!/usr/bin/env bash
# Checks the spelling of every text and source with codespell, which knows common misspellings and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Words that it takes for others: Rust's packages, the language of the contract, a type and a module of libraries.
words=crate,keypair,ser,wit

# Not what tools write, and not what is broken on purpose.
git ls-files -z | grep --null-data --invert-match -E '^tests/fuzz/corpora/|/bindings/|Cargo\.lock$|\.(wasm|o)$' |
    xargs --null codespell --ignore-words-list "$words"
