//! Tells the data plane which pods requests without a key may go to.
//!
//! Not here: which pods these are ([`pods_without_key`]).

use segue_protocol::handoff::router::{OnStoreLoss, pods_without_key};
use segue_protocol::view::View;

use super::DataPlane;

/// Tells the data plane about the pods of this view.
pub(super) fn tell_ready_pods(plane: &dyn DataPlane, view: &View, policy: OnStoreLoss) {
    let pods = pods_without_key(view).into_iter();
    let pods: Vec<_> = pods.map(|(target, pod)| (target, pod, policy.serves_without_lease(pod.capabilities))).collect();
    plane.set_ready_pods(&pods);
}
