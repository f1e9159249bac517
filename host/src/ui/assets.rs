//! The files of the page. They are part of the program, and use nothing from elsewhere.

/// The path, the type and the content of each.
pub(super) const ASSETS: [(&str, &str, &str); 4] = [
    (
        "/ui/",
        "text/html; charset=utf-8",
        include_str!("assets/index.html"),
    ),
    (
        "/ui/style.css",
        "text/css; charset=utf-8",
        include_str!("assets/style.css"),
    ),
    (
        "/ui/script.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/script.js"),
    ),
    ("/ui/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_small_and_name_no_other_site() {
        assert!(ASSETS.iter().map(|(.., file)| file.len()).sum::<usize>() < 100_000);
        for (path, _, file) in ASSETS {
            let names = file.replace("http://www.w3.org/2000/svg", "");
            assert!(
                !names.contains("http://") && !names.contains("https://"),
                "{path}"
            );
            // The Content-Security-Policy would refuse them.
            assert!(!file.contains("style=") && !file.contains("innerHTML"), "{path}");
        }
    }
}
