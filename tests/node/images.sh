# shellcheck shell=bash
# The images of a node: the host's, by the Dockerfile's own steps, and one stand-in for all that the samples run. Sourced after
# node.sh, never run.
# shellcheck disable=SC2154

host_image=registry.example.com/operator-host:0.1.0

# import NAME ROOT CONFIG: an image of one layer, with this `config` of an OCI image, as JSON.
import() {
    local name=$1 root=$2 work digest
    work=$(mktemp -d "$node/image.XXXXXX")
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$root" --create --file "$work/layer.tar" .
    digest=$(sha256sum <"$work/layer.tar")
    jq --null-input --argjson config "$3" --arg digest "sha256:${digest%% *}" \
        '{architecture: "amd64", os: "linux", $config, rootfs: {type: "layers", diff_ids: [$digest]}, history: []}' >"$work/config.json"
    jq --null-input --arg name "$name" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
    tar --directory "$work" --create manifest.json config.json layer.tar | containers images import - >/dev/null
    rm -rf "$work"
}

# The root is made by the step of the Dockerfile that makes it, of the program that was built here.
host_root() {
    local root=$1 program=${PROGRAM:-$PWD/target/debug/operator-host} step
    step=$(sed -n '/^RUN set -eu;/,/[^\\]$/p' Dockerfile)
    step=${step#RUN }
    mkdir -p "$node/target/any"
    ln -sf "$program" "$node/target/any/operator-host"
    step=${step//\/image/$root}
    step=${step//\/target\//$node/target/}
    SOURCE_DATE_EPOCH=0 sh -c "$step"
}

import_images() {
    local root=$node/root image
    mkdir -p "$root/host"
    with_progress "Making the host's root as the Dockerfile does" "$node/log/image" host_root "$root/host"
    import "$host_image" "$root/host" "$(jq --null-input --arg user "$(sed -n 's/^USER //p' Dockerfile)" \
        --argjson entrypoint "$(sed -n 's/^ENTRYPOINT //p' Dockerfile)" --argjson command "$(sed -n 's/^CMD //p' Dockerfile)" \
        '{User: $user, Entrypoint: $entrypoint, Cmd: $command}')"
    mkdir -p "$root/stand-in"
    gcc -static -O1 -Wall -Werror -o "$root/stand-in/stand-in" tests/node/stand-in.c
    import localhost/stand-in:1 "$root/stand-in" '{"Entrypoint": ["/stand-in"], "User": "65532:65532"}'
    while read -r image port; do
        import "$image" "$root/stand-in" "{\"Entrypoint\": [\"/stand-in\", \"$port\"]}"
    done <<'END'
docker.io/ealen/echo-server:0.9.2 80
docker.io/library/nginx:1.27 80
docker.io/nginxdemos/hello:0.3-plain-text 80
docker.io/library/mysql:8.4 3306
END
    rm -rf "$root"
}
