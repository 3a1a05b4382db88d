//! Round numbers along an axis.

/// An axis from `low` to `high` with marks at round numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub low: f64,
    pub high: f64,
    pub marks: Vec<f64>,
    log: bool,
}

/// Marks at most.
const MARKS: f64 = 7.0;

impl Axis {
    /// Holds every value; from 0 where none is below it.
    pub(super) fn linear(values: impl Iterator<Item = f64>, most: Option<f64>) -> Self {
        let (mut low, mut high) = (0.0_f64, most.unwrap_or(0.0));
        for value in values.filter(|value| value.is_finite()) {
            low = low.min(value);
            high = high.max(value);
        }
        // Past these a step between marks would overflow, or vanish beside the numbers.
        let (low, high) = (low.max(-1e300), high.min(1e300));
        let high = if high > low { high } else { low + 1.0 };
        let step = step((high - low) / MARKS);
        let first = libm::floor(low / step);
        let last = libm::ceil(high / step - 1e-9);
        let (low, high) = (first * step, last * step);
        let mut marks = Vec::new();
        let mut mark = first;
        while mark <= last + 0.5 && marks.len() < 20 {
            marks.push(mark * step);
            mark += 1.0;
        }
        Self { low, high, marks, log: false }
    }

    /// Powers of two between the least and the largest positive value.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if !(low.is_finite() && high > low) {
            return Self::linear([low, high].into_iter(), None);
        }
        let mut marks = Vec::new();
        let factor = if high / low < 200.0 { 2.0 } else { 10.0 };
        let mut mark = low;
        while mark <= high * 1.0001 && marks.len() < 20 {
            marks.push(mark);
            mark *= factor;
        }
        Self { low, high, marks, log: true }
    }

    /// Where a value stands, 0 at the low end and 1 at the high one.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            libm::log(value.max(self.low) / self.low) / libm::log(self.high / self.low)
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// The next of 1, 2, 2.5 and 5 times a power of ten.
fn step(least: f64) -> f64 {
    let power = libm::pow(10.0, libm::floor(libm::log10(least)));
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    steps.into_iter().map(|times| times * power).find(|step| *step >= least).unwrap_or(least)
}

/// A number as a mark of an axis: short, without an exponent where that stays readable.
pub(super) fn shown(value: f64) -> String {
    let size = value.abs();
    if size < 1e-12 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{value:.1e}");
    }
    let text = match size {
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_every_value() {
        for values in [
            vec![],
            vec![0.0],
            vec![3.0, 97.0],
            vec![-4.0, 1e-9],
            vec![1e308, -1e308, f64::NAN, f64::INFINITY],
            vec![1e-300],
        ] {
            let axis = Axis::linear(values.iter().copied(), None);
            assert!(axis.marks.len() > 1 && axis.marks.len() <= 20, "{values:?}: {axis:?}");
            assert!(axis.low < axis.high, "{values:?}");
            for value in values {
                assert!((0.0..=1.0).contains(&axis.place(value)), "{value}");
            }
        }
        let axis = Axis::linear([0.0, 12_345.0].into_iter(), None);
        assert_eq!(axis.marks.first().map(|mark| shown(*mark)).as_deref(), Some("0"));
        assert_eq!(axis.marks.last().map(|mark| shown(*mark)).as_deref(), Some("14000"));
        let axis = Axis::logarithmic([1000.0, 64_000.0].into_iter());
        assert_eq!(axis.marks.len(), 7);
        assert!((axis.place(8000.0) - 0.5).abs() < 1e-9);
        Axis::logarithmic([f64::NAN, -1.0, 0.0].into_iter());
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (2.5, "2.5"), (100.0, "100"), (0.25, "0.25"), (2e9, "2.0e9")]
        {
            assert_eq!(shown(value), text);
        }
    }
}
