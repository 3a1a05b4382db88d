//! What an agent notes of its GPUs, turned into states and their consequences.

use model::nodes::{GpuHealth, GpuNote, GpuTrouble, NodeNotes};
use model::{JobId, NodeId};

use super::health::{self, Sight, Turn};
use super::xid::{Class, words};
use super::{HOLDER_MS, HOUR_MS, Holder};
use crate::job::push_bounded;
use crate::job::restart::Blame;
use crate::record::GpuKept;
use crate::step::Control;

/// Longest words about a GPU, in characters.
pub(super) const WORDS_MAX: usize = 500;
/// Bounds of what one agent may note.
const NOTED_MAX: usize = 256;
const HELD_MAX: usize = 4096;
const EVENTS_MAX: usize = 16;
const NAME_MAX: usize = 96;
/// Jobs remembered for what their programs did to GPUs.
const BLAMED_MAX: usize = 1024;

fn is_name(uuid: &str) -> bool {
    !uuid.is_empty() && uuid.len() <= NAME_MAX && uuid.bytes().all(|byte| byte.is_ascii_graphic())
}

fn shorten(words: &mut String) {
    if WORDS_MAX < words.len() {
        *words = words.chars().take(WORDS_MAX).collect();
    }
}

/// Cuts down what an agent notes of its GPUs to what is believed and kept.
pub(crate) fn clean(notes: &mut NodeNotes) {
    notes.gpus.retain(|gpu| is_name(&gpu.uuid));
    notes.gpus.truncate(NOTED_MAX);
    for gpu in &mut notes.gpus {
        if let Some(fault) = &mut gpu.fault {
            shorten(fault);
        }
        gpu.xids.truncate(EVENTS_MAX);
        gpu.strangers.truncate(EVENTS_MAX);
    }
    notes.held.truncate(HELD_MAX);
    for held in &mut notes.held {
        held.gpus.retain(|gpu| is_name(gpu));
        held.gpus.truncate(NOTED_MAX);
    }
    if let Some(
        GpuTrouble::Hangs(words)
        | GpuTrouble::Mismatch(words)
        | GpuTrouble::Unseen(words)
        | GpuTrouble::Other(words),
    ) = &mut notes.gpu_trouble
    {
        shorten(words);
    }
}

pub(super) fn trouble_words(trouble: &GpuTrouble) -> &str {
    match trouble {
        GpuTrouble::Hangs(words)
        | GpuTrouble::Mismatch(words)
        | GpuTrouble::Unseen(words)
        | GpuTrouble::Other(words) => words,
    }
}

impl Control {
    /// New notes of a node are there; `before` is what was wrong with all of its GPUs.
    pub(crate) fn on_gpu_notes(&mut self, id: &NodeId, before: Option<GpuTrouble>) {
        let Some(notes) = self.nodes.get(id).and_then(|node| node.notes.as_ref()) else { return };
        let trouble = notes.gpu_trouble.clone();
        if trouble != before {
            let text = match &trouble {
                Some(trouble) => format!("GPUs of {id}: {}", trouble_words(trouble)),
                None => format!("GPUs of {id} can be reached again"),
            };
            self.tell(None, Some(id), "gpu", text);
            self.ask_round("a node's capacity changed");
        }
        if let Some(session) = self.nodes.get(id).and_then(|node| node.session) {
            self.gpus.noted.insert(id.clone(), session);
        }
        self.note_holders(id);
        self.look_at_gpus(id);
    }

    /// Time has passed with a node's GPUs.
    pub(crate) fn on_gpu_beat(&mut self, id: &NodeId) {
        // Notes of an earlier life of the agent say nothing about this one.
        let session = self.nodes.get(id).and_then(|node| node.session);
        let noted = session.is_some() && self.gpus.noted.get(id).copied() == session;
        if noted && self.gpus.concerns(id) {
            self.look_at_gpus(id);
        }
    }

