//! The log of `segue run`: its format, and its level, which can be changed while the process runs.

use std::io::IsTerminal as _;

use segue_config::{Config, LogFormat, LogLevel};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, reload};

pub(super) type LevelHandle = reload::Handle<LevelFilter, tracing_subscriber::Registry>;

pub(super) fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

pub(super) fn start_logging(config: &Config) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(level_filter(config.log.level));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let layer = match config.log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json().boxed(),
    };
    // The filter is the innermost layer, so it also limits the logs of libraries.
    tracing_subscriber::registry().with(filter).with(layer).init();
    handle
}
