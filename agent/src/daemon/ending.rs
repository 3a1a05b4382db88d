//! Ending tasks, and telling how they ended.

use model::agent::Exit;
use model::{Millis, OnDisconnect, Task};
use nix::sys::signal::Signal;

use super::isolated::{Killer, words_of};
use super::{Agent, Ended, NEVER, START_GRACE_MS};
use crate::ledger::{Key, State, Stopping};
use crate::procfs::{self, Census, Mark, Process};
use crate::task::process::signal;
use crate::task::stop::{Step, Stop};

/// Processes that outlive their task's first one get this long between TERM and KILL.
const LEFTOVER_GRACE_MS: u64 = 2000;
/// Ends that come together are looked at together. A last report lies in the socket by then.
const SETTLE_MS: u64 = 3;
const LOOK_EVERY_MS_MAX: u64 = 400;

/// One task with everything that ends it.
type Ending = (Key, Task);

impl Agent {
    /// Ends all tasks of a generation. A second call can only hasten it.
    pub(super) fn stop(
        &mut self,
        key: Key,
        reason: String,
        ordered: bool,
        grace_ms: u64,
        now: Millis,
    ) {
        let Some(held) = self.ledger.generations.get_mut(&key) else { return };
        match &mut held.stopping {
            Some(stopping) if stopping.grace_ms <= grace_ms => {}
            Some(stopping) => {
                stopping.grace_ms = grace_ms;
                self.changed(now);
            }
            None => {
                tracing::info!(%key, reason, grace_ms, "stopping");
                held.stopping = Some(Stopping { reason, ordered, grace_ms });
                self.changed(now);
            }
        }
        self.stop_again(key, now);
    }

    /// Applies a generation's stop to all of its tasks: also to one that was just started.
    pub(super) fn stop_again(&mut self, key: Key, now: Millis) {
        let held = self.ledger.generations.get(&key);
        let Some(stopping) = held.and_then(|held| held.stopping.as_ref()) else { return };
        let grace_ms = stopping.grace_ms;
        let Some(live) = self.live.get_mut(&key) else { return };
        live.cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        let mut fresh = false;
        for task in live.tasks.values_mut() {
            match &mut task.stop {
                Some(stop) => {
                    let before = stop.kill_at();
                    stop.hasten(now, grace_ms);
                    fresh |= stop.kill_at() != before;
                }
                None => {
                    task.stop = Some(Stop::new(now, grace_ms));
                    fresh = true;
                }
            }
        }
        if fresh {
            self.look_soon(now, 0);
        }
    }

    pub(super) fn on_ended(
        &mut self,
        mark: &Mark,
        code: Option<i32>,
        signal: Option<i32>,
        now: Millis,
    ) {
        let exit = Exit { code, signal, ..Exit::default() };
        self.first_process_ended(mark.key, mark.task, exit, now);
    }

    /// Its fork server has ended before it: from now on it is looked at now and then.
    pub(super) fn on_orphaned(&mut self, mark: &Mark, now: Millis) {
        let live = self.live.get_mut(&mark.key).and_then(|live| live.tasks.get_mut(&mark.task));
        if let Some(live) = live {
            live.adopted = true;
            self.look_soon(now, 0);
        }
    }

    fn first_process_ended(&mut self, key: Key, task: Task, exit: Exit, now: Millis) {
        let held = self.ledger.generations.get(&key);
        let by_itself = held.is_none_or(|held| held.stopping.is_none());
        let live = self.live.get_mut(&key).and_then(|live| live.tasks.get_mut(&task));
        if let Some(live) = live {
            live.ended.get_or_insert(Ended { exit, by_itself });
            self.look_soon(now, SETTLE_MS);
        }
    }

