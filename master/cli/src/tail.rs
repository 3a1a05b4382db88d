//! What is new in a text of which only ends are seen.

/// Fewer bytes in common than these may be chance.
const COMMON_MIN: usize = 32;

/// What follows one view of a growing text's end in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum New<'a> {
    /// These bytes were added.
    Added(&'a [u8]),
    /// So much was added that the old end is no longer in view: some bytes were never seen.
    Gap(&'a [u8]),
}

/// Finds what was added between two views of the end of a text that only grows. A view may begin
/// later in the text than the one before, never earlier. A text that repeats itself over the whole
/// of a view is taken as having grown by the least that explains it.
#[must_use]
pub(crate) fn added<'a>(old: &[u8], new: &'a [u8]) -> New<'a> {
    match common(old, new) {
        length if length < COMMON_MIN.min(old.len()) => New::Gap(new),
        length => New::Added(&new[length..]),
    }
}

/// Length of the longest end of `old` that `new` begins with, in linear time whatever the bytes: a
/// task's output is often the same line over and over.
fn common(old: &[u8], new: &[u8]) -> usize {
    // Knuth, Morris and Pratt.
    let part = &new[..new.len().min(old.len())];
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
    for byte in &old[old.len() - part.len()..] {
        while matched > 0 && (matched == part.len() || *byte != part[matched]) {
            matched = borders[matched - 1];
        }
        matched += usize::from(part.get(matched) == Some(byte));
    }
    matched
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
            match added(&old, &new) {
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

    /// As a node that keeps little shows its logs: the beginning goes, far within the window.
    #[test]
    fn a_beginning_that_goes_is_no_gap_and_nothing_is_seen_twice() {
        let lines: String = (0..500).map(|n| format!("step {n}\n")).collect();
        let text = lines.as_bytes();
        for (cut, end) in [(0, 300), (100, 300), (100, 400), (250, 420), (290, 300)] {
            let added = added(&text[40..300], &text[cut.max(40)..end]);
            let expected = if 300 - cut < COMMON_MIN {
                New::Gap(&text[cut..end])
            } else {
                New::Added(&text[300..end])
            };
            assert_eq!(added, expected, "{cut} {end}");
        }
        assert_eq!(added(b"", b"x"), New::Added(b"x"));
        assert_eq!(added(b"x", b""), New::Gap(b""));
    }

    #[test]
    fn the_longest_common_part_is_found() {
        assert_eq!(common(b"xxab", b"ab."), 2);
        assert_eq!(common(b"aaaa", b"aa"), 2);
        assert_eq!(common(b"abab", b"ababx"), 4);
        assert_eq!(common(b"xabab", b"abab"), 4);
        assert_eq!(common(b"", b"x"), 0);
        assert_eq!(common(b"abc", b"bd"), 0);
        assert_eq!(common(b"aab", b"abb"), 2);
    }
}
