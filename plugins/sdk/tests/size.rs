//! Plugins stay small: what a plugin author pays before writing a line.

use std::fs;
use std::path::Path;

#[test]
fn echo_is_less_than_126_kb_myapp_less_than_200_and_mysql_with_two_versions_less_than_285() {
    // A second version has a schema of its own, and types that are read and written: 70 KB of MySQL. The serializer that finds
    // numbers that JSON does not have is made for each type: 17 KB of MySQL.
    for (name, limit) in [("echo", 126_000), ("mysql", 285_000), ("myapp", 200_000)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/plugins/{name}.wasm"));
        let size = match fs::metadata(&path) {
            Ok(file) => file.len(),
            Err(error) => panic!("run plugins/build.sh first: {}: {error}", path.display()),
        };
        assert!(
            size < limit,
            "{name}.wasm has {size} bytes, and may have less than {limit}"
        );
    }
}
