//! Stragglers (section 5.2): a worker that is slow in some windows in a row is named, and put on
//! another node once, by a move to the same shape. Its node is to blame only where slowness
//! follows the node; else it is the worker's own, and stays where it is.

use model::{JobId, NodeId, NodeShare, Placement, Task};

use crate::job::Job;
use crate::job::epochs::ended;
use crate::job::live::Named;
use crate::job::phase::{Life, Move, Origin, Phase, Predicted};
use crate::record::SlowCase;
use crate::room::demand;
use crate::slow::Rule;
use crate::step::Control;

/// Twice the number of heartbeats that a window holds at least.
const HALF_BEATS: u64 = 5;
/// Between two replacements of one job: doubled with each, up to the time of a node's flag.
const SPACING_MS: u64 = 60_000;
/// Moves of a slow worker that may come to nothing in one generation.
const MOVES_FAILED_MAX: u32 = 3;

impl Control {
    /// How workers of a job are watched; none where nobody is.
    fn rule(&self, job: &Job) -> Option<Rule> {
        let life = job.life()?;
        let nodes = life.placement.0.iter().filter_map(|share| self.nodes.get(&share.node));
        let beat_ms = nodes.map(|node| node.record.beat_ms).max().unwrap_or(0);
        let settings = &self.settings;
        (settings.straggler_windows > 0).then(|| Rule {
            window_ms: settings.straggler_window_ms.max(beat_ms.saturating_mul(HALF_BEATS) / 2),
            windows: settings.straggler_windows,
            ratio: settings.straggler_ratio,
        })
    }

    /// True while a slow worker makes the job's speed another than its shape's own.
    pub(crate) fn is_spoiled(&self, job: &Job) -> bool {
        let Some(live) = job.live.as_ref() else { return false };
        // A job that cannot be measured without its slow worker is measured with it.
        let settled = job.is_profiling() && !live.named.is_empty() && job.slow.case.is_none();
        live.watch.has_slow() && !settled
    }

    /// Ends a window where it is over. Only steady training is watched: not saving, nor ending.
    pub(crate) fn watch_workers(&mut self, id: JobId) {
        let now = self.now.mono;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let done = ended(job).is_some();
        let runs = matches!(job.phase(), Phase::Running { .. });
        let (mode, workers) = (job.spec().mode, job.shape().workers);
        let Some(live) = job.live.as_mut() else { return };
        if !runs || done || live.finished() || !live.based {
            live.watch.pause();
            return;
        }
        let Some(rule) = self.rule(self.job(id)) else { return };
        let Some(live) = self.job_mut(id).live.as_mut() else { return };
        let arrivals = live.links.totals();
        if live.watch.close(now, (mode, workers), &rule, &arrivals) {
            self.on_window(id, &rule);
        }
    }

    fn on_window(&mut self, id: JobId, rule: &Rule) {
        self.expire_slow_nodes();
        let job = self.job_mut(id);
        if let Some(live) = job.live.as_mut()
            && live.watch.has_slow()
            && let Some(sampled) = live.sampled.take()
            && self.now.mono.since(sampled.at) <= 2 * rule.window_ms
        {
            let measured = (sampled.steps_per_s, sampled.seconds);
            self.take_back_speed(id, sampled.shape, measured);
        }
        let Some(life) = self.job(id).life() else { return };
        let life = life.clone();
        self.end_names(id, &life, rule);
        self.judge_case(id, &life, rule);
        self.name_slow(id, &life, rule);
        self.replace_slow(id, &life, rule);
    }

    /// The workers of a generation on a node, and how long each was slow and normal.
    fn streaks_on(&self, id: JobId, life: &Life, node: &NodeId) -> Vec<(u32, u32, u32)> {
        let Some(live) = self.job(id).live.as_ref() else { return Vec::new() };
        let here = life.placement.tasks_on(node).into_iter();
        here.filter(|task| task.role == model::Role::Worker)
            .map(|task| {
                let streak = live.watch.streak(task.index);
                (task.index, streak.slow, streak.normal)
            })
            .collect()
    }

