//! Planning as a whole, against a simple, obviously correct store and participants ([`world`]).

mod chaos;
mod flights;
mod guards;
mod placement;
mod rounds;
mod world;
