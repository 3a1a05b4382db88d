//! Faults: small clusters in which everything goes wrong, by seed. What must hold is looked at
//! after each event; then all faults stop, and the cluster must heal.
//!
//! [`run`] plays one seed. The same seed gives the same story, so that whoever is told of a seed
//! that broke can watch it again.

mod draw;
mod happen;
mod schedule;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model::client::Change;
use model::{JobId, Millis};

use self::draw::Drawn;
use crate::world::World;

/// Time from the end of all faults within which everything must be over, in ms.
const HEAL_MS: u64 = 5 * 3_600_000;
/// Between two tries of an operator to get paused jobs going again.
const RESUME_MS: u64 = 60_000;
/// What is left to be cleaned up once the last job has ended: a silent node's time, and a grace.
const QUIET_MS: u64 = 200_000;
/// Events of one seed, after which it is taken to come to nothing.
const EVENTS_MAX: u64 = 3_000_000;

/// How seeds are played.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// A bug that is planted, to see that it is found.
    pub plant: Option<Plant>,
    /// How many of the last events are told of a seed that broke.
    pub told: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { plant: None, told: 20 }
    }
}

/// Bugs to plant in the hands and the agents of the simulated world: never in what ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Now and then an agent forgets an order to stop.
    LoseStop,
    /// Now and then an agent starts tasks that it has.
    StartTwice,
    /// Tasks outlive the contact with the master, though others may start in their place.
    OutliveContact,
    /// The end of one task is never told.
    LeakTask,
    /// The record of a job that was accepted is not written.
    LoseWrite,
    /// The manifest of a checkpoint is written without a look at its parts.
    PublishUnread,
    /// The computing times of some workers are told as another's.
    MisreportComputing,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LoseStop,
        Self::StartTwice,
        Self::OutliveContact,
        Self::LeakTask,
        Self::LoseWrite,
        Self::PublishUnread,
        Self::MisreportComputing,
    ];
}

/// What came of a seed that passed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    pub seed: u64,
    pub policy: &'static str,
    pub nodes: usize,
    pub jobs: usize,
    pub events: u64,
    /// Simulated time until the faults ended, and until all was healed, in s.
    pub faults_s: f64,
    pub healed_s: f64,
    /// Faults that happened, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often something that must hold was put to the test.
    pub tests: BTreeMap<&'static str, u64>,
    /// Jobs by how they ended.
    pub ends: BTreeMap<&'static str, u64>,
}

/// A seed that broke something.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken {
    pub seed: u64,
    pub policy: &'static str,
    /// When it was found, in s of simulated time.
    pub at_s: f64,
    /// What must not be, in words.
    pub what: String,
    /// The last events before, oldest first.
    pub last: Vec<String>,
}

impl Broken {
    /// The command that shows it again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!("optimus simulate --faults 1 --seed {}", self.seed)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} under {} broke at {:.3} s", self.seed, self.policy, self.at_s)?;
        writeln!(f, "  {}", self.what)?;
        for line in &self.last {
            writeln!(f, "    {line}")?;
        }
        write!(f, "  again: {}", self.replay())
    }
}

impl std::error::Error for Broken {}

/// Plays one seed.
///
/// # Errors
/// What broke, with the last events before.
pub fn run(seed: u64, settings: &Settings) -> Result<Story, Broken> {
    match play(seed, settings, 0) {
        Ok(story) => Ok(story),
        // Words cost time: they are made once it is known that they are wanted.
        Err(broken) => Err(play(seed, settings, settings.told).err().unwrap_or(broken)),
    }
}