    /// Workers that are at speed again, and nodes that are proved to be: most of those that the
    /// worker is compared with stand elsewhere.
    fn end_names(&mut self, id: JobId, life: &Life, rule: &Rule) {
        for share in &life.placement.0 {
            let streaks = self.streaks_on(id, life, &share.node);
            for (worker, _, normal) in &streaks {
                let Some(live) = self.job_mut(id).live.as_mut() else { return };
                if *normal >= rule.windows && live.named.remove(worker).is_some() {
                    let text = format!("worker{worker} on {} is at speed again", share.node);
                    self.tell(Some(id), Some(&share.node), "straggler", text);
                }
            }
            let all_normal = streaks.iter().all(|(_, _, normal)| *normal >= rule.windows);
            let elsewhere = 2 * share.workers <= life.shape().workers;
            if share.workers > 0 && all_normal && elsewhere {
                self.clear_node(&share.node, &format!("a worker of {id} is at speed there"));
            }
        }
    }

    /// How a worker does in its new place tells whose fault it was.
    fn judge_case(&mut self, id: JobId, life: &Life, rule: &Rule) {
        let Some(case) = self.job(id).slow.case.clone() else { return };
        if case.generation == life.generation {
            if self.job(id).phase().reserved().is_none() {
                // Its checkpoint failed, or its place was lost.
                self.close_case(id, None);
                if let Some(live) = self.job_mut(id).live.as_mut() {
                    live.moves_failed += 1;
                }
            }
            return;
        }
        let streaks = self.streaks_on(id, life, &case.to);
        if streaks.is_empty() {
            // A round moved it on.
            self.close_case(id, None);
        } else if streaks.iter().any(|(_, slow, _)| *slow >= rule.windows) {
            let words =
                format!("a worker was slow on {} and on {}: it is its own", case.from, case.to);
            self.clear_node(&case.from, &format!("a worker of {id} is as slow elsewhere"));
            self.tell(Some(id), Some(&case.to), "straggler", words.clone());
            self.close_case(id, Some(words));
        } else if streaks.iter().all(|(_, _, normal)| *normal >= rule.windows) {
            self.close_case(id, None);
            let words = format!(
                "worker{} of {id} was slow here and is at speed on {}",
                case.worker, case.to
            );
            self.blame_node(&case.from, words);
        }
    }

    fn close_case(&mut self, id: JobId, own: Option<String>) {
        let slow = &mut self.job_mut(id).slow;
        slow.case = None;
        if own.is_some() {
            slow.own = own;
        }
        self.out.slow_jobs.insert(id);
    }

    /// Names workers that were slow in enough windows.
    fn name_slow(&mut self, id: JobId, life: &Life, rule: &Rule) {
        for worker in 0..life.shape().workers {
            let Some(node) = life.placement.node_of(Task::worker(worker)).cloned() else { return };
            let Some(live) = self.job_mut(id).live.as_mut() else { return };
            let streak = live.watch.streak(worker);
            let Some(sign) = streak.sign.filter(|_| streak.slow >= rule.windows) else { continue };
            let words = format!("worker{worker} on {node} is slow: {sign}");
            let fate = String::new();
            let named = Named { words: words.clone(), fate };
            let known = live.named.contains_key(&worker);
            live.named.entry(worker).or_insert(named).words.clone_from(&words);
            if !known {
                let seconds = model::time::seconds(rule.window_ms);
                let text = format!("{words}, in {} windows of {seconds:.0} s", streak.slow);
                self.tell(Some(id), Some(&node), "straggler", text);
            }
            self.suspect_node(id, life, &node, rule);
        }
    }

