//! Placement and the coordinator's decisions: which partitions move where, when, and which moves are given up.
