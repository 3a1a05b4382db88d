//! How numbers, times and foreign text look to a person.

use jiff::Timestamp;
use model::UnixMs;
use unicode_width::UnicodeWidthChar;

pub(crate) use simulator::words::{distance, nearest};

/// Text of others made safe for one line of a terminal: control characters, line separators and
/// direction marks are written as escapes, everything else stays.
#[must_use]
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if is_unsafe(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// As [`escape`], but keeps line ends and tabs: for whole messages and task output on a terminal.
#[must_use]
pub(crate) fn escape_lines(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) && !matches!(c, '\n' | '\r' | '\t') {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Columns that text takes on a terminal.
#[must_use]
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The start of `text` in at most `room` columns, with `…` where something was cut.
#[must_use]
pub(crate) fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        let next = used + c.width().unwrap_or(0);
        if next + 1 > room {
            break;
        }
        used = next;
        kept.push(c);
    }
    kept.push('…');
    kept
}

/// Lines of at most `room` columns, broken at spaces where there are any.
#[must_use]
pub(crate) fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(20);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let mut word = word.to_owned();
        if !line.is_empty() && width(&line) + 1 + width(&word) > room {
            lines.push(std::mem::take(&mut line));
        }
        while width(&word) > room {
            let mut used = 0;
            let split = word
                .char_indices()
                .find(|(_, c)| {
                    used += c.width().unwrap_or(0);
                    used > room
                })
                .map_or(word.len(), |(at, _)| at);
            let rest = word.split_off(split.max(1));
            lines.push(word);
            word = rest;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    lines.push(line);
    lines
}

/// RFC 3339 in UTC with milliseconds; a time beyond the year 9999 is shown as its end.
#[must_use]
pub(crate) fn rfc3339(at: UnixMs) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    let stamp = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
    format!("{stamp:.3}")
}

/// `4m ago`; `now` within a second; `in 5s` where the clocks of two machines differ.
#[must_use]
pub(crate) fn ago(now: UnixMs, at: UnixMs) -> String {
    if now.0.abs_diff(at.0) < 1000 {
        return "now".to_owned();
    }
    if at.0 > now.0 {
        return format!("in {}", coarse((at.0 - now.0) / 1000));
    }
    format!("{} ago", coarse((now.0 - at.0) / 1000))
}

fn coarse(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A duration in s, in two units at most: `0.42s`, `12s`, `4m12s`, `3h20m`, `2d4h`.
#[must_use]
pub(crate) fn span(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "unknown".to_owned();
    }
    if seconds < 0.0 {
        return format!("-{}", span(-seconds));
    }
    if seconds < 1.0 {
        return format!("{}s", number(seconds));
    }
    if seconds < 9.95 {
        return format!("{}s", format!("{seconds:.1}").trim_end_matches(".0"));
    }
    let whole = whole(seconds);
    let (high, high_unit, low, low_unit) = match whole {
        0..60 => return format!("{whole}s"),
        60..3600 => (whole / 60, 'm', whole % 60, 's'),
        3600..86_400 => (whole / 3600, 'h', whole % 3600 / 60, 'm'),
        _ => (whole / 86_400, 'd', whole % 86_400 / 3600, 'h'),
    };
    if low == 0 {
        format!("{high}{high_unit}")
    } else {
        format!("{high}{high_unit}{low}{low_unit}")
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and a float past 2^64 becomes the largest number"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Three significant digits, without an exponent where that stays readable.
#[must_use]
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "not finite".to_owned();
    }
    if size == 0.0 {
        return "0".to_owned();
    }
    let text = match size {
        _ if !(1e-4..1e9).contains(&size) => return format!("{value:.2e}"),
        _ if size < 0.01 => format!("{value:.5}"),
        _ if size < 0.1 => format!("{value:.4}"),
        _ if size < 1.0 => format!("{value:.3}"),
        _ if size < 10.0 => format!("{value:.2}"),
        _ if size < 100.0 => format!("{value:.1}"),
        _ => return format!("{value:.0}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A share as `12%`.
#[must_use]
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", share * 100.0) } else { "unknown".to_owned() }
}

/// Bytes in binary units: `512MiB`, `1.5GiB`.
#[must_use]
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size {
            let tenths = u128::from(bytes) * 10 / u128::from(size);
            let (whole, tenth) = (tenths / 10, tenths % 10);
            return if tenth == 0 || whole >= 100 {
                format!("{whole}{unit}")
            } else {
                format!("{whole}.{tenth}{unit}")
            };
        }
    }
    format!("{bytes}B")
}

