//! The bindings that `wit-bindgen` generates for the world in `wit/`. Its records are the crate's own types;
//! `response.rs` contains their constructors.

#![allow(missing_docs, unreachable_pub, clippy::all)]

wit_bindgen::generate!({
    path: "wit",
    world: "plugin",
    additional_derives: [PartialEq, Eq, serde::Serialize, serde::Deserialize],
});
