//! Speed functions and work left, as `jobs.json` states them.

use model::Shape;
use scheduler::estimate::speed::{SpeedForm, SpeedModel};
use scheduler::snapshot::Remaining;

use super::json::{At, Faults, Fields, Json};

/// The form that a job's mode and batch make.
fn form(fields: &Fields<'_, '_>, faults: &mut Faults) -> Option<SpeedForm> {
    let at = fields.at;
    let mode = fields.need("mode", faults).and_then(|json| faults.text(json, &at.field("mode")));
    let global = batch(fields, "global_batch", faults);
    let worker = batch(fields, "worker_batch", faults);
    let (mode, global, worker) = (mode?, global?, worker?);
    match (mode, global, worker) {
        ("async", _, _) => Some(SpeedForm::Async),
        ("sync", Some(batch), None) => Some(SpeedForm::SyncGlobal { batch }),
        ("sync", None, Some(batch)) => Some(SpeedForm::SyncPerWorker { batch }),
        ("sync", None, None) => {
            let remedy = "a sync job states exactly one of global_batch and worker_batch";
            faults.add(&at.field("global_batch"), "is missing", remedy);
            None
        }
        ("sync", Some(_), Some(_)) => {
            let remedy = "a sync job states exactly one of the two";
            faults.add(&at.field("worker_batch"), "stands beside global_batch", remedy);
            None
        }
        (other, _, _) => {
            let other: String = other.chars().take(80).collect();
            faults.add(&at.field("mode"), format!("is {other:?}"), "write sync or async");
            None
        }
    }
}

/// The batch where it is stated; none at all where it is wrong.
fn batch(fields: &Fields<'_, '_>, name: &str, faults: &mut Faults) -> Option<Option<u32>> {
    let Some(json) = fields.find(name) else { return Some(None) };
    let batch = faults.whole(json, &fields.at.field(name), (1, u64::from(u32::MAX)))?;
    Some(u32::try_from(batch).ok())
}

/// A job's speed function, from its θ or a fitted model.
pub(super) fn of_job(fields: &Fields<'_, '_>, faults: &mut Faults) -> Option<SpeedModel> {
    let form = form(fields, faults);
    let at = fields.at;
    match (fields.find("theta"), fields.find("model")) {
        (Some(json), None) => {
            let theta = theta(json, &at.field("theta"), form, faults);
            let form = form?;
            Some(SpeedModel::of_theta(form, folded(form, theta?)))
        }
        (None, Some(json)) => model(json, &at.field("model"), form, faults),
        (None, None) => {
            faults.add(&at.field("theta"), "is missing", "give theta, or model from `fit speed`");
            None
        }
        (Some(_), Some(_)) => {
            faults.add(&at.field("model"), "stands beside theta", "give one of the two");
            None
        }
    }
}

/// θ1 of a fixed worker batch cannot be told from θ0·m, and the models keep it at 0: what a file
/// states goes where it counts.
fn folded(form: SpeedForm, mut theta: Vec<f64>) -> Vec<f64> {
    if let SpeedForm::SyncPerWorker { batch } = form {
        theta[0] += theta[1] / f64::from(batch.max(1));
        theta[1] = 0.0;
    }
    theta
}

/// Coefficients: as many as the form has, finite, not negative, not all zero.
fn theta(
    json: &Json,
    at: &At<'_>,
    form: Option<SpeedForm>,
    faults: &mut Faults,
) -> Option<Vec<f64>> {
    let Json::List(list) = json else {
        faults.list(json, at);
        return None;
    };
    let mut values = Vec::with_capacity(list.len().min(8));
    for (index, json) in list.iter().enumerate().take(8) {
        let wanted = "seconds, 0 or more";
        values.push(faults.number(json, &at.item(index), wanted, |value| value >= 0.0)?);
    }
    let form = form?;
    let count = form.coefficients();
    if list.len() != count {
        let mode = if form == SpeedForm::Async { "async" } else { "sync" };
        let remedy = format!("mode {mode} takes {count}");
        faults.add(at, format!("has {} values", list.len()), remedy);
        return None;
    }
    if values.iter().all(|value| *value <= 0.0) {
        faults.add(at, "is all zero", "a step takes time: give one value above 0");
        return None;
    }
    Some(values)
}

