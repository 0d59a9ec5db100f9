//! `wattlock fs cp`, `rm`, `check --repair`, `mount` and `umount`, by what is there afterwards.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
