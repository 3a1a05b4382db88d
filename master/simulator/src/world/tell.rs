//! Events in words, for whoever looks at a run that went wrong.

use control::Event;
use model::agent::TaskState;

use super::{Due, World};

impl World {
    /// A line among the last events.
    pub(crate) fn tell(&mut self, words: impl FnOnce() -> String) {
        let now_s = self.now_s();
        if let Some(told) = &mut self.watch.told {
            if told.len() >= self.watch.told_max {
                told.pop_front();
            }
            told.push_back(format!("{now_s:>9.3} s  {}", words()));
        }
    }

    pub(super) fn watch_due(&mut self, due: &Due) {
        if self.watch.told.is_none() {
            return;
        }
        let Some(words) = self.words(due) else { return };
        // Heartbeats that say the same again would hide the rest.
        if let Due::Master { event, .. } = due
            && let control::Event::Heartbeat { node, .. } = event.as_ref()
        {
            let new = words.split(':').next_back().unwrap_or_default().to_owned();
            if self.watch.beats.insert(node.clone(), new.clone()).is_some_and(|old| old == new) {
                return;
            }
        }
        self.tell(|| words);
    }

    fn words(&self, due: &Due) -> Option<String> {
        let of = |node: usize| self.agents[node].id.to_string();
        Some(match due {
            Due::Arrive(job) => format!("job {} is submitted", self.workload.jobs[*job].id),
            Due::Master { life, event } => {
                let late = if *life == self.life { "" } else { ", too late for this master" };
                format!("master hears: {}{late}", event_words(event))
            }
            Due::Agent { node, session, desired } => {
                let sets: Vec<String> = desired
                    .generations
                    .iter()
                    .map(|wanted| {
                        format!("{} {} {:?}", wanted.job, wanted.generation, wanted.order)
                    })
                    .collect();
                let stale =
                    if self.agents[*node].session == Some(*session) { "" } else { " (old)" };
                format!("{} hears{stale} {}: [{}]", of(*node), desired.revision, sets.join(", "))
            }
            Due::Connect(node) => format!("{} tries to connect", of(*node)),
            Due::Beat { .. } | Due::Soon(_) | Due::Turn { .. } | Due::Silence(_) => return None,
            Due::Out { node, name } => format!("{} {} is out on {}", name.0, name.1, of(*node)),
            Due::Train { name, version } => {
                let training = self.trainings.get(name);
                if training.is_none_or(|training| training.version != *version) {
                    return None;
                }
                format!("{} {} has got somewhere", name.0, name.1)
            }
            Due::Declare { node, .. } => format!("{} is declared lost", of(*node)),
            Due::StartMaster => "the master starts".to_owned(),
            Due::StartAgent(node) => format!("the agent of {} starts", of(*node)),
        })
    }
}

/// An event in words.
fn event_words(event: &Event) -> String {
    match event {
        Event::Tick => "tick".to_owned(),
        Event::NodeConnected { node, session, introduction } => format!(
            "{node} connects ({session:?}, {}, boot {:?})",
            introduction.incarnation, introduction.boot_id.0
        ),
        Event::Heartbeat { node, session, heartbeat } => {
            let tasks: Vec<String> = heartbeat
                .tasks
                .iter()
                .map(|report| {
                    let state = match &report.state {
                        TaskState::Running { .. } => "",
                        TaskState::Exited(_) => " out",
                    };
                    format!("{}{} {}{state}", report.job, report.generation, report.task)
                })
                .collect();
            format!("{node} {session:?} beat {}: [{}]", heartbeat.sequence, tasks.join(", "))
        }
        Event::Rates { node, .. } => format!("{node} tells learning rates"),
        Event::Notes { node, .. } => format!("{node} tells notes"),
        Event::NodeNotes { node, .. } => format!("{node} tells notes of itself"),
        Event::NodeDisconnected { node, session } => format!("{node} lost {session:?}"),
        Event::Change { change, .. } => format!("{change:?}"),
        Event::RoundFinished { plan, .. } => format!("a plan: {}", plan_words(plan)),
        Event::Published { job, generation, checkpoint, outcome } => {
            let how = if outcome.is_ok() { "is published" } else { "could not be published" };
            format!("{checkpoint} of {job} {generation} {how}")
        }
    }
}

fn plan_words(plan: &scheduler::plan::Plan) -> String {
    let words =
        plan.decisions.iter().map(|decision| format!("{} {}", decision.job, decision.verb.name()));
    words.collect::<Vec<_>>().join(", ")
}
