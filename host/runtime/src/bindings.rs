//! The records that wasmtime generates from `wit/`. The calls are in `contract_versions`, because they support more
//! than one contract version.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::all)]

wasmtime::component::bindgen!({
    path: "wit",
    world: "plugin",
    exports: { default: async },
});
