//! Charts and how they are drawn.

use super::axis::{Axis, shown};
use super::svg::{Anchor, Svg};

/// A point of a line, with the half height of its error bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// 0 for none.
    pub error: f64,
}

impl Point {
    #[must_use]
    pub const fn new(x: f64, y: f64) -> Self {
        Self { x, y, error: 0.0 }
    }
}

/// A named line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: String,
    pub points: Vec<Point>,
    /// Level from each point to the next one, rather than sloping to it.
    pub steps: bool,
}

/// Lines over a common axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    pub title: String,
    /// What the axis counts, with its unit.
    pub x: String,
    pub y: String,
    pub lines: Vec<Line>,
    /// The axis reaches this at least.
    pub y_most: Option<f64>,
    pub log_x: bool,
}

/// Groups of bars, one bar of each series in each group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    pub title: String,
    pub y: String,
    pub groups: Vec<String>,
    /// By series: its name, and height and half height of the error bar in each group.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// One panel of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    Lines(Lines),
    Bars(Bars),
}

/// Okabe and Ito's colours without yellow, which is too light on white: told apart with any kind
/// of colour vision.
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];
/// So that lines are told apart in grey as well.
const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

const WIDTH: f64 = 860.0;
const PANEL: f64 = 300.0;
const TOP: f64 = 44.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 190.0;
/// Points of a line that are drawn at most: more than the panel has columns shows no more.
const POINTS_MAX: usize = 4000;

const INK: &str = "fill=\"#222222\"";
const GRID: &str = "stroke=\"#dddddd\"";
const FRAME: &str = "stroke=\"#444444\"";

/// The part of the page that a panel draws in.
#[derive(Clone, Copy, Debug)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn at(self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.width * x, self.top + self.height * (1.0 - y))
    }
}

/// The charts below each other on one page.
#[must_use]
pub fn document(title: &str, charts: &[Chart]) -> String {
    let panels = f64::from(u32::try_from(charts.len()).unwrap_or(u32::MAX));
    let described: Vec<String> = charts.iter().map(described).collect();
    let mut svg = Svg::begin(WIDTH, TOP + PANEL * panels, title, &described.join(" "));
    let bold = format!("font-size=\"16\" font-weight=\"bold\" {INK}");
    svg.text((LEFT, 26.0), Anchor::Start, &bold, title);
    let mut top = TOP;
    for chart in charts {
        let area =
            Area { left: LEFT, top: top + 26.0, width: WIDTH - LEFT - RIGHT, height: PANEL - 90.0 };
        match chart {
            Chart::Lines(lines) => draw_lines(&mut svg, area, lines),
            Chart::Bars(bars) => draw_bars(&mut svg, area, bars),
        }
        top += PANEL;
    }
    svg.end()
}

/// A sentence for those who cannot see the chart.
fn described(chart: &Chart) -> String {
    let (title, y, names): (&str, &str, Vec<&str>) = match chart {
        Chart::Lines(lines) => {
            (&lines.title, &lines.y, lines.lines.iter().map(|line| line.name.as_str()).collect())
        }
        Chart::Bars(bars) => {
            (&bars.title, &bars.y, bars.series.iter().map(|(name, _)| name.as_str()).collect())
        }
    };
    format!("{title}: {y}, of {}.", names.join(", "))
}