    /// Nobody tells of the end of a process that an earlier life of the agent started.
    pub(super) fn watch_adopted(&mut self, now: Millis) {
        let mut gone = Vec::new();
        for (&key, live) in &self.live {
            for (&task, live) in &live.tasks {
                if !live.adopted || live.ended.is_some() {
                    continue;
                }
                let held = self.ledger.generations.get(&key).and_then(|h| h.tasks.get(&task));
                if let Some(State::Running { pid, start_ticks, .. }) = held.map(|task| &task.state)
                    && !procfs::process(*pid)
                        .is_some_and(|p| p.is_alive() && p.start_ticks == *start_ticks)
                {
                    gone.push((key, task));
                }
            }
        }
        for (key, task) in gone {
            let reason = "ended; whoever started it was gone, and nobody can know its exit code";
            let reason = reason.to_owned();
            self.first_process_ended(key, task, Exit { reason, ..Exit::default() }, now);
        }
    }

    /// When tasks that must not outlive the contact with a master are to be ended.
    pub(super) fn silence_ends_at(&self) -> Millis {
        let concerned = self.ledger.generations.values().any(|held| {
            held.on_disconnect != OnDisconnect::Keep && held.stopping.is_none() && held.is_live()
        });
        if !concerned {
            return NEVER;
        }
        self.contact
            .plus(self.settings.disconnect_stop_ms)
            .max(self.started_at.plus(START_GRACE_MS))
    }

    pub(super) fn end_for_silence(&mut self, now: Millis) {
        let keys: Vec<Key> = self
            .ledger
            .generations
            .iter()
            .filter(|(_, held)| held.on_disconnect != OnDisconnect::Keep && held.stopping.is_none())
            .map(|(&key, _)| key)
            .collect();
        let silence_s = self.settings.disconnect_stop_ms / 1000;
        for key in keys {
            let reason = format!("no contact with a master for {silence_s} s");
            self.stop(key, reason, false, self.settings.stop_grace_ms, now);
        }
    }

    /// Looks at every task that is ending: signals what is to be signalled, and reports those of
    /// which no process is left.
    pub(super) fn look(&mut self, now: Millis) {
        self.watch_adopted(now);
        let endings = self.endings(|task| {
            task.ended.is_some() || task.stop.as_ref().is_some_and(|stop| stop.is_due(now))
        });
        if !endings.is_empty() {
            let uids: std::collections::BTreeSet<u32> =
                self.ledger.generations.values().map(|held| held.uid).collect();
            let mut census = Census::take(&self.node, &self.settings.state_dir, &uids);
            for &(key, task) in &endings {
                if let Some(group) = self.group_of(key, task) {
                    census.claim(&self.mark(key, task), group.pids());
                }
            }
            let mut over = Vec::new();
            for ending in endings {
                if self.look_at(ending, &census, now) {
                    over.push(ending);
                }
            }
            let any = !over.is_empty();
            for (key, task) in over {
                self.finish(key, task, now);
            }
            if any {
                self.obey(now);
            }
        }
        self.plan_next_look(now);
    }

    fn endings(&self, wanted: impl Fn(&super::LiveTask) -> bool) -> Vec<Ending> {
        let tasks = self
            .live
            .iter()
            .flat_map(|(&key, live)| live.tasks.iter().map(move |(&task, live)| (key, task, live)));
        tasks.filter(|(_, _, live)| wanted(live)).map(|(key, task, _)| (key, task)).collect()
    }

    fn plan_next_look(&mut self, now: Millis) {
        let every_ms = self.due.look_every_ms;
        let (mut next, mut pressing) = (NEVER, false);
        for live in self.live.values().flat_map(|live| live.tasks.values()) {
            let at = match (&live.ended, &live.stop) {
                (Some(_), _) => now.plus(every_ms),
                // Nobody tells of the end of an adopted one.
                (None, Some(stop)) if live.adopted || stop.is_due(now) => now.plus(every_ms),
                (None, Some(stop)) => stop.kill_at(),
                (None, None) => continue,
            };
            pressing |= at <= now.plus(every_ms);
            next = next.min(at);
        }
        self.due.look = next;
        if pressing {
            self.due.look_every_ms = (every_ms * 2).min(LOOK_EVERY_MS_MAX);
        }
    }

