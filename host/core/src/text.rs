//! Text of others, in a form that a log line, a condition and a terminal can show.

use k8s_openapi::ByteString;

/// Reports whether a character neither controls a terminal, nor changes the direction of text, nor is invisible: with
/// such characters, text can look like other text.
pub fn is_printable(c: char) -> bool {
    let hidden = matches!(
        c,
        '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !c.is_control() && !hidden
}

/// Replaces each character that is not printable by a space.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| !is_printable(c), " ")
}

/// Truncates the text to at most `max` bytes (at least 3) at a character boundary, and appends `…` if it was cut.
pub fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max - '…'.len_utf8());
    format!("{}…", &text[..end])
}

/// Decodes base64 in the standard or the URL alphabet, as DSSE allows both. Line breaks are ignored.
pub fn base64(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    let text = text.replace('-', "+").replace('_', "/");
    let decoded = serde_json::from_value(text.into());
    decoded.ok().map(|ByteString(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_or_the_direction_of_text_is_not_shown() {
        let text = "a\u{1b}[31m\n\u{9b}b\u{202e}c\u{2066}d\u{2069}e\u{200b}f\u{200f}g\u{2060}h\u{2064}i\u{feff}j\u{61c}k";
        assert_eq!(printable(text), "a [31m  b c d e f g h i j k");
        let names = "Müller-Straße 1–3 “価格” שלום €";
        assert_eq!(printable(names), names);
    }
}
