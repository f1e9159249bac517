//! The records that wasmtime generates from `wit/`.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::all)]

wasmtime::component::bindgen!({
    path: "wit",
    world: "plugin",
    exports: { default: async },
});
