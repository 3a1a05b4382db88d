//! What came of a job: what was predicted beside what was measured.

use std::fmt::Write as _;
use std::time::Duration;

use harness::cluster::rows;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) id: String,
    pub(crate) name: String,
    phase: String,
    shape: (u64, u64),
    /// Each prediction of the time left, when it was made.
    predictions: Vec<(Duration, f64)>,
    first_step: Option<Duration>,
    /// Its profiling was over.
    measured: Option<Duration>,
    /// As last measured.
    steps_per_s: Value,
    ended: Option<Duration>,
    /// `show` at the end.
    last: Value,
}

/// How far the mean loss after a rescale may lie over that before, in standard deviations of the
/// last 50 steps.
const DEVIATIONS_MAX: f64 = 3.0;

impl Story {
    pub(crate) fn new(id: String, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            phase: String::new(),
            shape: (0, 0),
            predictions: Vec::new(),
            first_step: None,
            measured: None,
            steps_per_s: Value::Null,
            ended: None,
            last: Value::Null,
        }
    }

    pub(crate) fn see(&mut self, at: Duration, row: &Value) {
        row["phase"].as_str().unwrap_or_default().clone_into(&mut self.phase);
        let count = |field: &str| row["shape"][field].as_u64().unwrap_or(0);
        self.shape = (count("servers"), count("workers"));
        if row["step"].as_u64().is_some_and(|step| step > 0) {
            self.first_step.get_or_insert(at);
        }
        if self.first_step.is_some() && self.phase == "RUNNING" {
            self.measured.get_or_insert(at);
        }
        if row["steps_per_s"].is_number() {
            self.steps_per_s = row["steps_per_s"].clone();
        }
        if let Some(left) = row["remaining_s"].as_f64() {
            self.predictions.push((at, left));
        }
        if self.ended() {
            self.ended.get_or_insert(at);
        }
    }

    pub(crate) fn end(&mut self, shown: Value) {
        self.last = shown;
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase.as_str(), "COMPLETED" | "FAILED" | "CANCELLED")
    }

    /// Past its profiling, with so many workers.
    pub(crate) fn settled(&self, workers: u64) -> bool {
        self.phase == "RUNNING" && self.shape.1 >= workers
    }

    pub(crate) fn outcome(&self) -> String {
        let text = |field: &str| self.last[field].as_str().unwrap_or("?").to_owned();
        format!("{} ({})", text("phase"), text("reason"))
    }

    pub(crate) fn converged(&self) -> bool {
        let by_loss = self.last["reason"].as_str().is_some_and(|text| text.contains("converged"));
        self.last["phase"] == "COMPLETED" && by_loss
    }

    fn decisions(&self) -> impl Iterator<Item = &Value> {
        rows(&self.last, "decisions").iter().filter(|decision| decision["while_running"] == true)
    }

    /// Changes of shape that rounds made while the job trained, profiling apart.
    pub(crate) fn rescales_while_running(&self) -> usize {
        self.decisions().filter(|decision| decision["profiling"] == false).count()
    }

    /// Seconds that it stood still because rounds moved it, and seconds from the end of its
    /// profiling to its last step.
    pub(crate) fn lost(&self) -> (f64, f64) {
        let moves = self.decisions().filter(|decision| decision["profiling"] == false);
        let lost_s = moves.filter_map(|decision| decision["cost_s"].as_f64()).sum();
        let trained =
            self.ended.unwrap_or_default().saturating_sub(self.measured.unwrap_or_default());
        (lost_s, trained.as_secs_f64())
    }

    /// A rescale after which the loss did not continue where it was.
    pub(crate) fn loss_jump(&self) -> Option<String> {
        self.decisions().find_map(|decision| {
            let number = |field: &str| decision[field].as_f64();
            let (before, after) = (number("loss_before")?, number("loss_after")?);
            let deviation = number("loss_before_deviation")?;
            (after - before > DEVIATIONS_MAX * deviation).then(|| {
                format!(
                    "the loss jumped from {before:.4} ± {deviation:.4} to {after:.4} in the \
                     rescale to {}+{}",
                    decision["to"]["servers"], decision["to"]["workers"]
                )
            })
        })
    }

    /// The prediction nearest to the middle of the job's training, and what came.
    fn half_way(&self) -> Option<(f64, f64)> {
        let (start, end) = (self.first_step?, self.ended?);
        let middle = start + (end - start) / 2;
        let (at, left) =
            self.predictions.iter().min_by_key(|(at, _)| at.abs_diff(middle)).copied()?;
        Some((left, (end.saturating_sub(at)).as_secs_f64()))
    }

    pub(crate) fn summary(&self) -> String {
        let shown = &self.last;
        let mut text = format!(
            "\n{} ({}): {}, JCT {:.0} s, {} steps, {} epochs, final loss {:.4}\n",
            self.name,
            self.id,
            self.outcome(),
            shown["age_s"].as_f64().unwrap_or_default(),
            shown["step"],
            rows(shown, "epochs").len(),
            rows(shown, "epochs")
                .last()
                .and_then(|epoch| epoch["loss"].as_f64())
                .unwrap_or(f64::NAN),
        );
        if let Some((predicted, actual)) = self.half_way() {
            let _infallible = writeln!(
                text,
                "  time left, predicted half-way {predicted:.0} s, actual {actual:.0} s"
            );
        }
        let number = |value: &Value, digits: usize| {
            value.as_f64().map_or_else(|| "?".to_owned(), |found| format!("{found:.digits$}"))
        };
        let _infallible = writeln!(
            text,
            "  {} steps/s at its end; {} s without training in all",
            number(&self.steps_per_s, 2),
            number(&shown["paused_s"], 1),
        );
        for decision in self.decisions() {
            let _infallible = writeln!(
                text,
                "  {}+{} -> {}+{}{}: cost {} s, steps/s predicted {} measured {}, loss {} -> {}",
                decision["from"]["servers"],
                decision["from"]["workers"],
                decision["to"]["servers"],
                decision["to"]["workers"],
                if decision["profiling"] == true { " (profiling)" } else { "" },
                number(&decision["cost_s"], 1),
                number(&decision["predicted_after"], 2),
                number(&decision["measured_after"], 2),
                number(&decision["loss_before"], 4),
                number(&decision["loss_after"], 4),
            );
        }
        text.truncate(text.trim_end().len());
        text
    }
}
