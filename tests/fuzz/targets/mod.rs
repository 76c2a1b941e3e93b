//! The fuzz targets, one for each way into Segue. Each has a function `run`, which panics on an input that shows a fault.

pub mod config;
pub mod http1_request;
pub mod http1_response;
pub mod http2_request;
pub mod partition;
pub mod stash;
pub mod store_values;
