//! Optimus on hosts that boot systemd, rolled out by ansible over ssh from nothing.

mod hosts;