    /// Where workers of two jobs are slow, the node is.
    fn suspect_node(&mut self, id: JobId, life: &Life, node: &NodeId, rule: &Rule) {
        let streaks = self.streaks_on(id, life, node);
        // Beside a worker that is not slow it is not the node's fault.
        if streaks.iter().any(|(_, slow, _)| *slow < rule.windows) {
            return;
        }
        let (now, until) = (self.now.mono, self.now.mono.plus(self.settings.slow_node_ms));
        let jobs = &self.jobs;
        let Some(known) = self.nodes.get_mut(node) else { return };
        known.slow_for.retain(|job, until| *until > now && jobs.contains_key(job));
        known.slow_for.insert(id, until);
        let others: Vec<String> =
            known.slow_for.keys().take(5).map(std::string::ToString::to_string).collect();
        if others.len() >= 2 {
            self.blame_node(node, format!("workers of {} are slow here", others.join(" and ")));
        }
    }

    /// Puts a slow worker, and those of its job beside it that are slow too, on another node.
    fn replace_slow(&mut self, id: JobId, life: &Life, rule: &Rule) {
        let Some(live) = self.job(id).live.as_ref() else { return };
        let slow = |worker: &u32| live.watch.streak(*worker).slow >= rule.windows;
        let Some(worker) = live.named.keys().copied().find(|worker| slow(worker)) else { return };
        let Some(node) = life.placement.node_of(Task::worker(worker)).cloned() else { return };
        let fate = match self.why_not_moved(id) {
            Some(why) => why,
            None => match self.other_place(id, life, &node, rule) {
                Some((to, placement)) => {
                    self.move_slow(id, life, (worker, node, to), placement);
                    return;
                }
                None => "not moved: no other node has room for it now".to_owned(),
            },
        };
        if let Some(live) = self.job_mut(id).live.as_mut() {
            for (_, named) in live.named.iter_mut().filter(|(_, named)| named.fate != fate) {
                named.fate.clone_from(&fate);
            }
        }
    }

    fn why_not_moved(&self, id: JobId) -> Option<String> {
        let now = self.now.mono;
        let job = self.job(id);
        let live = job.live.as_ref()?;
        if job.shape().workers < 2 {
            return Some("a lone worker is not moved".to_owned());
        }
        if let Some(own) = &job.slow.own {
            return Some(format!("not moved: {own}"));
        }
        if live.moves_failed >= MOVES_FAILED_MAX {
            return Some(format!("not moved: {MOVES_FAILED_MAX} tries came to nothing"));
        }
        let free = matches!(job.phase(), Phase::Running { pending: None, .. });
        if job.slow.case.is_some() || !free {
            return Some("to be moved once it stands still".to_owned());
        }
        if job.record.wish.is_some() || job.record.barred_rounds > 0 || now < live.save_not_before {
            return Some("to be moved once a checkpoint may be made".to_owned());
        }
        let since = job.slow_moved.map_or(u64::MAX, |moved| now.since(moved));
        let doublings = job.slow.moves.saturating_sub(1).min(16);
        let spacing_ms = (SPACING_MS << doublings).min(self.settings.slow_node_ms);
        if job.slow.moves > 0 && since < spacing_ms {
            return Some(format!("to be moved in {} s", (spacing_ms - since).div_ceil(1000)));
        }
        (!self.nodes_answer(id)).then(|| "to be moved once every node answers".to_owned())
    }

