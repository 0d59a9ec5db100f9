//! The published systems, each reproduced from its platform and its published baselines. No module knows another.
