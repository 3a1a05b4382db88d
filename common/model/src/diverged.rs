//! What is done with a job whose loss is no number any more.

use serde::{Deserialize, Serialize};

/// What a job asks for where its loss stays not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnNan {
    /// It trains on, and is shown.
    #[default]
    Alert,
    /// It ends as failed.
    Stop,
    /// It goes back to the newest checkpoint from before, a few times; then it ends as failed.
    RollBack,
}

impl OnNan {
    /// Words of the job file, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["alert", "stop", "roll_back"];

    /// Of a word of the job file; none where it is another.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let all = [Self::Alert, Self::Stop, Self::RollBack];
        all.into_iter().zip(Self::NAMES).find_map(|(this, own)| (own == name).then_some(this))
    }
}