    /// The same shape with the slow workers of a node on another one that has room now.
    fn other_place(
        &self,
        id: JobId,
        life: &Life,
        from: &NodeId,
        rule: &Rule,
    ) -> Option<(NodeId, Placement)> {
        let streaks = self.streaks_on(id, life, from);
        let count = streaks.iter().filter(|(_, slow, _)| *slow >= rule.windows).count();
        let count = u32::try_from(count).ok()?;
        let end = self.use_in_the_end(|job| job == id);
        let mut best: Option<((bool, f64), NodeId, Placement)> = None;
        for (node, known) in &self.nodes {
            let takes = known.takes_nothing().is_none() && known.session.is_some();
            let open = takes && known.slow.is_none() && !known.rejects.are_fresh(self.now.mono);
            if node == from || !open {
                continue;
            }
            let placement = shifted(&life.placement, from, node, count);
            let share = placement.0.iter().find(|share| share.node == *node)?;
            let others = end.get(node).cloned().unwrap_or_default();
            let free = known.record.capacity.minus_saturating(&others);
            let fits = free.lacks(&demand(self.job(id), share)).is_none();
            if !fits || self.fits_now(id, &placement).is_err() {
                continue;
            }
            // First one without another worker of the job: there it is told apart.
            let shared = life.placement.on(node).workers > 0;
            let key = (shared, scheduler::place::cross_node_share(&placement));
            let better = best.as_ref().is_none_or(|(other, ..)| {
                key.0.cmp(&other.0).then(key.1.total_cmp(&other.1)).is_lt()
            });
            if better {
                best = Some((key, node.clone(), placement));
            }
        }
        best.map(|(_, node, placement)| (node, placement))
    }

    fn move_slow(
        &mut self,
        id: JobId,
        life: &Life,
        (worker, from, to): (u32, NodeId, NodeId),
        placement: Placement,
    ) {
        let now = self.now.mono;
        let quiet_ms = self.settings.slow_node_ms;
        let job = self.job_mut(id);
        let named = job.live.as_mut().and_then(|live| live.named.get_mut(&worker));
        let words = named.map_or_else(String::new, |named| {
            named.fate = format!("moves to {to}");
            named.words.clone()
        });
        let since = job.slow_moved.map_or(u64::MAX, |moved| now.since(moved));
        job.slow.moves = if since >= quiet_ms { 1 } else { job.slow.moves.saturating_add(1) };
        job.slow_moved = Some(now);
        let generation = life.generation;
        let case = SlowCase {
            worker,
            generation,
            from: from.clone(),
            to: to.clone(),
            words: words.clone(),
        };
        job.slow.case = Some(case);
        let profiling = job.is_profiling();
        let before = job.live.as_ref().and_then(|live| live.recent_steps_per_s);
        self.out.slow_jobs.insert(id);
        let reason = format!("worker{worker} moves from {from} to {to}: {words}");
        let text = format!("worker{worker} of {generation} moves from {from} to {to}");
        self.tell(Some(id), Some(&to), "straggler", text);
        let place = Move {
            placement,
            origin: Origin::Rescale,
            round: None,
            profiling,
            reason,
            predicted: Predicted { before, after: None, gain_s: None },
        };
        self.give_place(id, place);
    }

    /// What is known of a job's slow workers, in a line each.
    pub(crate) fn slow_words(&self, job: &Job) -> Vec<String> {
        let Some(live) = job.live.as_ref() else { return Vec::new() };
        let mut lines: Vec<String> = Vec::new();
        for named in live.named.values() {
            let fate =
                if named.fate.is_empty() { String::new() } else { format!(" ({})", named.fate) };
            lines.push(format!("{}{fate}", named.words));
        }
        if let Some(case) = &job.slow.case
            && case.generation != live.generation
        {
            let SlowCase { worker, from, to, .. } = case;
            lines.push(format!(
                "worker{worker} of {} was slow on {from} and is watched on {to} now",
                case.generation
            ));
        }
        lines
    }
}

/// A placement with `count` workers of one node on another.
fn shifted(placement: &Placement, from: &NodeId, to: &NodeId, count: u32) -> Placement {
    let mut shares = placement.0.clone();
    if let Some(share) = shares.iter_mut().find(|share| share.node == *from) {
        share.workers = share.workers.saturating_sub(count);
    }
    match shares.iter_mut().find(|share| share.node == *to) {
        Some(share) => share.workers = share.workers.saturating_add(count),
        None => shares.push(NodeShare { node: to.clone(), servers: 0, workers: count }),
    }
    shares.retain(|share| share.servers > 0 || share.workers > 0);
    shares.sort();
    Placement(shares)
}