fn play(seed: u64, settings: &Settings, tells: usize) -> Result<Story, Broken> {
    let drawn = draw::draw(seed);
    let policy = drawn.policy;
    let broken =
        |at_s: f64, what: String, last: Vec<String>| Broken { seed, policy, at_s, what, last };
    let world = drawn.world().map_err(|error| broken(0.0, error, Vec::new()))?;
    let mut teller = Teller {
        world: world.watched(settings.plant, tells),
        drawn: &drawn,
        story: Story {
            seed,
            policy,
            nodes: drawn.cluster.nodes.len(),
            jobs: drawn.workload.jobs.len(),
            ..Story::default()
        },
    };
    // What the master asserts of itself ends in a panic.
    let told = catch_unwind(AssertUnwindSafe(|| teller.tell()));
    let what = match told {
        Ok(Ok(())) => return Ok(teller.story),
        Ok(Err(what)) => what,
        Err(panic) => panic_words(panic.as_ref()),
    };
    let told = teller.world.watch().told.take().unwrap_or_default();
    Err(broken(teller.world.now_s(), what, told.into()))
}

fn panic_words(panic: &(dyn Any + Send)) -> String {
    let words = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", words.unwrap_or("without words"))
}

/// A seed as it is played.
#[derive(Debug)]
struct Teller<'a> {
    world: World,
    drawn: &'a Drawn,
    story: Story,
}

impl Teller<'_> {
    fn tell(&mut self) -> Result<(), String> {
        for (at, fault) in &self.drawn.schedule {
            self.until(Millis(*at))?;
            self.world.tell(|| format!("FAULT {fault:?}"));
            if let Some(kind) = happen::happen(&mut self.world, fault) {
                *self.story.faults.entry(kind).or_default() += 1;
            }
            self.look()?;
        }
        self.until(Millis(self.drawn.ends_ms))?;
        self.world.tell(|| "all faults end".to_owned());
        self.world.heal_all();
        self.story.faults_s = self.world.now_s();
        self.heal()?;
        self.story.healed_s = self.world.now_s();
        self.world.look_back();
        self.look()?;
        self.story.tests = std::mem::take(&mut self.world.watch().counts);
        for record in self.world.control().job_records() {
            *self.story.ends.entry(record.phase.state()).or_default() += 1;
        }
        Ok(())
    }

    /// Everything up to an instant happens, and is looked at.
    fn until(&mut self, limit: Millis) -> Result<(), String> {
        while self.world.next().is_some_and(|at| at <= limit) {
            self.step()?;
        }
        self.world.wait_until(limit);
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.world.step()?;
        self.story.events += 1;
        if self.story.events > EVENTS_MAX {
            return Err(format!("it comes to no end within {EVENTS_MAX} events"));
        }
        self.look()
    }

    fn look(&mut self) -> Result<(), String> {
        self.world.look();
        self.world.findings().first().map_or(Ok(()), |finding| Err(finding.clone()))
    }

    /// Nothing goes wrong any more, and an operator opens nodes and gets paused jobs going: all must come to its
    /// end, and leave nothing behind.
    fn heal(&mut self) -> Result<(), String> {
        let mut resume_at = self.world.now();
        let until = resume_at.plus(HEAL_MS);
        loop {
            if self.world.is_done() {
                break;
            }
            if self.world.now() >= until {
                let left = self.world.unhealed().join("; ");
                let hours = HEAL_MS / 3_600_000;
                return Err(format!("not healed after {hours} hours without a fault: {left}"));
            }
            if self.world.now() >= resume_at {
                for job in 1..=self.drawn.workload.jobs.len() {
                    let job = JobId(u64::try_from(job).unwrap_or(0));
                    self.world.ask(Change::Resume { job }, false);
                }
                for (node, _) in &self.drawn.cluster.nodes {
                    self.world.ask(Change::NodeUndrain { node: node.clone() }, false);
                }
                resume_at = self.world.now().plus(RESUME_MS);
            }
            let wait = self.world.next().map_or(resume_at, |at| at.min(resume_at));
            self.until(wait)?;
        }
        // Nodes that were silent are heard, what was held is let go.
        let until = self.world.now().plus(QUIET_MS);
        self.until(until)?;
        let left = self.world.unhealed();
        if left.is_empty() { Ok(()) } else { Err(format!("left behind: {}", left.join("; "))) }
    }
}
