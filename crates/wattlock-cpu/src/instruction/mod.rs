//! Engine at the speed of CPU instructions.
