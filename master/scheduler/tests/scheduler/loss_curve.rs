//! Curves of the user's own: read, refused with a place and a remedy, and fitted.

use proptest::prelude::*;
use scheduler::estimate::loss::{
    Curve, LossFit, LossPoint, Options, Unknown, curve, fit_with, forecast,
};

use crate::loss_world::{Chance, Noise, assert_close, is, losses};

fn at(text: &str, step: f64, constants: &[f64]) -> f64 {
    Curve::parse(text).unwrap().at(step, constants.iter().copied())
}

#[test]
fn formulas_mean_what_they_say() {
    for (text, constants, expected) in [
        ("a/(k+b)+c", &[6.0, 1.0, 0.5][..], 2.5),
        ("a - k - 1", &[9.0], 6.0),
        ("a / k / 2", &[8.0], 2.0),
        ("-k^2 + a", &[10.0], 6.0),
        ("a*2^3^k/512", &[1.0], 1.0),
        ("k^-1*a", &[3.0], 1.5),
        ("exp(-a*k)", &[0.0], 1.0),
        ("a*exp(log(k))", &[1.5], 3.0),
        ("sqrt(a*k)", &[8.0], 4.0),
        (" ( a ) * + k ", &[2.0], 4.0),
        ("1e1*a + .5*k + 2.E-1", &[0.1], 2.2),
        ("e_1*k+E2", &[1.0, 1.0], 3.0),
    ] {
        let found = at(text, 2.0, constants);
        assert!((found - expected).abs() < 1e-12, "{text} gives {found}, not {expected}");
    }
    assert_eq!(Curve::parse("b*k+a+b").unwrap().names(), ["b", "a"]);
}

#[test]
fn a_wrong_formula_is_refused_with_its_place_and_a_remedy() {
    for (text, place, remedy) in [
        ("", "character 1", "complete"),
        ("a/(k+b", "character 7", "'(' of character 3 is not closed"),
        ("a/k)", "character 4", "remove it"),
        ("a*", "character 3", "complete"),
        ("2k+a", "character 2", "write 2*k"),
        ("a k", "character 3", "operator"),
        ("a**k", "character 2", "write ^"),
        ("a/k; b", "character 4", "';' is not known"),
        ("a/k + $", "character 7", "'$'"),
        ("sin(k)*a", "character 1", "exp, log and sqrt"),
        ("exp k*a", "character 5", "write exp(...)"),
        ("1.2.3*k*a", "character 1", "no number"),
        ("1e999*k*a", "character 1", "no number"),
        ("a+b+c+d+e+f+g+h+i+k", "character 17", "at most 8"),
        ("1/k", "", "no free constant"),
        ("a+1", "", "use k"),
        ("a/k é", "character 5", "not known"),
    ] {
        let error = Curve::parse(text).unwrap_err();
        assert!(error.contains(place) && error.contains(remedy), "{text}: {error}");
    }
    let long = format!("a*k{}", "+1".repeat(200));
    assert!(Curve::parse(&long).unwrap_err().contains("shorten"));
    let deep = format!("{}a*k{}", "(".repeat(40), ")".repeat(40));
    assert!(Curve::parse(&deep).unwrap_err().contains("nested"));
    assert!(Curve::parse(&format!("{}a*k", "-".repeat(40))).unwrap_err().contains("nested"));
    assert!(Curve::parse(&format!("a^{}k", "k^".repeat(40))).unwrap_err().contains("nested"));
}

fn fitted(text: &str, points: &[LossPoint]) -> Result<LossFit, Unknown> {
    let curve = Curve::parse(text).unwrap();
    fit_with(points, &Options { curve: Some(&curve), ..Options::default() })
}

fn made(count: u32, apart: f64, loss: impl Fn(f64) -> f64) -> Vec<LossPoint> {
    (1..=count)
        .map(|row| f64::from(row) * apart)
        .map(|step| LossPoint { step, loss: loss(step) })
        .collect()
}

