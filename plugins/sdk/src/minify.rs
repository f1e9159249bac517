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
///
/// The compiler counts the steps of a constant, and refuses too many: a definition with the template of a pod has half a
/// megabyte in its readable form. So nothing is called for each byte. A pattern of a slice takes the fewest steps.
const fn minify_into(text: &str, out: &mut [u8]) -> usize {
    let mut rest = text.as_bytes();
    // From the first byte that is read and not yet written.
    let mut unwritten = rest;
    let mut written = 0;
    loop {
        match rest {
            [] => return append(unwritten, unwritten.len(), out, written),
            [b'"', after @ ..] => rest = after_string(after),
            [b' ' | b'\n' | b'\r' | b'\t', after @ ..] => {
                written = append(unwritten, unwritten.len() - rest.len(), out, written);
                rest = after_space(after);
                unwritten = rest;
            }
            [_, after @ ..] => rest = after,
        }
    }
}

const fn after_space(mut rest: &[u8]) -> &[u8] {
    loop {
        match rest {
            [b' ', b' ', b' ', b' ', b' ', b' ', b' ', b' ', after @ ..]
            | [b' ' | b'\n' | b'\r' | b'\t', after @ ..] => rest = after,
            _ => return rest,
        }
    }
}

/// Returns what comes after the string whose content is at the beginning.
const fn after_string(mut rest: &[u8]) -> &[u8] {
    loop {
        if let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, after @ ..] = rest {
            let piece = u128::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h, *i, *j, *k, *l, *m, *n, *o, *p]);
            if !has(piece, b'"') && !has(piece, b'\\') {
                rest = after;
                continue;
            }
        }
        match rest {
            [b'"', after @ ..] => return after,
            [b'\\', _, after @ ..] | [_, after @ ..] => rest = after,
            [] => return rest,
        }
    }
}

/// Reports whether one of the bytes of a piece is this one: the difference is zero there, and subtracting one from it borrows.
const fn has(piece: u128, byte: u8) -> bool {
    const ONES: u128 = u128::from_ne_bytes([1; 16]);
    let difference = piece ^ (byte as u128 * ONES);
    difference.wrapping_sub(ONES) & !difference & (ONES << 7) != 0
}

/// Writes a piece as far as it fits, and returns the length with it.
const fn append(bytes: &[u8], length: usize, out: &mut [u8], written: usize) -> usize {
    if written + length <= out.len() {
        let to = out.split_at_mut(written).1.split_at_mut(length).0;
        to.copy_from_slice(bytes.split_at(length).0);
    }
    written + length
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

    /// Regression: the compiler refused the definition of a spec with a pod's template, because it took too long.
    #[test]
    #[allow(clippy::large_const_arrays, reason = "of a definition, too, it is a constant")]
    fn a_definition_of_half_a_megabyte_is_not_too_much_for_the_compiler() {
        const SIZE: usize = 1 << 19;
        const LINE: &[u8; 128] = b"                                                          \"description\": \"This is one of the very many long \\\" descriptions.\",\n ";
        const LONG: [u8; SIZE] = {
            let mut text = [b' '; SIZE];
            text.split_at_mut(LINE.len()).0.copy_from_slice(LINE);
            let mut done = LINE.len();
            while done < SIZE {
                let (from, to) = text.split_at_mut(done);
                to.split_at_mut(done).0.copy_from_slice(from);
                done *= 2;
            }
            text
        };
        const TEXT: &str = match std::str::from_utf8(&LONG) {
            Ok(text) => text,
            Err(_) => "",
        };
        const SHORT: [u8; minified_len(TEXT)] = minified(TEXT);
        let line = r#""description":"This is one of the very many long \" descriptions.","#;
        assert_eq!(std::str::from_utf8(&SHORT), Ok(&*line.repeat(SIZE / LINE.len())));
    }

    #[test]
    fn what_is_minified_is_the_same_document_wherever_its_parts_begin() {
        for shift in 0..20 {
            let value = serde_json::json!({ "a": "x".repeat(shift), "b": [{}, "\\\\\"", " \t\n "], "\u{fc}": { "c d": [1, -2.5e3, null] } });
            let readable = format!("{}{value:#}{}", " ".repeat(shift), "\n".repeat(shift));
            let mut short = vec![0; minified_len(&readable)];
            minify_into(&readable, &mut short);
            assert_eq!(String::from_utf8(short).unwrap(), value.to_string());
        }
    }
}
