//! Faults reach the world.

use model::JobId;
use model::client::Change;

use super::schedule::Fault;
use crate::world::World;

/// Lets a fault happen; its kind where it is a fault, and not the end of one.
pub(super) fn happen(world: &mut World, fault: &Fault) -> Option<&'static str> {
    match fault {
        Fault::PowerOff(node) => world.power_off(*node),
        Fault::PowerOn { node, wiped } => {
            if *wiped {
                world.wipe(*node);
            }
            world.power_on(*node);
        }
        Fault::DeclareLost(node) => world.declare_lost(*node),
        Fault::Cut(node) => world.cut(*node),
        Fault::Heal(node) => world.heal(*node),
        Fault::Mute { node, towards_master } => world.mute(*node, *towards_master),
        Fault::Unmute(node) => world.unmute(*node),
        Fault::Break { node, loses, told_ms } => world.break_session(*node, *loses, *told_ms),
        Fault::StopAgent { node, down_ms } => world.stop_agent(*node, *down_ms),
        Fault::Delay { node, ms } => world.delay(*node, *ms),
        Fault::Repeat { node, count, later_ms } => world.repeat(*node, *count, *later_ms),
        Fault::Slow { node, speed } => world.slow(*node, *speed),
        Fault::Garble { node, garbage } => world.garble(*node, *garbage),
        Fault::Exit { job, task, code } => world.exit(JobId(*job), *task, *code),
        Fault::Hang(hangs) => world.hang(*hangs),
        Fault::IgnoreTerm(ms) => world.ignore_term(*ms),
        Fault::FailSaves(fails) => world.fail_saves(*fails),
        Fault::FailStore(fails) => world.fail_store(*fails),
        Fault::Halves(halves) => world.write_halves(*halves),
        Fault::Damage(job) => world.damage(|other| other == *job),
        Fault::HoldPlan(late_ms) => world.hold_plan(*late_ms),
        Fault::KillMaster(after_ms) => world.kill_master(*after_ms),
        Fault::MasterDiesAfter(commands) => world.master_dies_after(*commands),
        Fault::ShiftUnix(ms) => world.shift_unix(*ms),
        Fault::SubmitAgain(job) => world.submit_again(*job),
        Fault::Ask { change, dry_run } => world.ask(Change::clone(change), *dry_run),
    }
    kind(fault)
}

fn kind(fault: &Fault) -> Option<&'static str> {
    Some(match fault {
        Fault::PowerOff(_) => "node lost",
        Fault::PowerOn { wiped: true, .. } => "disk lost",
        Fault::DeclareLost(_) => "node declared lost",
        Fault::Cut(_) => "network cut",
        Fault::Mute { towards_master: true, .. } => "network cut towards the master",
        Fault::Mute { towards_master: false, .. } => "network cut from the master",
        Fault::Break { loses: true, .. } => "connection broken, messages lost",
        Fault::Break { loses: false, .. } => "connection broken, messages late",
        Fault::StopAgent { .. } => "agent restarted",
        Fault::Delay { ms, .. } if *ms >= 500 => "messages delayed",
        Fault::Repeat { .. } => "messages repeated",
        Fault::Slow { speed, .. } if (*speed - 1.0).abs() > 1e-9 => "node at another speed",
        Fault::Garble { .. } => "report garbled",
        Fault::Exit { .. } => "task died",
        Fault::Hang(true) => "starts hang",
        Fault::IgnoreTerm(ms) if *ms > 0 => "TERM ignored",
        Fault::FailSaves(true) => "checkpoints fail",
        Fault::FailStore(true) => "disk full at publishing",
        Fault::Halves(true) => "checkpoints half written",
        Fault::Damage(_) => "checkpoints damaged",
        Fault::HoldPlan(Some(_)) => "plan late",
        Fault::HoldPlan(None) => "plan lost",
        Fault::KillMaster(_) => "master killed",
        Fault::MasterDiesAfter(_) => "master dies between commands",
        Fault::ShiftUnix(_) => "wall clock jumps",
        Fault::SubmitAgain(_) => "job submitted again",
        Fault::Ask { change, .. } => asked(change),
        Fault::PowerOn { wiped: false, .. }
        | Fault::Heal(_)
        | Fault::Unmute(_)
        | Fault::Delay { .. }
        | Fault::Slow { .. }
        | Fault::Hang(false)
        | Fault::IgnoreTerm(_)
        | Fault::FailSaves(false)
        | Fault::FailStore(false)
        | Fault::Halves(false) => return None,
    })
}

const fn asked(change: &Change) -> &'static str {
    match change {
        Change::Submit { .. } | Change::SubmitWith { .. } | Change::SubmitWatched { .. } => {
            "submit"
        }
        Change::Cancel { .. } => "cancel",
        Change::Pause { .. } => "pause",
        Change::Resume { .. } => "resume",
        Change::Checkpoint { .. } => "checkpoint",
        Change::Resize { .. } => "resize",
        Change::Unpin { .. } => "unpin",
        Change::Update { .. } => "update",
        Change::NodeLost { .. } => "node lost by word",
        Change::NodeCordon { .. } => "node cordon",
        Change::NodeDrain { .. } => "node drain",
        Change::NodeUndrain { .. } => "node undrain",
        Change::Gpu { .. } => "node gpus",
    }
}
