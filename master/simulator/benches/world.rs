//! What whole runs cost.
fn main() {}
