//! Planning as a whole, against a simple, obviously correct store and participants ([`world`]).

mod cancels;
mod chaos;
mod cut_off;
mod external;
mod failed;
mod first_assignments;
mod guards;
mod in_force;
mod load;
mod operators;
mod phase_timeouts;
mod pins;
mod placement;
mod places;
mod refused_writes;
mod rolls;
mod rounds;
mod settings;
mod shares;
mod short_lives;
mod slow_warms;
mod sweeps;
mod unreadable;
mod world;
mod zones;
