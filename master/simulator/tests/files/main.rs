//! Files that people bring and take: traces in, reports and plots out.

#![expect(clippy::unwrap_used, reason = "a helper of tests may panic as tests do")]

mod built;
mod plots;
mod reports;
mod traces;