#[test]
fn a_users_curve_is_fitted_and_forecast() {
    for (text, apart, constants, exact) in [
        (
            "a/(k+b)+c",
            10.0,
            vec![120.0, 50.0, 0.3],
            (&|k: f64| 120.0 / (k + 50.0) + 0.3) as &dyn Fn(f64) -> f64,
        ),
        ("a*exp(-k/b)+c", 1000.0, vec![2.0, 9000.0, 0.7], &|k: f64| {
            2.0 * (-k / 9000.0).exp() + 0.7
        }),
        ("a*k^-b", 1.0, vec![3.0, 0.4], &|k: f64| 3.0 * k.powf(-0.4)),
        ("c + a/sqrt(k)", 1.0, vec![0.2, 5.0], &|k: f64| 0.2 + 5.0 / k.sqrt()),
    ] {
        let points = made(60, apart, exact);
        let found = fitted(text, &points).unwrap();
        let values: Vec<f64> = found.constants.iter().map(|(_, value)| *value).collect();
        assert_close(&values, &constants, 1e-5);
        assert!(found.beta.iter().all(|value| is(*value, 0.0)));
        assert!((found.loss_at(points[7].step) - points[7].loss).abs() < 1e-7);
        let ahead = forecast(&found, &points, None, 1e-4, 2).unwrap();
        let small = |end: f64| exact(end - apart) - exact(end) < 1e-4 * found.scale;
        let end = ahead.converged_at_step;
        assert!(small(end) && small(end - apart) && !small(end - 2.0 * apart), "{text}: {ahead:?}");
    }
}

#[test]
fn a_users_curve_reaches_what_equation_1_reaches() {
    let mut chance = Chance(21);
    let points = losses([0.05, 1.0, 0.3], 100, Noise::Share(0.02), &mut chance);
    let ours = fit_with(&points, &Options::default()).unwrap();
    let users = fitted("1/(b0*k+b1)+b2", &points).unwrap();
    assert!((users.rmse / ours.rmse - 1.0).abs() < 1e-6, "{users:?} and {ours:?}");
    let values: Vec<f64> = users.constants.iter().map(|(_, value)| *value).collect();
    assert_close(&values, &ours.beta, 1e-4);
    let [one, two] =
        [&ours, &users].map(|found| forecast(found, &points, None, 0.0005, 3).unwrap());
    assert!(is(one.converged_at_step, two.converged_at_step));
    // Ranges of two kinds, of one size.
    let ratio = (two.high - two.low) / (one.high - one.low);
    assert!((0.5..2.0).contains(&ratio), "{one:?} and {two:?}");
}

#[test]
fn a_curve_that_does_not_fall_is_refused() {
    let points = made(40, 1.0, |k| curve([0.1, 1.0, 0.2], k));
    let reason = |text: &str| fitted(text, &points).unwrap_err().reason;
    assert!(reason("a*k+b").contains("not decreasing"));
    assert!(reason("a*(k-30)^2+b").contains("not decreasing between step"));
    assert!(reason("log(-a-k)").contains("not finite"));
    assert!(reason("a*exp(k*1e9)").contains("not finite"));
    assert!(fitted("a/(k+b)+c", &points[..3]).unwrap_err().reason.contains("5 are needed"));
    let many = fitted("a/(k+b)+c+d/k^2+e/k^3+f/k^4", &points[..6]).unwrap_err();
    assert!(many.reason.contains("6 free constants"), "{many}");
    // A restart counts for a user's curve too.
    let curve = Curve::parse("a/(k+b)+c").unwrap();
    let options = Options { curve: Some(&curve), rate_steps: &[20.0], ..Options::default() };
    assert!(is(fit_with(&points, &options).unwrap().since_step, 20.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_text_makes_the_parser_panic(text in "[-+*/^() .0-9a-ek]{0,40}|.{0,30}") {
        if let Ok(curve) = Curve::parse(&text) {
            prop_assert!(!curve.names().is_empty() && curve.names().len() <= 8);
            for step in [0.0, 1.0, f64::MAX, f64::NAN] {
                let _ = curve.at(step, [1.0; 8]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_loss_makes_a_users_fit_panic(
        points in proptest::collection::vec(
            (prop_oneof![prop::num::f64::ANY, 0.0..10.0_f64], prop_oneof![prop::num::f64::ANY, 0.0..9.0_f64]),
            0..12,
        ),
        text in prop_oneof![
            Just("a/(k+b)+c"), Just("a*exp(-b*k)"), Just("a/k^b"), Just("a-log(b*k)"), Just("sqrt(a-k)"),
        ],
    ) {
        let points: Vec<LossPoint> =
            points.into_iter().map(|(step, loss)| LossPoint { step, loss }).collect();
        if let Ok(found) = fitted(text, &points) {
            prop_assert!(found.constants.iter().all(|(_, value)| value.is_finite() && *value >= 0.0));
            if let Ok(ahead) = forecast(&found, &points, None, 0.01, 3) {
                prop_assert!(0.0 <= ahead.low && ahead.high.is_finite());
            }
        }
    }
}
