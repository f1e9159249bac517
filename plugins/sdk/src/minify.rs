//! Removes the white space of JSON at compile time: the readable form is twice as large.

/// Returns the length of the text without the white space between its tokens.
#[must_use]
pub const fn minified_len(text: &str) -> usize {
    minify_into(text, &mut [])
}

/// Returns the text without the white space between its tokens; `N` is its [`minified_len`].
#[must_use]
pub const fn minified<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    minify_into(text, &mut out);
    out
}

/// Writes as much as fits and returns the total length.
const fn minify_into(text: &str, out: &mut [u8]) -> usize {
    let bytes = text.as_bytes();
    let (mut read, mut written) = (0, 0);
    let (mut in_string, mut escaped) = (false, false);
    while read < bytes.len() {
        let byte = bytes[read];
        read += 1;
        if !in_string && byte.is_ascii_whitespace() {
            continue;
        }
        if byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = byte == b'\\' && !escaped;
        if written < out.len() {
            out[written] = byte;
        }
        written += 1;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_goes_between_tokens_and_stays_in_strings() {
        const TEXT: &str = "{\n  \"a b\": [1, 2],\n  \"c\\\" d\": \"e  \\\\\" }\n";
        const SHORT: [u8; minified_len(TEXT)] = minified(TEXT);
        assert_eq!(
            std::str::from_utf8(&SHORT),
            Ok(r#"{"a b":[1,2],"c\" d":"e  \\"}"#)
        );
    }
}
