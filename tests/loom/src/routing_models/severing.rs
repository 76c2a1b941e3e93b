//! Severing against requests that arrive, last and ask for their token at any moment.

use super::*;

pub(super) const MODELS: &[Model] = models![
    "severing":
    severing_reaches_who_is_inside_and_nobody_else,
    severing_reaches_who_was_just_let_in,
];

impl Client {
    /// An exchange with the pod of epoch 1 that ends only when it is severed, or one with that of epoch 2, which is not.
    fn lasts(&self, number: u32) {
        let passed = self.permit(number);
        if passed.epoch == 1 {
            block_on(passed.permit.sever_token().cancelled());
            drop(passed.left());
        } else {
            assert!(!passed.permit.sever_token().is_cancelled(), "severed before it was there");
            passed.served(number);
        }
    }
}

/// A request that was in flight when its partition was severed has its token cancelled, whenever it asks for it. A
/// later request does not.
fn severing_reaches_who_is_inside_and_nobody_else() -> u64 {
    explore(Some(2), || {
        let mut fixture = Fixture::open(2);
        let workers = [0, 1].map(|index| fixture.worker(index, move |client| client.lasts(index as u32)));
        fixture.stop();
        fixture.table.sever(PARTITION);
        fixture.move_to(2);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        fixture.assert_at_rest(GateState::Open);
    })
}

/// A request that was admitted from the stash is severed as well, even if it has not noticed its admission yet.
fn severing_reaches_who_was_just_let_in() -> u64 {
    explore(Some(3), || {
        let mut fixture = Fixture::held(1, Duration::from_secs(3600));
        let worker = fixture.worker(0, |client| client.lasts(1));
        fixture.switch(1);
        fixture.stop();
        fixture.table.sever(PARTITION);
        fixture.move_to(2);
        worker.join().unwrap();
        fixture.assert_at_rest(GateState::Open);
    })
}
