//! One suite for both stores: they behave alike, to the revision.
//!
//! Each case is a function over a [`Fixture`](fixture::Fixture) and a named test per store: `memory::…` under a paused
//! clock, and `etcd::…` against an etcd that the suite starts. Not here: behaviour of one store alone (`etcd_only.rs` and
//! the stores' own unit tests).

mod etcd_only;
mod fixture;
mod guards;
mod leader;
mod leases;
mod outages;
mod revisions;
mod watches;

/// `shared`: one etcd for all such cases of the process, told apart by a prefix. `own`: the case looks at the store's
/// revision as such, compacts it or stops it, and gets an etcd of its own.
macro_rules! conformance {
    ($($etcd:ident $module:ident::$case:ident,)*) => {
        mod memory {
            $(
                #[tokio::test(start_paused = true)]
                async fn $case() {
                    crate::store_conformance::$module::$case(crate::store_conformance::fixture::Fixture::memory()).await;
                }
            )*
        }
        mod etcd {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::store_conformance::$module::$case(crate::store_conformance::fixture::Fixture::$etcd()).await;
                }
            )*
        }
    };
}

conformance! {
    own    revisions::a_change_makes_one_revision_and_nothing_else_makes_any,
    shared revisions::a_put_keeps_the_create_revision_and_a_new_life_has_a_new_one,
    shared revisions::a_snapshot_holds_its_keys_in_order_and_no_others,
    shared revisions::a_large_keyspace_loads_in_one_snapshot,
    shared revisions::a_survey_counts_the_keys_and_tells_whether_any_was_put_since,

    shared guards::a_compare_means_the_same_to_both_stores,
    shared guards::keys_between_two_include_the_first_and_not_the_second,
    shared guards::a_key_that_was_put_without_its_lease_can_be_told_apart,
    shared guards::a_range_compare_tells_new_keys_from_old_ones,
    shared guards::the_branch_whose_guards_hold_first_is_the_only_one_carried_out,
    shared guards::a_key_written_twice_in_one_branch_is_refused,
    own    guards::a_question_is_accepted_and_changes_nothing,
    shared guards::what_etcd_has_no_room_for_is_refused,
    shared guards::transactions_that_go_together_are_each_carried_out_by_itself,
    shared guards::concurrent_increments_lose_no_update,

    shared watches::a_watch_from_the_past_replays_what_happened,
    shared watches::a_watch_from_the_future_waits_for_its_revision,
    shared watches::a_watch_sees_its_own_keys_only,
    shared watches::a_transaction_arrives_in_one_batch_in_its_own_order,
    shared watches::no_batch_ends_within_a_revision,
    shared watches::a_batch_is_at_the_revision_of_its_last_change,
    shared watches::a_write_between_snapshot_and_watch_is_seen,
    shared watches::a_slow_watch_loses_nothing,
    own    watches::a_watch_from_a_compacted_revision_fails_as_such,

    shared leases::an_expired_lease_takes_all_its_keys_in_one_batch,
    shared leases::a_lease_that_is_kept_alive_outlives_its_ttl,
    shared leases::a_lease_that_is_gone_cannot_be_kept_alive,
    shared leases::a_revoked_lease_takes_all_its_keys_in_one_batch,
    shared leases::a_put_with_a_dead_lease_writes_nothing,
    shared leases::a_key_goes_with_the_lease_of_its_last_put,

    own    outages::a_store_that_is_gone_is_unavailable_and_comes_back_whole,
    own    outages::a_store_that_hangs_is_unavailable_in_bounded_time,
}
