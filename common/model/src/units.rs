//! Durations and sizes as people write them: always with a unit, so that nobody guesses.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A duration in ms that reads from text such as `250ms`, `90s`, `2h30m` or `3d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DurationMs(pub u64);

/// Text that is not a duration or a size, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuantity(String);

impl fmt::Display for BadQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadQuantity {}

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Splits `2h30m` into (`2`, `h`), (`30`, `m`).
fn quantities(text: &str) -> Option<Vec<(&str, &str)>> {
    let mut rest = text;
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        if number.is_empty() {
            return None;
        }
        parts.push((number, unit.trim()));
        rest = tail;
    }
    (!parts.is_empty()).then_some(parts)
}

impl DurationMs {
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1000)
    }
}

impl std::str::FromStr for DurationMs {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if bare {
            return Err(BadQuantity(format!(
                "{text} has no unit: write {text}s, {text}m or {text}h"
            )));
        }
        let shown: String = text.chars().take(40).collect();
        let wrong = || BadQuantity(format!("{shown:?} is not a duration: write 90s, 2h30m or 3d"));
        let mut total: u64 = 0;
        for (number, unit) in quantities(text).ok_or_else(wrong)? {
            let (_, factor) =
                DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            let number: u64 = number.parse().map_err(|_| wrong())?;
            let part = number.checked_mul(*factor).ok_or_else(wrong)?;
            total = total.checked_add(part).ok_or_else(wrong)?;
        }
        Ok(Self(total))
    }
}

impl TryFrom<String> for DurationMs {
    type Error = BadQuantity;

    fn try_from(text: String) -> Result<Self, BadQuantity> {
        text.parse()
    }
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, factor) in DURATION_UNITS.iter().rev() {
            if rest >= *factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

impl From<DurationMs> for String {
    fn from(duration: DurationMs) -> Self {
        duration.to_string()
    }
}

/// Bytes from text such as `512MiB`, `1.5GB`, `300 MB` or `1024B`.
///
/// # Errors
/// Where the text has no number, no known unit, or is past 2^63 bytes.
pub fn parse_bytes(text: &str) -> Result<u64, BadQuantity> {
    let text = text.trim();
    let shown: String = text.chars().take(40).collect();
    let wrong = || BadQuantity(format!("{shown:?} is not a size: write 512MiB, 1.5GB or 1024B"));
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim() {
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut total = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let digits: u64 = fraction.parse().map_err(|_| wrong())?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
        total += u128::from(digits) * u128::from(factor) / scale;
    }
    u64::try_from(total).ok().filter(|bytes| *bytes < 1 << 63).ok_or_else(wrong)
}

/// CPUs in thousandths from a decimal number of cores.
///
/// # Errors
/// Where the number is negative, not finite or finer than 0.001.
pub fn cpus_milli(cores: f64) -> Result<u64, BadQuantity> {
    let milli = (cores * 1000.0).round();
    if !cores.is_finite() || !(0.0..=1e9).contains(&milli) || (milli - cores * 1000.0).abs() > 1e-6
    {
        return Err(BadQuantity(format!(
            "{cores} is not a number of CPUs: give a decimal of at most three places, such as 1.5"
        )));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in 0 to 1e9 and rounded"
    )]
    Ok(milli as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, ms) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("2h30m", 9_000_000),
            ("3d", 259_200_000),
            ("1m30s500ms", 90_500),
            ("0s", 0),
        ] {
            let duration: DurationMs = text.parse().unwrap();
            assert_eq!(duration, DurationMs(ms), "{text}");
            assert_eq!(duration.to_string().parse(), Ok(DurationMs(ms)), "{text}");
        }
        let bare = "600".parse::<DurationMs>().unwrap_err().to_string();
        assert!(bare.contains("600s"), "{bare}");
        for wrong in ["", "s", "-1s", "1.5h", "1x", "1h1", "99999999999999999999d", "1e3s"] {
            assert!(wrong.parse::<DurationMs>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn sizes_need_a_unit() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("1.5GB", 1_500_000_000),
            ("300 MB", 300_000_000),
            ("0B", 0),
            ("10TB", 10_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "12", "MB", "1..5GB", ".5GB", "-1GB", "1e3MB", "99999999999TB", "5mb"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn cpus_are_thousandths() {
        assert_eq!(cpus_milli(1.5), Ok(1500));
        assert_eq!(cpus_milli(0.001), Ok(1));
        for wrong in [-1.0, f64::NAN, f64::INFINITY, 0.0001, 1e12] {
            assert!(cpus_milli(wrong).is_err(), "{wrong} was taken");
        }
    }
}