/// The object that `fit speed` prints.
fn model(
    json: &Json,
    at: &At<'_>,
    form: Option<SpeedForm>,
    faults: &mut Faults,
) -> Option<SpeedModel> {
    let remedy = "give the object that `optimus fit speed -o json` prints as model";
    faults.any_object(json, at)?;
    let given = json.value();
    let mut model: SpeedModel = match serde_json::from_value(given.clone()) {
        Ok(model) => model,
        Err(error) => {
            faults.add(at, format!("is not a speed model: {error}"), remedy);
            return None;
        }
    };
    let again = serde_json::to_value(&model).ok()?;
    if let Some(name) = unknown(&given, &again) {
        faults.add(at, format!("has the unknown field {name}"), remedy);
        return None;
    }
    let form = form?;
    if model.form != form {
        let problem = format!("was fitted for {}, the job is {}", words(model.form), words(form));
        faults.add(at, problem, "fit it for this mode and batch");
        return None;
    }
    let sound = model.theta.len() == form.coefficients()
        && model.theta.iter().all(|value| value.is_finite() && *value >= 0.0);
    if sound {
        model.theta = folded(form, model.theta);
    }
    if !sound || model.steps_per_s(Shape::new(1, 1)) <= 0.0 {
        faults.add(&at.field("theta"), "gives no speed", remedy);
        return None;
    }
    Some(model)
}

/// The first field that reading a model dropped.
fn unknown(given: &serde_json::Value, read: &serde_json::Value) -> Option<String> {
    let (Some(given), Some(read)) = (given.as_object(), read.as_object()) else { return None };
    given.iter().find_map(|(name, value)| match read.get(name) {
        None if value.is_null() => None,
        None => Some(name.chars().take(80).collect()),
        Some(inner) => unknown(value, inner),
    })
}

fn words(form: SpeedForm) -> String {
    match form {
        SpeedForm::Async => "async".to_owned(),
        SpeedForm::SyncGlobal { batch } => format!("sync with global_batch {batch}"),
        SpeedForm::SyncPerWorker { batch } => format!("sync with worker_batch {batch}"),
    }
}

/// Work left, in steps, or in samples where each worker keeps its own batch.
pub(super) fn remaining(fields: &Fields<'_, '_>, faults: &mut Faults) -> Option<Remaining> {
    let at = fields.at;
    let mut work = |name: &str| {
        let json = fields.find(name)?;
        Some(faults.number(json, &at.field(name), "a number, 0 or more", |value| value >= 0.0))
    };
    let (steps, samples) = (work("remaining_steps"), work("remaining_samples"));
    let stated = |name: &str| {
        let whole = |json: &Json| match json {
            Json::Whole(value) => Some(*value as f64),
            Json::Number(value) => Some(*value),
            Json::Null | Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => None,
        };
        fields.find(name).and_then(whole)
    };
    let (global, worker) = (stated("global_batch"), stated("worker_batch"));
    let sync = matches!(fields.find("mode"), Some(Json::Text(mode)) if mode == "sync");
    // Counted in samples by the form itself, else turned into steps by the batch of a step.
    let (value, divisor) = match (steps, samples) {
        (Some(_), Some(_)) => {
            let remedy = "give one of the two";
            faults.add(&at.field("remaining_samples"), "stands beside remaining_steps", remedy);
            return None;
        }
        (None, None) => {
            let name =
                if sync && worker.is_some() { "remaining_samples" } else { "remaining_steps" };
            faults.add(&at.field(name), "is missing", "give the work left");
            return None;
        }
        (Some(_), None) if sync && worker.is_some() && global.is_none() => {
            let remedy = "with worker_batch a step has no fixed work: give remaining_samples";
            faults.add(&at.field("remaining_steps"), "is not known to be enough", remedy);
            return None;
        }
        (Some(steps), None) => (steps?, 1.0),
        (None, Some(samples)) if sync && worker.is_some() => (samples?, 1.0),
        (None, Some(samples)) => {
            let batch = if sync { global } else { worker };
            let Some(batch) = batch.filter(|batch| *batch >= 1.0) else {
                let remedy = "give remaining_steps, or the batch of a step";
                faults.add(&at.field("remaining_samples"), "cannot be turned into steps", remedy);
                return None;
            };
            (samples?, batch)
        }
    };
    let (low, high) = range(fields, value, faults)?;
    Some(Remaining { value: value / divisor, low: low / divisor, high: high / divisor })
}

fn range(fields: &Fields<'_, '_>, value: f64, faults: &mut Faults) -> Option<(f64, f64)> {
    let Some(json) = fields.find("remaining_range") else { return Some((value, value)) };
    let at = fields.at.field("remaining_range");
    let list = faults.list(json, &at);
    if let Json::List(list) = json
        && list.len() != 2
    {
        faults.add(&at, format!("has {} values", list.len()), "give [low, high]");
        return None;
    }
    let mut end = |index: usize| {
        let wanted = "a number, 0 or more";
        faults.number(list.get(index)?, &at.item(index), wanted, |value| value >= 0.0)
    };
    let (low, high) = (end(0)?, end(1)?);
    if low > high {
        faults.add(&at, format!("ends at {high}, below {low}"), "give [low, high]");
        return None;
    }
    Some((low, high))
}
