//! What the repository says of itself: its structure, and the lists of its documents.
#![allow(clippy::unwrap_used)]

mod documents;
mod imports;
mod names;
mod operating;
mod sabotage;
mod structure;
