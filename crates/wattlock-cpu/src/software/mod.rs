//! Portable constant-time engine.
