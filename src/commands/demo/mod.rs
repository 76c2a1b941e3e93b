//! `segue demo`: the main job with nothing installed. It is the command of the crate `segue-demo`, with an etcd and an admin
//! endpoint to choose.

mod etcd;
mod instruments;

use std::sync::Arc;

use segue_demo::command::DemoArgs;
use segue_demo::etcd::Etcd;
use segue_demo::instruments::Instruments;
use segue_demo::{Options, ProgressOutput};

use self::etcd::EtcdAt;
use self::instruments::AdminInstruments;
use super::CommandFailure;
use super::output::remark;

pub(super) fn demo(args: &DemoArgs) -> Result<(), CommandFailure> {
    let connect = |url: &String| -> anyhow::Result<Arc<dyn Etcd>> { Ok(Arc::new(EtcdAt::new(url)?)) };
    let serve = |address| -> Arc<dyn Instruments> { Arc::new(AdminInstruments::new(address)) };
    let etcd = args.etcd.as_ref().map(connect).transpose()?;
    let options = Options { etcd, instruments: args.admin.map(serve), ..args.options() };
    if let (Some(address), ProgressOutput::Stderr) = (args.admin, options.progress) {
        remark(format!("  live page: http://{address} (Ctrl-C ends the demo)"));
    }
    // The report has already said what went wrong.
    if args.play(options)? { Ok(()) } else { Err(CommandFailure::AlreadyReported) }
}
