//! Sealed names, link targets and extended attributes.
