//! The parts of a pause: from the last step of one generation to the first of the next.
//!
//! In memory alone: a move that a start of the master falls into is not measured in parts.

use model::notes::BegunReport;
use model::view::PauseView;
use model::{Generation, JobId, Millis, Shape};

use crate::job::phase::{Goal, Next};
use crate::job::push_bounded;
use crate::step::Control;

/// Pauses whose parts are kept of each job.
const PAUSES_MAX: usize = 16;

/// The newest pauses of a job, oldest first, and the one under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    pub(crate) done: Vec<PauseView>,
    now: Option<Pause>,
    /// Of the newest generation that told.
    slowest: Option<BegunReport>,
}

/// Instants of the pause under way, as far as it has come.
#[derive(Clone, Debug, Default)]
struct Pause {
    from: Shape,
    saved: Option<Millis>,
    published: Option<Millis>,
    gone: Option<Millis>,
    ready: Option<Millis>,
}

impl Pauses {
    /// A checkpoint was ordered that the job is to move after.
    pub(crate) fn begin(&mut self, from: Shape) {
        self.now = Some(Pause { from, ..Pause::default() });
    }

    pub(crate) fn saved(&mut self, now: Millis) {
        if let Some(pause) = &mut self.now {
            pause.saved = Some(now);
        }
    }

    pub(crate) fn published(&mut self, now: Millis) {
        if let Some(pause) = &mut self.now {
            pause.published = Some(now);
        }
    }

    /// No process of the old generation is left.
    pub(crate) fn gone(&mut self, now: Millis) {
        if let Some(pause) = &mut self.now {
            pause.gone = Some(now);
        }
    }

    /// A process of the new generation has said hello; the last one counts.
    pub(crate) fn ready(&mut self, now: Millis) {
        if let Some(pause) = &mut self.now {
            pause.ready = Some(now);
        }
    }

    /// All workers have made a step since `last_step`.
    pub(crate) fn end(
        &mut self,
        generation: Generation,
        to: Shape,
        last_step: Millis,
        now: Millis,
    ) {
        let Some(pause) = self.now.take() else { return };
        let Pause { from, saved: Some(saved), published: Some(published), .. } = pause else {
            return;
        };
        let (Some(gone), Some(ready)) = (pause.gone, pause.ready) else { return };
        // Another node may tell later that its worker stands than rank 0 that it has saved.
        let saved = saved.max(last_step);
        let published = published.max(saved);
        let view = PauseView {
            generation,
            from,
            to,
            total_s: now.seconds_since(last_step),
            save_s: saved.seconds_since(last_step),
            publish_s: published.seconds_since(saved),
            stop_s: gone.seconds_since(published),
            launch_s: ready.seconds_since(gone),
            begin_s: now.seconds_since(ready),
            ..PauseView::default()
        };
        push_bounded(&mut self.done, view, PAUSES_MAX);
        self.fill();
    }

    /// The slowest worker is the one that the others wait for.
    fn begun(&mut self, report: BegunReport) {
        let known = self.slowest.as_ref();
        if known
            .is_none_or(|known| (known.generation, sum(known)) < (report.generation, sum(&report)))
        {
            self.slowest = Some(report);
            self.fill();
        }
    }

    fn fill(&mut self) {
        let Some(report) = &self.slowest else { return };
        if let Some(pause) = self.done.iter_mut().find(|one| one.generation == report.generation) {
            pause.script_s = Some(report.script_s);
            pause.connect_s = Some(report.connect_s);
            pause.restore_s = Some(report.restore_s);
            pause.step_s = Some(report.step_s);
        }
    }
}

fn sum(report: &BegunReport) -> f64 {
    report.script_s + report.connect_s + report.restore_s + report.step_s
}

impl Control {
    pub(crate) fn on_begun(&mut self, report: BegunReport) {
        let parts = [report.script_s, report.connect_s, report.restore_s, report.step_s];
        if parts.iter().any(|part| !(0.0..=1e6).contains(part)) {
            self.count("parts of a beginning that are no times");
            return;
        }
        if let Some(job) = self.jobs.get_mut(&report.job) {
            job.pauses.begun(report);
        }
    }

    /// A checkpoint is ordered.
    pub(crate) fn note_pausing(&mut self, id: JobId, goal: &Goal) {
        if let Goal::Leave(Next::Start(_)) = goal {
            let job = self.job_mut(id);
            let from = job.shape();
            job.pauses.begin(from);
        }
    }

    /// A task of a starting generation was heard of.
    pub(crate) fn note_ready(&mut self, id: JobId) {
        let now = self.now.mono;
        self.job_mut(id).pauses.ready(now);
    }
}
