//! The files of the page. They are part of the program, and use nothing from elsewhere.

/// A file of the page.
pub(super) struct Asset {
    pub(super) type_: &'static str,
    pub(super) body: &'static str,
}

/// Returns the file at a path.
pub(super) fn asset(path: &str) -> Option<Asset> {
    let (type_, body) = match path {
        "/ui/" => ("text/html; charset=utf-8", include_str!("assets/index.html")),
        "/ui/style.css" => ("text/css; charset=utf-8", include_str!("assets/style.css")),
        "/ui/script.js" => ("text/javascript; charset=utf-8", include_str!("assets/script.js")),
        "/ui/icon.svg" => ("image/svg+xml", include_str!("assets/icon.svg")),
        _ => return None,
    };
    Some(Asset { type_, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_small_and_name_no_other_site() {
        let paths = ["/ui/", "/ui/style.css", "/ui/script.js", "/ui/icon.svg"];
        let files: Vec<_> = paths.iter().map(|path| asset(path).unwrap().body).collect();
        assert!(files.iter().map(|file| file.len()).sum::<usize>() < 100_000);
        for (path, file) in paths.iter().zip(files) {
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
