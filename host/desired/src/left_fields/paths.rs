//! The list of paths in the annotation, such as `spec.replicas, data["app.properties"]`.

/// The names on the way to a field, and the text from which they were read.
pub(super) type Path<'a> = (Vec<String>, &'a str);

/// Parses the list.
///
/// # Errors
/// The text that is no path.
pub(super) fn parse(text: &str) -> Result<Vec<Path<'_>>, &str> {
    let mut paths = Vec::new();
    let mut rest = text.trim();
    loop {
        let (names, after) = path(rest).ok_or(rest)?;
        paths.push((names, rest[..rest.len() - after.len()].trim()));
        match after.strip_prefix(',') {
            Some(more) => rest = more.trim_start(),
            None if after.is_empty() => return Ok(paths),
            None => return Err(rest),
        }
    }
}

/// Returns the names in the first path and the text after it. A name that has dots is a JSON string in brackets.
fn path(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut names, mut rest) = (Vec::new(), text);
    while names.is_empty() || rest.starts_with(['.', '[']) {
        let name = match rest.strip_prefix('[') {
            Some(within) => {
                let mut strings = serde_json::Deserializer::from_str(within).into_iter::<String>();
                let name = strings.next()?.ok()?;
                let after = &within[strings.byte_offset()..];
                rest = after.trim_start().strip_prefix(']')?.trim_start();
                name
            }
            None => {
                let start = if names.is_empty() {
                    rest
                } else {
                    rest.strip_prefix('.')?
                };
                let end = start.find(['.', '[', ',']).unwrap_or(start.len());
                rest = &start[end..];
                start[..end].trim().to_owned()
            }
        };
        if name.is_empty() {
            return None;
        }
        names.push(name);
    }
    Some((names, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_dots_is_a_string_in_brackets() {
        let names = |text| {
            let paths = parse(text).map(|paths| paths.into_iter().map(|(names, _)| names.join("|")));
            paths.map(Iterator::collect::<Vec<_>>)
        };
        let two = names("spec.replicas, data[\"app.properties\"]").unwrap();
        assert_eq!(two, ["spec|replicas", "data|app.properties"]);
        let mixed = names("[\"a\"] [\"b,]\\\"c\"].d,e").unwrap();
        assert_eq!(mixed, ["a|b,]\"c|d", "e"]);
        for bad in [
            "",
            "a,",
            "a..b",
            "a.",
            ".a",
            "data[app]",
            "data['a']",
            "data[\"a\"",
            "data[\"\"]",
            "data[\"a\"]b",
        ] {
            assert!(names(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("a, b[").unwrap_err(), "b[");
        assert_eq!(parse("a , b[\"c\"]").unwrap()[1].1, "b[\"c\"]");
    }
}