/// The frame with the vertical axis.
fn frame(svg: &mut Svg, area: Area, (title, unit): (&str, &str), axis: &Axis) {
    let bold = format!("font-size=\"13\" font-weight=\"bold\" {INK}");
    svg.text((area.left, area.top - 10.0), Anchor::Start, &bold, title);
    for mark in &axis.marks {
        let (x, y) = area.at(0.0, axis.place(*mark));
        svg.line((x, y), (x + area.width, y), GRID);
        svg.text((x - 6.0, y + 4.0), Anchor::End, INK, &shown(*mark));
    }
    let (x, y) = (18.0, area.top + area.height / 2.0);
    let turned = format!("transform=\"rotate(-90 {x:.1} {y:.1})\" {INK}");
    svg.text((x, y), Anchor::Middle, &turned, unit);
    svg.line(area.at(0.0, 0.0), area.at(0.0, 1.0), FRAME);
    svg.line(area.at(0.0, 0.0), area.at(1.0, 0.0), FRAME);
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

fn stroke(at: usize) -> String {
    let (colour, dash) = (colour(at), DASHES[at % DASHES.len()]);
    format!("stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"")
}

/// Where the name of a series stands beside the panel; none where there is no more room.
fn legend(area: Area, at: usize) -> Option<(f64, f64)> {
    let row = f64::from(u32::try_from(at).ok()?);
    let y = area.top + 8.0 + 18.0 * row;
    (y < area.top + area.height + 50.0).then_some((area.left + area.width + 14.0, y))
}

fn draw_lines(svg: &mut Svg, area: Area, chart: &Lines) {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let heights = points().flat_map(|point| [point.y, point.y + point.error]);
    let y = Axis::linear(heights, chart.y_most);
    let across = points().map(|point| point.x);
    let x = if chart.log_x { Axis::logarithmic(across) } else { Axis::linear(across, None) };
    frame(svg, area, (&chart.title, &chart.y), &y);
    for mark in &x.marks {
        let (left, bottom) = area.at(x.place(*mark), 0.0);
        svg.line((left, bottom), (left, bottom + 4.0), FRAME);
        svg.text((left, bottom + 18.0), Anchor::Middle, INK, &shown(*mark));
    }
    let (middle, bottom) = area.at(0.5, 0.0);
    svg.text((middle, bottom + 36.0), Anchor::Middle, INK, &chart.x);
    for (at, line) in chart.lines.iter().enumerate() {
        let stroke = stroke(at);
        let place = |point: &Point| area.at(x.place(point.x), y.place(point.y));
        let drawn = thinned(&line.points);
        let mut corners: Vec<(f64, f64)> = Vec::with_capacity(drawn.len());
        for point in &drawn {
            let (left, top) = place(point);
            if let Some((_, before)) = corners.last().copied().filter(|_| line.steps) {
                corners.push((left, before));
            }
            corners.push((left, top));
        }
        svg.path(&corners, &stroke, &line.name);
        for point in drawn.iter().filter(|point| point.error > 0.0) {
            let across = x.place(point.x);
            let low = area.at(across, y.place(point.y - point.error));
            let high = area.at(across, y.place(point.y + point.error));
            error_bar(svg, low, high);
        }
        if let Some((left, top)) = legend(area, at) {
            svg.line((left, top), (left + 26.0, top), &stroke);
            svg.text((left + 32.0, top + 4.0), Anchor::Start, INK, &line.name);
        }
    }
}

/// The points where something changes, evenly left out of where they are too many.
fn thinned(points: &[Point]) -> Vec<Point> {
    let finite = points.iter().filter(|point| point.x.is_finite() && point.y.is_finite());
    let points: Vec<Point> = finite.copied().collect();
    let every = points.len().div_ceil(POINTS_MAX).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.into_iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    kept.map(|(_, point)| point).collect()
}

fn error_bar(svg: &mut Svg, (x, low): (f64, f64), (_, high): (f64, f64)) {
    svg.line((x, low), (x, high), FRAME);
    svg.line((x - 3.0, low), (x + 3.0, low), FRAME);
    svg.line((x - 3.0, high), (x + 3.0, high), FRAME);
}

fn draw_bars(svg: &mut Svg, area: Area, chart: &Bars) {
    let heights = chart.series.iter().flat_map(|(_, bars)| bars);
    let y = Axis::linear(heights.map(|(height, error)| height + error), None);
    frame(svg, area, (&chart.title, &chart.y), &y);
    let count = |count: usize| f64::from(u32::try_from(count.max(1)).unwrap_or(u32::MAX));
    let group = 1.0 / count(chart.groups.len());
    let bar = group * 0.8 / count(chart.series.len());
    for (at, name) in chart.groups.iter().enumerate() {
        let (left, bottom) = area.at(group * (count(at + 1) - 0.5), 0.0);
        svg.text((left, bottom + 18.0), Anchor::Middle, INK, name);
    }
    for (at, (name, bars)) in chart.series.iter().enumerate() {
        let fill = format!("fill=\"{}\"", colour(at));
        for (place, (height, error)) in bars.iter().enumerate() {
            let x = group * (count(place + 1) - 1.0 + 0.1) + bar * (count(at + 1) - 1.0);
            let (left, top) = area.at(x, y.place(*height));
            let (_, bottom) = area.at(x, y.place(0.0));
            let width = (area.width * bar - 1.0).max(0.5);
            svg.rectangle((left, top), (width, (bottom - top).max(0.0)), &fill);
            if *error > 0.0 {
                let middle = left + width / 2.0;
                let (_, low) = area.at(x, y.place(height - error));
                let (_, high) = area.at(x, y.place(height + error));
                error_bar(svg, (middle, low), (middle, high));
            }
        }
        if let Some((left, top)) = legend(area, at) {
            svg.rectangle((left, top - 6.0), (26.0, 12.0), &fill);
            svg.text((left + 32.0, top + 4.0), Anchor::Start, INK, name);
        }
    }
}
