//! What a process has to do with its host: files, sockets, certificates, its service, and the process after it.

pub(crate) mod any_address;
pub(crate) mod certificates;
pub(crate) mod files;
pub(crate) mod hot_restart;
pub mod last_words;
pub(crate) mod printable;
pub(crate) mod secret_files;
pub(crate) mod shared_list;
pub(crate) mod socket_path;
pub(crate) mod supervise;
pub(crate) mod surroundings;
pub(crate) mod users;
