//! Elements of an SVG, with every foreign text escaped.

use std::fmt::Write as _;

/// A document under way.
#[derive(Debug, Default)]
pub(super) struct Svg {
    text: String,
}

/// Text made safe within an element or an attribute; control characters that XML does not allow
/// become `?`.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('?'),
            c if c.is_control() => safe.push('?'),
            c => safe.push(c),
        }
    }
    safe
}

/// Where text stands by its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

impl Svg {
    /// Begins a document with what a screen reader tells of it.
    pub(super) fn begin(width: f64, height: f64, title: &str, description: &str) -> Self {
        let mut svg = Self::default();
        svg.add(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"title description\" \
             font-family=\"sans-serif\" font-size=\"12\">"
        ));
        svg.add(&format!("<title id=\"title\">{}</title>", escape(title)));
        svg.add(&format!("<desc id=\"description\">{}</desc>", escape(description)));
        svg.add(&format!("<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"));
        svg
    }

    /// Adds an element that is safe as it is.
    pub(super) fn add(&mut self, element: &str) {
        self.text.push_str(element);
        self.text.push('\n');
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let anchor = anchor.name();
        let text = escape(text);
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>"
        ));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"
        ));
    }

    pub(super) fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), style: &str) {
        let ((x, y), (width, height)) = (corner, size);
        self.add(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
        ));
    }

    /// A line through points, with a name that a pointer over it shows.
    pub(super) fn path(&mut self, points: &[(f64, f64)], style: &str, name: &str) {
        let mut data = String::with_capacity(points.len() * 12);
        for (at, (x, y)) in points.iter().enumerate() {
            let word = if at == 0 { 'M' } else { 'L' };
            // Writing to a string cannot fail.
            let _ = write!(data, "{word}{x:.1} {y:.1}");
        }
        let name = escape(name);
        self.add(&format!("<path d=\"{data}\" fill=\"none\" {style}><title>{name}</title></path>"));
    }

    /// The whole document.
    pub(super) fn end(mut self) -> String {
        self.add("</svg>");
        self.text
    }
}
