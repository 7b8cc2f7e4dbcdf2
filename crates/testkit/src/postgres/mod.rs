//! Real PostgreSQL for tests and development: find it, start it, give every test a database, and break the wire.
//!
//! The parts, from the outside in:
//!
//! * [`find`] and [`find_all`] look for the supported majors and say where each came from.
//! * [`Server`] is one private server, from `initdb` to the removal of its data.
//! * [`TestServer`] is the server that a whole `cargo test` shares; its [`TestServer::env`] hands it to the tests.
//! * [`TestDatabase`] is what a test asks for; [`private_server`] is for tests that crash theirs.
//! * [`Proxy`] stands between client and server, counts what passes and cuts what it is told to cut.
//!
//! Everything here needs a Unix, because users, groups and signals are part of running a server.

mod binaries;
mod database;
mod folder;
mod major;
mod migrated;
mod npm;
mod postmaster;
mod proxy;
mod server;
mod template;
mod url;
mod user;

pub use binaries::{FindError, FindOptions, Installation, Source, find, find_all};
pub use database::{
    SERVER_URL_VARIABLE, SERVER_VARIABLE, TestDatabase, TestServer, private_server,
};
pub use major::{Major, UnsupportedMajor};
pub use migrated::PostgresUnderTest;
pub use npm::NpmError;
pub use proxy::{Cut, Direction, MessageCounts, Proxy};
pub use server::{Server, ServerError, ServerOptions, StopMode};
pub use user::UserError;
