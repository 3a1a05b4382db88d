//! What a job will still need and how fast it would be: section 3 of the paper.

mod cholesky;
pub mod loss;
pub mod nnls;
pub mod profile;
mod recent;
pub mod remaining;
pub mod speed;
