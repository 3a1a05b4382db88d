//! What readers of people's files share: near names, whole numbers, and the line of a byte.

/// Single edits between two words: how far a typing error is from a known name.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The known word nearest to `given`, where it is near enough to be what was meant.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let limit = (given.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (distance(&given, word), word))
        .filter(|(far, word)| {
            let longer = given.len() > 2 && word.starts_with(&given);
            let shorter = word.len() > 2 && given.starts_with(*word);
            *far <= limit || longer || shorter
        })
        .min()
        .map(|(_, word)| word)
}

/// The whole number that a float is, below 2^53 where it cannot have been rounded.
#[must_use]
pub fn whole(value: f64) -> Option<u64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let whole = (0.0..EXACT_MAX).contains(&value) && value.fract().abs() <= 0.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole and in 0 to 2^53"
    )]
    whole.then_some(value as u64)
}

/// The line of a CSV record that a reader found at a byte of a text, from 1. The reader's own
/// count stands before empty lines and the second half of a line end.
#[must_use]
pub fn line_at(text: &str, byte: usize) -> usize {
    let (before, rest) = text.as_bytes().split_at(byte.min(text.len()));
    let skipped = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    1 + before.iter().chain(skipped).filter(|byte| **byte == b'\n').count()
}
