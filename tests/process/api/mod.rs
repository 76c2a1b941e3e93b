//! Operators' actions over the admin endpoint: with a token, a client certificate or the Unix socket, by hand and by the
//! commands with `--server`.
mod access;
mod actions;
mod commands;
mod peers;
mod resting;
mod site;
mod waits;
