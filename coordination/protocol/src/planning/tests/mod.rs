//! Planning as a whole, against a store and participants that are slow and obviously right ([`world`]).

mod chaos;
mod flights;
mod guards;
mod placement;
mod rounds;
mod world;
