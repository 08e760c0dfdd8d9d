//! Providers around providers: each implements [`crate::SandboxProvider`] by forwarding, and adds one thing.

mod forward;
mod limited;
mod timeout;
mod traced;

pub use limited::Limited;
pub use timeout::WithTimeout;
pub use traced::Traced;
