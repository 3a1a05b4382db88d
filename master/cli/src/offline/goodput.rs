//! `goodput`, as `jobs.json` states it: for the policies pollux and horizon.

use std::sync::Arc;

use model::job::TASKS_MAX;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::goodput::{Elastic, Gradient, Limits, Throughput};

use super::json::{At, Faults, Fields, Json};

const FIELDS: [&str; 10] = [
    "throughput",
    "gradient",
    "initial_batch",
    "max_batch",
    "local_min",
    "local_max",
    "accumulation",
    "replicas_max",
    "restarts",
    "age_s",
];

const THROUGHPUT: [&str; 7] =
    ["alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma"];

/// Age of a job that states none: so long that a restart costs it next to nothing.
const AGE_S: f64 = 30.0 * 86_400.0;

/// A job's goodput; none where the job states none, or something is wrong with it.
pub(super) fn of_job(fields: &Fields<'_, '_>, faults: &mut Faults) -> Option<Arc<Elastic>> {
    let at = fields.at.field("goodput");
    let inner = faults.object(fields.find("goodput")?, &at, &FIELDS)?;
    let throughput = inner.find("throughput").map(|json| throughput(json, &at, faults));
    let gradient = inner.need("gradient", faults).and_then(|json| gradient(json, &at, faults));
    let mut count = |name: &str, low: u64, default: Option<u32>| {
        let Some(json) = inner.find(name) else {
            if default.is_none() {
                inner.need(name, faults);
            }
            return default;
        };
        let whole = faults.whole(json, &at.field(name), (low, u64::from(u32::MAX)))?;
        u32::try_from(whole).ok()
    };
    let (initial, batch_max) = (count("initial_batch", 1, None), count("max_batch", 1, None));
    let (local_min, local_max) = (count("local_min", 1, None), count("local_max", 1, None));
    let replicas_max = count("replicas_max", 1, Some(TASKS_MAX));
    let restarts = count("restarts", 0, Some(0));
    let age_s = inner.find("age_s").map_or(Some(AGE_S), |json| {
        faults.number(json, &at.field("age_s"), "seconds, 0 or more", |value| value >= 0.0)
    });
    let accumulation = match inner.find("accumulation") {
        None => Some(true),
        Some(Json::Bool(accumulation)) => Some(*accumulation),
        Some(_) => {
            let remedy = "write true or false without quotes";
            faults.add(&at.field("accumulation"), "is neither true nor false", remedy);
            None
        }
    };
    for (low, high) in [("initial_batch", "max_batch"), ("local_min", "local_max")] {
        let pair = if low == "local_min" { (local_min, local_max) } else { (initial, batch_max) };
        if let (Some(least), Some(most)) = pair
            && most < least
        {
            let problem = format!("is {most}, and {low} {least}");
            faults.add(&at.field(high), problem, "give a larger one");
        }
    }
    Some(Arc::new(Elastic {
        throughput: throughput.map_or(Some(None), |throughput| throughput.map(Some))?,
        gradient: gradient?,
        limits: Limits {
            initial: initial?,
            batch_max: batch_max?,
            local_min: local_min?,
            local_max: local_max?,
            accumulation: accumulation?,
        },
        replicas_max: replicas_max?,
        restarts: restarts?,
        age_s: age_s?,
    }))
}

fn throughput(json: &Json, at: &At<'_>, faults: &mut Faults) -> Option<Throughput> {
    let at = at.field("throughput");
    let inner = faults.object(json, &at, &THROUGHPUT)?;
    let mut number = |name: &str| {
        let json = inner.need(name, faults)?;
        if name == "gamma" {
            let fits = |value: f64| (1.0..=10.0).contains(&value);
            return faults.number(json, &at.field(name), "a number, 1 to 10", fits);
        }
        faults.number(json, &at.field(name), "seconds, 0 or more", |value| value >= 0.0)
    };
    let [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma] = THROUGHPUT.map(&mut number);
    Some(Throughput {
        alpha_c: alpha_c?,
        beta_c: beta_c?,
        alpha_n: alpha_n?,
        beta_n: beta_n?,
        alpha_r: alpha_r?,
        beta_r: beta_r?,
        gamma: gamma?,
    })
}

fn gradient(json: &Json, at: &At<'_>, faults: &mut Faults) -> Option<Gradient> {
    let at = at.field("gradient");
    let inner = faults.object(json, &at, &["sqr", "var"])?;
    let mut number = |name: &str| {
        let json = inner.need(name, faults)?;
        faults.number(json, &at.field(name), "a number, 0 or more", |value| value >= 0.0)
    };
    let (sqr, var) = (number("sqr"), number("var"));
    Some(Gradient { sqr: sqr?, var: var? })
}

/// The speed function of a job that states none: it tells nothing of any shape.
pub(super) fn unknown_speed() -> SpeedModel {
    let form = SpeedForm::SyncGlobal { batch: 1 };
    SpeedModel::of_theta(form, vec![0.0; form.coefficients()])
}
