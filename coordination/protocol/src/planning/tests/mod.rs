//! Planning as a whole, against a simple, obviously correct store and participants ([`world`]).

mod chaos;
mod external;
mod failed;
mod guards;
mod in_force;
mod load;
mod operators;
mod phase_timeouts;
mod placement;
mod rolls;
mod rounds;
mod world;