    fn note_holders(&mut self, id: &NodeId) {
        let now = self.now.mono;
        let Some(notes) = self.nodes.get(id).and_then(|node| node.notes.as_ref()) else { return };
        let holders = &mut self.gpus.holders;
        for (_, holder) in holders.iter_mut().filter(|((node, _), _)| node == id) {
            holder.left.get_or_insert(now);
        }
        holders.retain(|_, holder| holder.left.is_none_or(|left| now.since(left) <= HOLDER_MS));
        for held in &notes.held {
            let (job, generation, task) = (held.job, held.generation, held.task);
            for uuid in &held.gpus {
                let holder = Holder { job, generation, task, left: None };
                holders.insert((id.clone(), uuid.clone()), holder);
            }
        }
    }

    fn look_at_gpus(&mut self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let incarnation = node.record.incarnation;
        let Some(notes) = node.notes.clone() else { return };
        // What all of them have in common says nothing about any of them, but that they hang.
        let told = !matches!(
            notes.gpu_trouble,
            Some(GpuTrouble::Mismatch(_) | GpuTrouble::Unseen(_) | GpuTrouble::Other(_))
        );
        let held: Vec<&String> = notes.held.iter().flat_map(|held| &held.gpus).collect();
        for note in &notes.gpus {
            let mut sight = self.sight_of(id, note, incarnation);
            sight.held = held.contains(&&note.uuid);
            if told {
                self.judge_gpu(id, &note.uuid, &sight);
            }
        }
        let listed: Vec<String> = notes.gpus.iter().map(|note| note.uuid.clone()).collect();
        self.forget_instances(id, &listed);
        self.end_jobs_of_gpus(id, &notes);
    }

    /// What a note says that is new.
    fn sight_of(&mut self, id: &NodeId, note: &GpuNote, life: model::Incarnation) -> Sight {
        let seen = self.gpus.get(id, &note.uuid).map(|gpu| gpu.record.xid_seen);
        let seen = seen.unwrap_or_default();
        let mut xids = note.xids.clone();
        xids.retain(|event| seen < (life, event.number));
        if let Some(newest) = xids.iter().map(|event| event.number).max()
            && let Some(gpu) = self.gpu_mut(id, &note.uuid)
        {
            gpu.record.xid_seen = (life, newest);
            self.out.gpus.insert((id.clone(), note.uuid.clone()));
        }
        Sight {
            answers: note.answers,
            lost: note.lost,
            fault: note.fault.clone(),
            ecc_uncorrected: note.ecc_uncorrected,
            xids,
            held: false,
            probed: note.probed,
        }
    }

    fn judge_gpu(&mut self, id: &NodeId, uuid: &str, sight: &Sight) {
        let now = (self.now.mono, self.now.unix);
        let rules = self.settings.gpus.clone();
        for event in &sight.xids {
            // One that a program causes again and again is told once a minute.
            if self.keep_gpu_event(id, uuid, &words(event.xid))
                && rules.xids.class(event.xid) == Class::User
            {
                self.blame_program(id, uuid, event.xid);
            }
        }
        let fresh;
        let (record, quiet_since) = match self.gpus.get(id, uuid) {
            Some(gpu) => (&gpu.record, gpu.quiet_since),
            None => {
                fresh = crate::record::GpuRecord::new(id.clone(), uuid.to_owned());
                (&fresh, now.0)
            }
        };
        let signs = health::signs(record, sight, &rules);
        let kept = record.kept.clone();
        let turn = health::judge(record, sight, quiet_since, now, &rules);
        let turn = turn.or_else(|| {
            let GpuKept { health, cause, reason } = kept?;
            Some(Turn { health, cause: Some(cause), reason })
        });
        if 0 < signs
            && let Some(gpu) = self.gpu_mut(id, uuid)
        {
            gpu.quiet_since = now.0;
            for _ in 0..signs {
                push_bounded(&mut gpu.record.suspicions, now.1, EVENTS_MAX);
            }
            self.out.gpus.insert((id.clone(), uuid.to_owned()));
        }
        let Some(turn) = turn else { return };
        let was = self.gpus.health(id, uuid);
        if turn.is_judgement() && was == GpuHealth::Ok {
            if !self.may_take_out() {
                return self.keep_in_service(id, uuid, turn);
            }
            self.gpus.taken_out.push_back((now.0, id.clone(), uuid.to_owned()));
        }
        self.turn_gpu(id, uuid, turn, None);
    }

