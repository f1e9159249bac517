//! What `wit-bindgen` makes of the world in `wit/`. Its records are the crate's own types: their constructors
//! stand in `response.rs`.

#![allow(missing_docs, unreachable_pub, clippy::all)]

wit_bindgen::generate!({
    path: "../../wit",
    world: "plugin",
    additional_derives: [PartialEq, Eq],
});
