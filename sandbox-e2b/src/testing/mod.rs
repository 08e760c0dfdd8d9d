//! A proxy that records what passes between a client and a server of the E2B API, and breaks it as a script says.
//!
//! Behind the feature `testing`; not covered by semver. The proxy stands in front of any HTTP/1.1 server, or answers
//! alone. What it is asked for is counted by [`Route`], so that a test can say "one create, no delete" whatever the
//! client says of itself. Bodies stream through; upgraded connections are passed on as bytes.
//!
//! # Examples
//! A create whose answer is lost after the server carried it out:
//! ```no_run
//! use sandhold_e2b::testing::{Fault, Proxy, Route, Rule};
//!
//! # async fn demo() -> std::io::Result<()> {
//! let proxy = Proxy::start("127.0.0.1:3000".parse().unwrap()).await?;
//! proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create).times(1));
//! // Point any client, or one of the official SDKs, at `proxy.url()`, then ask what it did:
//! assert_eq!(proxy.forwarded(Route::Create), 1);
//! # Ok(())
//! # }
//! ```

mod answer;
mod body;
mod exchange;
mod line;
mod proxy;
mod rule;

pub use answer::{Answer, RetryAfter};
pub use exchange::{Exchange, Route};
pub use proxy::Proxy;
pub use rule::{Fault, Rule};
