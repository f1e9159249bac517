//! Builds the crate again when a file is added to the templates, which are embedded as a folder.

fn main() {
    println!("cargo:rerun-if-changed=templates");
}
