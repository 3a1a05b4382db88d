//! Plots are well-formed, complete, and the same bytes each time.

use simulator::plot::{Bars, Chart, Line, Lines, Point, document, over_time};

use crate::reports::outcome;

/// Texts and attributes of a document whose tags nest; panics where it is not XML.
fn parse(svg: &str) -> (Vec<String>, usize) {
    let (mut open, mut texts, mut rest) = (Vec::new(), Vec::new(), svg);
    let mut elements = 0;
    while let Some(start) = rest.find('<') {
        let text = rest[..start].trim();
        entities(text);
        if !text.is_empty() {
            texts.push(text.to_owned());
        }
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "nesting");
            continue;
        }
        let closed = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let quotes = attributes.split('"');
        assert_eq!(quotes.clone().count() % 2, 1, "{tag}");
        for value in quotes.skip(1).step_by(2) {
            entities(value);
            assert!(!value.contains("NaN") && !value.contains("inf"), "{tag}");
        }
        elements += 1;
        if !closed {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    (texts, elements)
}

/// Each `&` begins a known entity, and no control character is there.
fn entities(text: &str) {
    for part in text.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;", "apos;"];
        assert!(known.iter().any(|entity| part.starts_with(entity)), "&{part}");
    }
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn runs_over_time_hold_every_series() {
    let runs = [outcome("optimus", 1), outcome("optimus", 2), outcome("<drf> & \"co\"\u{1}", 1)];
    let refs: Vec<_> = runs.iter().collect();
    let svg = over_time("A & B <script>", &refs);
    let (texts, elements) = parse(&svg);
    for part in [
        "A &amp; B &lt;script&gt;",
        "optimus, seed 1",
        "optimus, seed 2",
        "&lt;drf&gt; &amp; &quot;co&quot;?",
        "Running tasks",
        "Utilisation",
        "largest used share in %",
        "time since the first arrival in s",
    ] {
        assert!(texts.iter().any(|text| text == part), "{part} is not in {texts:?}");
    }
    assert!(elements > 60);
    assert_eq!(svg.matches("<path").count(), 9, "three panels of three runs");
    assert!(svg.contains("role=\"img\"") && svg.contains("<desc"));
    assert_eq!(svg, over_time("A & B <script>", &refs));
}

#[test]
fn bars_and_error_bars_are_drawn() {
    let bars = Bars {
        title: "JCT".to_owned(),
        y: "ratio".to_owned(),
        groups: vec!["paper".to_owned(), "ours".to_owned()],
        series: vec![
            ("drf".to_owned(), vec![(2.39, 0.0), (2.1, 0.2)]),
            ("tetris".to_owned(), vec![(1.74, 0.0), (1.6, 0.1)]),
        ],
    };
    let svg = document("Figure 11", &[Chart::Bars(bars)]);
    let (texts, _) = parse(&svg);
    assert!(texts.iter().any(|text| text == "tetris"), "{texts:?}");
    // The page, four bars and two keys of the legend.
    assert_eq!(svg.matches("<rect").count(), 1 + 4 + 2);
}

#[test]
fn hostile_numbers_and_nothing_at_all_are_drawn() {
    parse(&over_time("", &[]));
    parse(&document("empty", &[]));
    for log_x in [false, true] {
        let values = [0.0, -1.0, 1e308, -1e308, f64::NAN, f64::INFINITY, 1e-320];
        let points = values
            .iter()
            .flat_map(|x| values.iter().map(|y| Point { x: *x, y: *y, error: f64::INFINITY }));
        let line = Line { name: "x".to_owned(), points: points.collect(), steps: true };
        let lines = Lines { lines: vec![line, Line::default()], log_x, ..Lines::default() };
        let bars = Bars {
            groups: vec!["g".to_owned()],
            series: vec![("s".to_owned(), values.iter().map(|y| (*y, *y)).collect())],
            ..Bars::default()
        };
        parse(&document("hostile", &[Chart::Lines(lines), Chart::Bars(bars)]));
    }
    let many = (0..100_000_u32).map(|at| Point::new(f64::from(at), f64::from(at % 5)));
    let line = Line { name: "x".to_owned(), points: many.collect(), steps: true };
    let svg = document("many", &[Chart::Lines(Lines { lines: vec![line], ..Lines::default() })]);
    assert!(svg.len() < 300_000, "{} bytes", svg.len());
}