/// Thousandths of a CPU as a decimal: `1500` is `1.5`.
#[must_use]
pub(crate) fn cpus(milli: u64) -> String {
    let (whole, rest) = (milli / 1000, milli % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

/// `1 job`, `2 jobs`.
#[must_use]
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_move_the_cursor_or_the_columns() {
        assert_eq!(escape("a\u{1b}[31m\tb\nc\r\0"), "a\\u{1b}[31m\\tb\\nc\\r\\u{0}");
        assert_eq!(escape("café 漢字 🚂 \\ \""), "café 漢字 🚂 \\ \"");
        assert_eq!(escape("a\u{202e}b\u{2028}c\u{9b}d"), "a\\u{202e}b\\u{2028}c\\u{9b}d");
        assert_eq!(escape_lines("a\n\u{1b}b\t"), "a\n\\u{1b}b\t");
    }

    #[test]
    fn text_is_cut_to_columns_not_to_letters() {
        assert_eq!(width("漢字"), 4);
        assert_eq!(cut("漢字漢字", 5), "漢字…");
        assert_eq!(cut("漢字漢字", 4), "漢…");
        assert_eq!(cut("abc", 3), "abc");
        for room in 1..12 {
            assert!(width(&cut("a🚂b漢c👩‍🔬d", room)) <= room, "{room}");
        }
    }

    #[test]
    fn long_text_is_wrapped_at_spaces() {
        let lines = wrap("one two three four five six seven", 20);
        assert_eq!(lines, ["one two three four", "five six seven"]);
        let long = "漢".repeat(30);
        assert_eq!(wrap(&long, 20).iter().map(|line| width(line)).max(), Some(20));
        assert_eq!(wrap(&long, 20).concat(), long);
    }

    #[test]
    fn durations_take_two_units() {
        for (seconds, text) in [
            (0.0, "0s"),
            (0.42, "0.42s"),
            (4.234, "4.2s"),
            (5.0, "5s"),
            (9.96, "10s"),
            (59.7, "1m"),
            (252.0, "4m12s"),
            (12_000.0, "3h20m"),
            (187_200.0, "2d4h"),
            (-5.0, "-5s"),
            (f64::NAN, "unknown"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn times_are_relative_or_rfc_3339() {
        let now = UnixMs(1_700_000_240_000);
        assert_eq!(ago(now, UnixMs(1_700_000_000_000)), "4m ago");
        assert_eq!(ago(now, UnixMs(1_700_000_239_500)), "now");
        assert_eq!(ago(now, UnixMs(1_700_000_245_000)), "in 5s");
        assert_eq!(rfc3339(UnixMs(1_700_000_000_000)), "2023-11-14T22:13:20.000Z");
        assert_eq!(rfc3339(UnixMs(u64::MAX)), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (12_345.6, "12346"),
            (1.0, "1"),
            (0.1234, "0.123"),
            (0.00123, "0.00123"),
            (1.234e-7, "1.23e-7"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "not finite"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(bytes(512 << 20), "512MiB");
        assert_eq!(bytes(3 << 29), "1.5GiB");
        assert_eq!(bytes(1023), "1023B");
        assert_eq!(cpus(1500), "1.5");
        assert_eq!(cpus(1), "0.001");
        assert_eq!(cpus(16_000), "16");
    }

    #[test]
    fn a_typing_error_finds_its_word() {
        let known = ["epochs_max", "checkpoint", "checkpoint_interval", "command"];
        assert_eq!(nearest("epoch_max", known), Some("epochs_max"));
        assert_eq!(nearest("Checkpoint", known), Some("checkpoint"));
        assert_eq!(nearest("check", known), Some("checkpoint"));
        assert_eq!(nearest("comand", known), Some("command"));
        assert_eq!(nearest("colour", known), None);
    }
}
