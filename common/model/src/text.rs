//! Text that people give and terminals show: one rule for names, keys and reasons.

/// True for a character that leaves no mark where it is printed: spaces of any width, joiners,
/// marks of direction, tags, fillers. A text of these alone is an empty cell of a table.
fn is_invisible(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// True where there is something to see in a text.
#[must_use]
pub fn is_visible(text: &str) -> bool {
    !text.chars().all(is_invisible)
}

/// What is wrong with a text of at most `bytes_max` bytes that goes into a line of a table, in
/// words; none where it may be taken.
#[must_use]
pub fn text_problem(text: &str, bytes_max: usize) -> Option<String> {
    if text.trim().is_empty() {
        return Some("is empty".to_owned());
    }
    if text.len() > bytes_max {
        return Some(format!("has {} bytes", text.len()));
    }
    // Marks of direction reorder a terminal's line as control characters do.
    let odd = |c: &char| {
        c.is_control()
            || matches!(*c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if let Some(c) = text.chars().find(odd) {
        return Some(format!("contains the unprintable character {c:?}"));
    }
    (!is_visible(text)).then(|| "has no visible character".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_shows_nothing_is_refused() {
        for blank in
            ["\u{200b}", "\u{ad}\u{ad}", "\u{e0041}\u{e0042}", "\u{2060} \u{feff}", "\u{3164}"]
        {
            assert_eq!(text_problem(blank, 100).as_deref(), Some("has no visible character"));
        }
        for fine in ["a", "é", "漢字", "👩\u{200d}🔬", "a\u{ad}b", "שלום"] {
            assert_eq!(text_problem(fine, 100), None, "{fine:?}");
        }
        assert_eq!(text_problem(" \u{3000}", 100).as_deref(), Some("is empty"));
        assert_eq!(text_problem("abc", 2).as_deref(), Some("has 3 bytes"));
    }
}
