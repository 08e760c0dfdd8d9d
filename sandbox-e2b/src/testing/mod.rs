//! A proxy that records what passes between a client and a server of the E2B API, and breaks it as a script says.
//!
//! Behind the feature `testing`; not covered by semver. The proxy stands in front of any HTTP/1.1 server, or answers
//! alone. What it is asked for is counted by [`Route`], so that a test can say "one create, no delete" whatever the
//! client says of itself. Bodies stream through; upgraded connections are passed on as bytes.
//!
//! # Examples
//! Alone, as a server that first is busy and then does not know the sandbox:
//! ```
//! use sandhold_core::{SandboxId, SandboxProviderExt as _};
//! use sandhold_e2b::testing::{Answer, Fault, Proxy, RetryAfter, Route, Rule};
//! use sandhold_e2b::{E2bConfig, E2bProvider};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let proxy = Proxy::alone().await?;
//! let busy = Answer::error(503, "come again").with_retry_after(&RetryAfter::Seconds(0));
//! proxy.add(Rule::new(Fault::Answer(busy)).with_route(Route::Info).times(1));
//! proxy.add(Rule::new(Fault::Answer(Answer::error(404, "no such sandbox"))).with_route(Route::Info));
//!
//! let provider = E2bProvider::new(E2bConfig::new("e2b_key").with_api_url(proxy.url()))?;
//! assert!(provider.find_id(&SandboxId::new("i0123456789abcdefghij")).await?.is_none());
//! assert_eq!((proxy.asked(Route::Info), proxy.asked(Route::Create)), (2, 0));
//! # Ok(())
//! # }
//! ```
//! In front of a server, any client or official SDK is pointed at [`Proxy::url`]. This one carries every create out and
//! loses the first answer:
//! ```no_run
//! # use sandhold_e2b::testing::{Fault, Proxy, Route, Rule};
//! # async fn demo(server: std::net::SocketAddr) -> std::io::Result<()> {
//! let proxy = Proxy::start(server).await?;
//! proxy.add(Rule::new(Fault::LoseAnswer).with_route(Route::Create).times(1));
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
