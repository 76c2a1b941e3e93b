//! `segue conformance` as a process, against correct pods and pods that are broken on purpose. One program, because its
//! tests mostly wait for the patience of a check and so can wait side by side.
mod exchanges;
mod handoffs;
mod restarts;
