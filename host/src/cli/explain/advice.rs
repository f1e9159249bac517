//! What a reason means, from the page on troubleshooting, which a test keeps complete.

const PAGE: &str = include_str!("../../../docs/troubleshooting.md");

/// Returns the paragraphs of the page about a reason, without markup; `None` for a reason of a plugin.
pub(super) fn about(reason: &str) -> Option<String> {
    let heading = format!("### `{reason}`");
    let mut lines = PAGE.lines().skip_while(|line| *line != heading).skip(1);
    let section: Vec<_> = lines.by_ref().take_while(|line| !line.starts_with('#')).collect();
    let text = section.join("\n");
    let paragraphs: Vec<_> = text
        .split("\n\n")
        .map(|paragraph| plain(&paragraph.split_whitespace().collect::<Vec<_>>().join(" ")))
        .filter(|paragraph| !paragraph.is_empty())
        .collect();
    (!paragraphs.is_empty()).then(|| paragraphs.join("\n"))
}

/// Returns the text of a paragraph: of a link `[text](target)` only the text.
fn plain(paragraph: &str) -> String {
    let mut plain = String::with_capacity(paragraph.len());
    let mut rest = paragraph;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((text, after)) = link.split_once("](") else {
            break;
        };
        let Some((_, after)) = after.split_once(')') else {
            break;
        };
        plain.push_str(before);
        plain.push_str(text);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_about_a_reason_is_the_section_of_the_page_without_its_links() {
        let text = about("ChildrenNotReady").unwrap();
        assert!(
            text.starts_with("Condition `Ready`, with the status `False`."),
            "{text}"
        );
        assert!(text.contains("see when a child is ready."), "{text}");
        assert!(!text.contains("###") && !text.contains("]("), "{text}");
    }

    #[test]
    fn a_reason_of_a_plugin_has_no_text() {
        assert_eq!(about("RollingOut"), None);
        assert_eq!(about(""), None);
    }

    #[test]
    fn brackets_that_are_no_link_stay() {
        assert_eq!(plain("a [b] c"), "a [b] c");
        assert_eq!(plain("see [this](x.md#y), and [that](z)."), "see this, and that.");
    }
}
