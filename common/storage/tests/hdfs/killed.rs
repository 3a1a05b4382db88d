//! Writers that die by SIGKILL, and what they leave.