    /// True where no process of the task is left.
    fn look_at(&mut self, (key, task): Ending, census: &Census, now: Millis) -> bool {
        let mark = self.mark(key, task);
        let within = self.group_of(key, task);
        let Some(live) = self.live.get_mut(&key).and_then(|live| live.tasks.get_mut(&task)) else {
            return false;
        };
        let members = census.of_task(&mark, live.group);
        if let Some(group) = live.group
            && live.ended.is_some()
            && !members.iter().any(|process| process.group == group)
        {
            // From now on the number may become a stranger's.
            live.group = None;
        }
        if members.is_empty() && within.is_none() {
            // The end of a child is told right after it; its exit code comes with that.
            return live.ended.is_some();
        }
        if live.ended.is_some() {
            live.survivor = members.first().map(|process| process.pid);
        }
        let stop = live.stop.get_or_insert_with(|| Stop::new(now, LEFTOVER_GRACE_MS));
        let (step, group) = (stop.step(now), live.group);
        match step {
            Step::Wait => {}
            Step::Send(what) => {
                signal(group, &members, what);
                if let (Signal::SIGKILL, Some(within)) = (what, within) {
                    within.kill();
                }
            }
            Step::Unkillable => {
                signal(group, &members, Signal::SIGKILL);
                let members: Vec<Process> = members.into_iter().cloned().collect();
                self.stuck(key, task, &members);
            }
        }
        false
    }

    fn finish(&mut self, key: Key, task: Task, now: Millis) {
        let telemetry = self.live.get_mut(&key).and_then(|live| live.telemetry.as_mut());
        if let Some(outcome) = telemetry.map(|telemetry| telemetry.drain(now)) {
            self.heard(key, &outcome, now);
        }
        let cause = self.end_of_group(key, task);
        let exit = self.exit_of(key, task, cause);
        tracing::info!(%key, %task, code = exit.code, signal = exit.signal, reason = exit.reason, "ended");
        self.set_exited(key, task, exit, now);
    }

    /// How a task ended, in words.
    fn exit_of(&self, key: Key, task: Task, cause: Option<Killer>) -> Exit {
        let live = self.live.get(&key);
        let ended = live.and_then(|live| live.tasks.get(&task)).and_then(|task| task.ended.clone());
        let ended = ended.unwrap_or_else(|| Ended { exit: Exit::default(), by_itself: true });
        let error = live
            .and_then(|live| live.telemetry.as_ref())
            .and_then(|telemetry| telemetry.error_of(task))
            .map(str::to_owned);
        let stopping = self.ledger.generations.get(&key).and_then(|held| held.stopping.as_ref());
        let mut exit = ended.exit;
        // More than a script can know of its own end, or an order that came to what was dead.
        let error = cause.filter(|_| ended.by_itself).map(|cause| words_of(cause, task)).or(error);
        match stopping {
            Some(stopping) if !ended.by_itself => {
                exit.ordered = stopping.ordered;
                exit.reason = error.unwrap_or_else(|| stopping.reason.clone());
            }
            Some(_) | None => {
                exit.reason = error.unwrap_or_else(|| self.own_end(key, task, &exit));
            }
        }
        exit.reason = crate::telemetry::printable(&exit.reason, 2000);
        exit
    }

    /// True where this agent has sent no signal to a task.
    fn is_unasked(&self, key: Key, task: Task) -> bool {
        let live = self.live.get(&key).and_then(|live| live.tasks.get(&task));
        live.is_some_and(|live| live.ended.as_ref().is_some_and(|ended| ended.by_itself))
    }

    /// Words for an end that nobody ordered and no script explained.
    fn own_end(&self, key: Key, task: Task, exit: &Exit) -> String {
        let how = match (exit.code, exit.signal) {
            (Some(0), _) => return "exited with code 0".to_owned(),
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(number)) => {
                let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
                let outside = if number == Signal::SIGKILL as i32 && self.is_unasked(key, task) {
                    self.killed_from_outside()
                } else {
                    String::new()
                };
                format!("killed by signal {number} ({name}){outside}")
            }
            (None, None) => exit.reason.clone(),
        };
        match self.logs.last_lines(key, task) {
            Some(lines) => format!("{how}; last output:\n{lines}"),
            None => how,
        }
    }
}
