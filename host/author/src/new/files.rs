//! The files that `new` writes, by language. Files that this repository's samples contain too are taken from them: the
//! loop around Hello, the bindings and the JSON of Echo in C, the SDKs of Echo in other languages, the versions of the Rust
//! plugins' dependencies.

use super::{Language, Placeholders, lock};

/// The content of a file.
pub(super) enum Content {
    /// A text with placeholders to fill.
    Template(&'static str),
    /// A text to write unchanged.
    Verbatim(&'static [u8]),
    /// The lock file of a Rust plugin.
    Lock,
    /// A text of this plugin alone, with placeholders to fill.
    Lines(String),
}

use Content::{Lines, Lock, Template, Verbatim};

impl Content {
    pub(super) fn fill(&self, placeholders: &Placeholders) -> Vec<u8> {
        match self {
            Template(text) => placeholders.fill(text).into_bytes(),
            Verbatim(bytes) => bytes.to_vec(),
            Lines(text) => placeholders.fill(text).into_bytes(),
            Lock => lock::of(&placeholders.name).into_bytes(),
        }
    }
}

macro_rules! template {
    ($path:literal) => {
        Template(include_str!(concat!("../../templates/", $path)))
    };
}

macro_rules! sample {
    ($path:literal) => {
        Verbatim(include_bytes!(concat!("../../samples/", $path)))
    };
}

macro_rules! makefile {
    ($sample:literal) => {
        Template(include_str!(concat!("../../samples/", $sample, "/Makefile")))
    };
}

/// Adds what plugins in JavaScript and TypeScript have in common.
fn javascript(mut files: Vec<(&'static str, Content)>) -> Vec<(&'static str, Content)> {
    files.extend([
        ("Makefile", makefile!("echo-js")),
        ("build.mjs", sample!("echo-js/build.mjs")),
        ("testing.mjs", sample!("echo-js/testing.mjs")),
        ("testing.d.mts", sample!("echo-js/testing.d.mts")),
        ("operator-plugin.js", sample!("echo-js/operator-plugin.js")),
        ("operator-plugin.d.ts", sample!("echo-js/operator-plugin.d.ts")),
        ("plugin.wit", sample!("echo-js/plugin.wit")),
    ]);
    files
}

/// The files that the packages on npm and PyPI contain.
const PACKAGED: [&str; 8] = [
    "build.mjs",
    "testing.mjs",
    "testing.d.mts",
    "operator-plugin.js",
    "operator-plugin.d.ts",
    "operator_plugin.py",
    "operator_types.py",
    "plugin.wit",
];

/// Leaves out the rows about the files of the package in the table of a README.
fn without_rows(readme: &str) -> String {
    let is_kept = |line: &&str| {
        !PACKAGED
            .iter()
            .any(|name| line.starts_with(&format!("| `{name}`")))
    };
    readme.split_inclusive('\n').filter(is_kept).collect()
}

/// Returns the files of a plugin whose SDK is a package of this version.
pub(super) fn with_package(language: Language, version: &str) -> Vec<(&'static str, Content)> {
    let mut files = of(language);
    files.retain(|(name, _)| !PACKAGED.contains(name));
    for (_, content) in files.iter_mut().filter(|(name, _)| *name == "README.md") {
        if let Template(text) = content {
            *content = Lines(without_rows(text));
        }
    }
    if language == Language::Python {
        files.push(("requirements.txt", Lines(format!("operator-plugin=={version}\n"))));
    }
    files
}

/// Returns the files by their paths in the new folder.
pub(super) fn of(language: Language) -> Vec<(&'static str, Content)> {
    let mut files = vec![
        ("sample.yaml", template!("common/sample.yaml")),
        ("config.yaml", template!("common/config.yaml")),
        ("controller.yaml", template!("common/controller.yaml")),
        ("deploy.mk", template!("common/deploy.mk")),
        ("crd.json", template!("common/crd.json")),
        ("cases/new.json", template!("common/cases/new.json")),
        ("cases/ready.json", template!("common/cases/ready.json")),
        ("cases/no-image.json", template!("common/cases/no-image.json")),
        (".gitignore", Verbatim(b"/build/\n/target/\n/node_modules/\n")),
    ];
    files.extend(match language {
        Language::Rust => vec![
            ("README.md", template!("rust/README.md")),
            ("Makefile", template!("rust/Makefile")),
            ("Cargo.toml", template!("rust/Cargo.toml.txt")),
            ("Cargo.lock", Lock),
            ("src/lib.rs", template!("rust/src/lib.rs")),
            ("src/tests.rs", template!("rust/src/tests.rs")),
        ],
        Language::Go => vec![
            ("README.md", template!("go/README.md")),
            ("Makefile", template!("go/Makefile")),
            ("go.mod", template!("go/go.mod.txt")),
            ("main.go", template!("go/main.go.txt")),
            ("main_test.go", template!("go/main_test.go.txt")),
            ("contract.go", sample!("hello/contract.go")),
        ],
        Language::C => vec![
            ("README.md", template!("c/README.md")),
            ("Makefile", makefile!("echo-c")),
            ("plugin.c", template!("c/plugin.c")),
            ("json.h", sample!("echo-c/json.h")),
            ("json.c", sample!("echo-c/json.c")),
            ("bindings/plugin.h", sample!("echo-c/bindings/plugin.h")),
            ("bindings/plugin.c", sample!("echo-c/bindings/plugin.c")),
            (
                "bindings/plugin_component_type.o",
                sample!("echo-c/bindings/plugin_component_type.o"),
            ),
        ],
        Language::Js => javascript(vec![
            ("README.md", template!("js/README.md")),
            ("plugin.js", template!("js/plugin.js")),
            ("plugin.test.js", template!("js/plugin.test.js")),
            ("package.json", template!("js/package.json")),
        ]),
        Language::Ts => javascript(vec![
            ("README.md", template!("ts/README.md")),
            ("plugin.ts", template!("ts/plugin.ts")),
            ("plugin.test.ts", template!("ts/plugin.test.ts")),
            ("package.json", template!("ts/package.json")),
            ("tsconfig.json", template!("ts/tsconfig.json")),
        ]),
        Language::Python => vec![
            ("README.md", template!("python/README.md")),
            ("Makefile", makefile!("echo-python")),
            ("plugin.py", template!("python/plugin.py")),
            ("test_plugin.py", template!("python/test_plugin.py")),
            ("conftest.py", sample!("echo-python/conftest.py")),
            ("operator_plugin.py", sample!("echo-python/operator_plugin.py")),
            ("operator_types.py", sample!("echo-python/operator_types.py")),
            ("plugin.wit", sample!("echo-python/plugin.wit")),
        ],
        Language::Zig => vec![
            ("README.md", template!("zig/README.md")),
            ("Makefile", makefile!("echo-zig")),
            ("plugin.zig", template!("zig/plugin.zig")),
            ("operator_plugin.zig", sample!("echo-zig/operator_plugin.zig")),
        ],
        Language::AssemblyScript => vec![
            ("README.md", template!("assemblyscript/README.md")),
            ("Makefile", makefile!("echo-assemblyscript")),
            ("assembly/plugin.ts", template!("assemblyscript/plugin.ts")),
            (
                "assembly/operator-plugin.ts",
                sample!("echo-assemblyscript/assembly/operator-plugin.ts"),
            ),
        ],
    });
    files
}
