//! What wasmtime makes of `wit/`: the records. The calls are in `versions`, for more than one version.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::all)]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "plugin",
    exports: { default: async },
});
