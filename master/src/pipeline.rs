//! Keeps commands in their order around the disk.
//!
//! A persist is handed to the store at once, also while an earlier one is under way, so that
//! persists of several steps share one sync. Every other command waits until all persists before
//! it are on stable storage. A persist that thereby overtakes an earlier message is as if that
//! message had been lost with the process, which the state machine bears anyway.

use std::collections::VecDeque;

use control::command::Command;
use control::record::Write;

#[derive(Debug)]
enum Step {
    /// Everything behind waits until this persist is durable.
    Durable(u64),
    Begin(Box<Command>),
}

#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    waiting: VecDeque<Step>,
    handed: u64,
    durable: u64,
}

impl Pipeline {
    /// Takes the commands of one step.
    ///
    /// # Returns
    /// The persists among them with their numbers, to be handed to the store in this order.
    pub(crate) fn push(&mut self, commands: Vec<Command>) -> Vec<(u64, Vec<Write>)> {
        let mut persists = Vec::new();
        for command in commands {
            match command {
                Command::Persist(writes) => {
                    self.handed += 1;
                    self.waiting.push_back(Step::Durable(self.handed));
                    persists.push((self.handed, writes));
                }
                other @ (Command::Reply { .. }
                | Command::SendDesired { .. }
                | Command::Disconnect { .. }
                | Command::Plan { .. }
                | Command::Publish(_)
                | Command::RemoveCheckpoint { .. }) => {
                    self.waiting.push_back(Step::Begin(Box::new(other)));
                }
            }
        }
        persists
    }

    /// Every persist up to this number is on stable storage.
    pub(crate) fn durable(&mut self, through: u64) {
        self.durable = self.durable.max(through);
    }

    /// The next command that may be begun.
    pub(crate) fn next(&mut self) -> Option<Command> {
        loop {
            match self.waiting.front()? {
                Step::Durable(number) if self.durable < *number => return None,
                Step::Durable(_) => {
                    self.waiting.pop_front();
                }
                Step::Begin(_) => match self.waiting.pop_front()? {
                    Step::Begin(command) => return Some(*command),
                    Step::Durable(_) => {}
                },
            }
        }
    }

    /// Commands that wait; bounds what may still be taken in.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use control::event::SessionId;

    use super::*;

    fn message(number: u64) -> Command {
        Command::Disconnect { session: SessionId(number), reason: String::new() }
    }

    fn begun(pipeline: &mut Pipeline) -> Vec<u64> {
        std::iter::from_fn(|| pipeline.next())
            .map(|command| {
                let Command::Disconnect { session, .. } = command else {
                    panic!("{command:?} was not pushed");
                };
                session.0
            })
            .collect()
    }

    #[test]
    fn nothing_is_begun_before_the_persists_in_front_of_it_are_durable() {
        let mut pipeline = Pipeline::default();
        let persist = || Command::Persist(vec![]);
        let handed = pipeline.push(vec![message(1), persist(), message(2), persist(), persist()]);
        assert_eq!(handed.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(pipeline.push(vec![message(3)]), []);
        assert_eq!(begun(&mut pipeline), [1]);
        pipeline.durable(1);
        assert_eq!(begun(&mut pipeline), [2]);
        pipeline.durable(2);
        assert_eq!(begun(&mut pipeline), [0; 0]);
        pipeline.durable(3);
        assert_eq!(begun(&mut pipeline), [3]);
        assert!(pipeline.is_empty());
        pipeline.push(vec![message(4)]);
        assert_eq!(begun(&mut pipeline), [4], "with nothing under way nothing waits");
    }
}
