//! What is new in a text of which only ends are seen.

/// Bytes of the old end that are sought in the new one. More only costs time: a program that
/// writes the same 16 KiB twice within a look is taken as having written them once.
const ANCHOR: usize = 16 * 1024;
/// The window is this many anchors at least, so that most of it is left for what is new.
const ANCHORS_IN_WINDOW: usize = 16;

/// What follows one view of a growing text's end in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum New<'a> {
    /// These bytes were added.
    Added(&'a [u8]),
    /// So much was added that the old end is no longer in view: some bytes were never seen.
    Gap(&'a [u8]),
}

/// Finds what was added between two views, each at most `window` bytes of the end of a text that
/// only grows.
#[must_use]
pub(crate) fn added<'a>(old: &[u8], new: &'a [u8], window: usize) -> New<'a> {
    if old.is_empty() {
        return New::Added(new);
    }
    // While the whole text is in view there is nothing to seek.
    if new.len() < window && new.starts_with(old) {
        return New::Added(&new[old.len()..]);
    }
    let length = ANCHOR.min(window / ANCHORS_IN_WINDOW).max(1);
    let anchor = &old[old.len().saturating_sub(length)..];
    match last_end_of(anchor, new) {
        Some(end) => New::Added(&new[end..]),
        None => New::Gap(new),
    }
}

/// Where the last occurrence of `part` in `text` ends, in linear time whatever the bytes: a
/// task's output is often the same line over and over.
fn last_end_of(part: &[u8], text: &[u8]) -> Option<usize> {
    // Knuth, Morris and Pratt, from the end.
    let part: Vec<u8> = part.iter().rev().copied().collect();
    let mut borders = vec![0_usize; part.len()];
    let mut matched = 0;
    for at in 1..part.len() {
        while matched > 0 && part[at] != part[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(part[at] == part[matched]);
        borders[at] = matched;
    }
    matched = 0;
    for (back, byte) in text.iter().rev().enumerate() {
        while matched > 0 && *byte != part[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(*byte == part[matched]);
        if matched == part.len() {
            return Some(text.len() - (back + 1 - part.len()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a growing text through a window and puts together what was seen.
    fn follow(text: &[u8], window: usize, growth: &[usize]) -> (Vec<u8>, bool) {
        let (mut seen, mut old, mut length, mut gap) = (Vec::new(), Vec::new(), 0, false);
        for step in growth {
            length = (length + step).min(text.len());
            let new = text[length.saturating_sub(window)..length].to_vec();
            match added(&old, &new, window) {
                New::Added(bytes) => seen.extend_from_slice(bytes),
                New::Gap(bytes) => {
                    gap = true;
                    seen.extend_from_slice(bytes);
                }
            }
            old = new;
        }
        (seen, gap)
    }

    #[test]
    fn a_follower_sees_every_byte_once() {
        let lines: String = (0..5000).map(|n| format!("step {n} loss 0.5\n")).collect();
        let text = lines.as_bytes();
        let growth = [0, 10, 500, 500, 0, 900, 1, 930, 700];
        let (seen, gap) = follow(text, 1000, &growth);
        assert!(!gap);
        assert_eq!(seen, &text[..growth.iter().sum()]);
    }

    #[test]
    fn equal_lines_are_counted_while_all_is_in_view() {
        let text = b"tick\n".repeat(100);
        let (seen, gap) = follow(&text, 1000, &[5, 5, 10, 200]);
        assert!(!gap);
        assert_eq!(seen, &text[..220]);
    }

    #[test]
    fn too_fast_a_growth_is_a_gap_and_not_a_lie() {
        let lines: String = (0..500).map(|n| format!("step {n}\n")).collect();
        let (_, gap) = follow(lines.as_bytes(), 100, &[50, 2000]);
        assert!(gap);
    }

    #[test]
    fn the_last_occurrence_is_found() {
        assert_eq!(last_end_of(b"ab", b"ab.ab."), Some(5));
        assert_eq!(last_end_of(b"aa", b"aaaa"), Some(4));
        assert_eq!(last_end_of(b"abab", b"xababab"), Some(7));
        assert_eq!(last_end_of(b"x", b""), None);
        assert_eq!(last_end_of(b"abc", b"abab"), None);
    }
}