    /// So many are out already that the fault is rather elsewhere: an operator is to look.
    fn keep_in_service(&mut self, id: &NodeId, uuid: &str, turn: Turn) {
        let now = self.now.mono;
        let Some(cause) = turn.cause else { return };
        let words = format!("would be {}: {}", turn.health.name(), turn.reason);
        let Some(gpu) = self.gpu_mut(id, uuid) else { return };
        if gpu.record.kept.is_some() {
            return;
        }
        gpu.record.kept = Some(GpuKept { health: turn.health, cause, reason: turn.reason });
        self.keep_gpu_event(id, uuid, &format!("{words}; kept in service by gpus.out_share"));
        let told = self.gpus.limit_told.is_some_and(|at| now.since(at) < HOUR_MS);
        let more = if told { "" } else { ": too many were taken out within an hour; look at them" };
        self.gpus.limit_told = Some(now);
        let text = format!("{uuid} on {id} {words}; it is kept in service{more}");
        self.tell(None, Some(id), "alert", text);
    }

    /// A program that made a GPU complain is told so, and the GPU stays.
    fn blame_program(&mut self, id: &NodeId, uuid: &str, xid: u64) {
        let told = words(xid);
        let holder = self.holder_of(id, uuid);
        let whose = holder.map_or_else(
            || "no task of ours had it".to_owned(),
            |holder| format!("{} of {} had it", holder.task, holder.job),
        );
        let text = format!("{uuid} on {id} told {told}; {whose}, and the GPU stays");
        let job = holder.map(|holder| holder.job);
        self.tell(job, Some(id), "gpu", text);
        let Some(job) = job else { return };
        let now = self.now.mono;
        let blamed = &mut self.gpus.blamed;
        blamed.retain(|_, (at, _)| now.since(*at) <= HOLDER_MS);
        if blamed.len() < BLAMED_MAX {
            blamed.insert(job, (now, format!("{uuid} told {told}")));
        }
    }

    /// Jobs that compute on a GPU which is not there any more, or must not be used, go on from
    /// their checkpoint elsewhere.
    fn end_jobs_of_gpus(&mut self, id: &NodeId, notes: &NodeNotes) {
        let mut ends: Vec<(JobId, String)> = Vec::new();
        for held in &notes.held {
            let life = self.jobs.get(&held.job).and_then(crate::job::Job::life);
            let is_present = life.is_some_and(|life| {
                life.generation == held.generation && life.placement.node_of(held.task) == Some(id)
            });
            if !is_present {
                continue;
            }
            for uuid in &held.gpus {
                let note = notes.gpus.iter().find(|note| note.uuid == *uuid);
                let what = if note.is_some_and(|note| note.lost) {
                    "lost"
                } else if self.gpus.health(id, uuid) == GpuHealth::Bad {
                    "bad"
                } else {
                    continue;
                };
                let why = match what {
                    "lost" => note.and_then(|note| note.fault.clone()),
                    _ => self.gpus.get(id, uuid).map(|gpu| gpu.record.reason.clone()),
                };
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                ends.push((held.job, format!("gpu {what} {uuid} on {id}{why}")));
            }
        }
        for (job, cause) in ends {
            // The first ends the generation; the others find it stopping.
            self.fault(job, cause, Blame::Node);
        }
    }
}
