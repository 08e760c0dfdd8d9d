//! The sandboxes of this server: what each one is, whether it runs, and who is connected to it.

mod changes;
mod create;
mod expiry;
mod fork;
mod index;
mod lines;
mod made;
mod notes;
mod sandbox;
mod spent;
mod start;
mod turn;

pub(crate) use changes::{Connected, Nearer};
pub(crate) use create::{Flights, Identity, NewSandbox};
pub(crate) use index::{Index, not_found};
pub(crate) use lines::{Closed, Line};
pub(crate) use made::{Made, RESERVED};
pub(crate) use sandbox::{Phase, Sandbox, now};
pub(crate) use spent::forget_old;
