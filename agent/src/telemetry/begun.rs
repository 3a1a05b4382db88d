//! What a worker says of its own beginning, once it has made a step.

use super::report::{Malformed, Number};

/// Longer beginnings are a clock's fault.
const PART_S_MAX: f64 = 86_400.0;

/// Seconds of the parts, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Begun {
    /// The script's own, until it asks for the store.
    pub(crate) script_s: f64,
    pub(crate) connect_s: f64,
    pub(crate) restore_s: f64,
    pub(crate) step_s: f64,
}

impl Begun {
    /// # Errors
    /// Where a part is missing or no usable time.
    pub(crate) fn read(parts: Option<&[Number; 4]>) -> Result<Self, Malformed> {
        let parts = parts.ok_or(Malformed)?;
        let [script_s, connect_s, restore_s, step_s] = parts;
        let usable = |part: &Number| {
            let part = part.value()?;
            (0.0..=PART_S_MAX).contains(&part).then_some(part).ok_or(Malformed)
        };
        Ok(Self {
            script_s: usable(script_s)?,
            connect_s: usable(connect_s)?,
            restore_s: usable(restore_s)?,
            step_s: usable(step_s)?,
        })
    }
}
