# The host's image: the program, the libraries that it is linked to, the authorities that it trusts, and nothing else.
# No shell, no package manager, no plugins: those are mounted. It runs as a user without privileges, on a root that may
# be read-only; host/docs/production.md says how.
#
#   docker build --build-arg REVISION="$(git rev-parse HEAD)" -t operator-host:0.1.0 .
#
# `make image-test` builds this very file where no image can be pulled, and runs what came out.

# Debian, with Rust: what the program is linked to comes from the same place that the image's libraries come from. The one
# image that this file pulls; to pin it,
#
#   docker build --build-arg BUILD_IMAGE=docker.io/library/rust@sha256:… .
#
# with the digest that `docker buildx imagetools inspect docker.io/library/rust:1.95-bookworm` prints.
ARG BUILD_IMAGE=docker.io/library/rust:1.95-bookworm

FROM ${BUILD_IMAGE} AS build
# A profile of cargo's; `dev` is quick to build and slow to run.
ARG PROFILE=release
# The SDK that `operator-host new` takes outside of a checkout, as its `--sdk`; there is none before it is published.
ARG RELEASED_SDK=
# The time that all files get, so that the same sources give the same image.
ARG SOURCE_DATE_EPOCH=0

WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY wit wit
COPY host host
# What `operator-host new` takes from the samples.
COPY plugins plugins
# Cargo wants to see every member of the workspace; the program uses none of this.
COPY tests tests

RUN CARGO_TARGET_DIR=/target OPERATOR_HOST_RELEASED_SDK="${RELEASED_SDK}" \
    host/release/cargo.sh build --profile "${PROFILE}" --package operator-host

# The image's root: what the loader says that the program needs, and for scanners which packages that is from and which
# crates the program is made of.
RUN set -eu; \
    program=$(ls /target/*/operator-host); \
    mkdir -p /image/usr/local/bin /image/etc/ssl/certs /image/var/lib/dpkg/status.d; \
    cp "$program" /image/usr/local/bin/; \
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do \
        cp --dereference --parents "$library" /image; \
    done; \
    packages="libc6 libgcc-s1 ca-certificates"; \
    mkdir -p /image/usr/local/share/sbom; \
    host/sbom.sh $packages >/image/usr/local/share/sbom/operator-host.cdx.json; \
    for package in $packages; do \
        dpkg -s "$package" >/image/var/lib/dpkg/status.d/"$package"; \
        cp --parents /usr/share/doc/"$package"/copyright /image; \
    done; \
    cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/; \
    echo 'hosts: files dns' >/image/etc/nsswitch.conf; \
    echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >/image/etc/passwd; \
    echo 'nonroot:x:65532:' >/image/etc/group; \
    find /image -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="operator-host" \
      org.opencontainers.image.description="Every Kubernetes operator a team needs, in one process: reconcile logic in WebAssembly plugins" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/operator-host"]
CMD ["run"]
