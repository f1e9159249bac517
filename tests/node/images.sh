# shellcheck shell=bash
# The images of a node: the host's, by the Dockerfile's own steps; MariaDB, for the image `mysql`; and one stand-in for all else
# that the samples run. Sourced after cluster.sh, never run.
# shellcheck disable=SC2154,SC2034

host_image=registry.example.com/operator-host:0.1.0
host=${PROGRAM:-$PWD/target/released/release/operator-host}

# import NAME ROOT CONFIG: an image of one layer, with this `config` of an OCI image, as JSON.
import() {
    local name=$1 root=$2 work digest
    work=$(mktemp -d "$node/image.XXXXXX")
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$root" --create --file "$work/layer.tar" .
    digest=$(sha256sum <"$work/layer.tar")
    jq --null-input --argjson config "$3" --arg digest "sha256:${digest%% *}" --arg architecture "$(dpkg --print-architecture)" \
        '{$architecture, os: "linux", $config, rootfs: {type: "layers", diff_ids: [$digest]}, history: []}' >"$work/config.json"
    jq --null-input --arg name "$name" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
    tar --directory "$work" --create manifest.json config.json layer.tar | containers images import - >/dev/null
    rm -rf "$work"
}

# dockerfile_steps ROOT: what the Dockerfile runs, with its own arguments, in this checkout instead of its first image. The
# program is built where the other releases are; PROGRAM names one that is there already.
dockerfile_steps() {
    local arguments built=$PWD/target/released cargo=host/release/cargo.sh
    if [[ -n ${PROGRAM:-} ]]; then
        mkdir -p "$node/built/any"
        ln -s "$PROGRAM" "$node/built/any/operator-host"
        built=$node/built cargo=true
    fi
    mapfile -t arguments < <(sed -n 's/^ARG \(.*=.*\)/\1/p' Dockerfile)
    env "${arguments[@]}" sh -eu <(awk '/^RUN / { step = 1; sub(/^RUN /, "") } step { print } !/\\$/ { step = 0 }' Dockerfile |
        sed "s|/image|$1|g; s|/target|$built|g; s|host/release/cargo.sh|$cargo|")
}

# instruction NAME: its arguments in the Dockerfile.
instruction() { sed -n "s/^$1 //p" Dockerfile; }

# with_libraries ROOT PROGRAM...: copies programs and what they are linked to.
with_libraries() {
    local root=$1
    shift
    cp --parents "$@" "$root"
    ldd "$@" | grep -o '/[^ :]*' | sort --unique | xargs cp --dereference --parents --target-directory "$root"
}

mariadb_root() {
    local root=$1 name
    mkdir -p "$root"/{bin,tmp,run/mysqld,var/lib/mysql}
    cp /bin/busybox "$root/bin/"
    for name in sh cat mkdir; do
        ln -s busybox "$root/bin/$name"
    done
    with_libraries "$root" /usr/sbin/mariadbd
    cp --parents --recursive /usr/share/mysql "$root"
    cp tests/node/mariadb.sh "$root/start"
}

build_host() { with_progress "Building the host and its root as the Dockerfile does" "$node/log/image" dockerfile_steps "$node/root/host"; }

import_images() {
    local root=$node/root image port
    import "$host_image" "$root/host" "$(jq --null-input --arg user "$(instruction USER)" \
        --argjson entrypoint "$(instruction ENTRYPOINT)" --argjson command "$(instruction CMD)" \
        '{User: $user, Entrypoint: $entrypoint, Cmd: $command}')"
    mariadb_root "$root/mariadb"
    import docker.io/library/mysql:8.4 "$root/mariadb" \
        '{"Entrypoint": ["/start"], "Env": ["PATH=/bin:/usr/sbin"], "Volumes": {"/var/lib/mysql": {}}}'
    mkdir "$root/stand-in"
    cp "$node/stand-in" "$root/stand-in/"
    import localhost/stand-in:1 "$root/stand-in" '{"Entrypoint": ["/stand-in"], "User": "65532:65532"}'
    while read -r image port; do
        import "$image" "$root/stand-in" "{\"Entrypoint\": [\"/stand-in\", \"$port\"]}"
    done <<'END'
docker.io/ealen/echo-server:0.9.2 80
docker.io/library/nginx:1.27 80
docker.io/nginxdemos/hello:0.3-plain-text 80
END
    rm -rf "$root"
}
