//! Which requests a fault is for.

use std::time::Duration;

use http::Method;
use sandhold_core::testing::Gate;

use super::{Answer, Route};

/// What happens to a request, or to its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: it passes, and later rules are not asked.
    Pass,
    /// It waits, then passes.
    Delay(Duration),
    /// The server carries it out; the answer waits.
    DelayAnswer(Duration),
    /// The connection is reset; the server never sees the request.
    ResetBefore,
    /// The server carries it out and answers; the connection is reset in place of the answer.
    LoseAnswer,
    /// The head of the answer and so many bytes of its body pass; then the connection is closed.
    Truncate(u64),
    /// This is the answer; the server never sees the request.
    Answer(Answer),
    /// The server carries it out; this is said in place of its answer.
    AnswerAfter(Answer),
    /// The server never sees it, and no answer comes.
    HangBefore,
    /// The server carries it out, and no answer comes.
    HangAfter,
    /// It waits at the gate before the server sees it.
    HoldBefore(Gate),
    /// The server carries it out, also when its client goes away; the answer waits at the gate.
    HoldAfter(Gate),
    /// The answer's `X-Next-Token` is the one that this rule saw first, again and again.
    RepeatedCursor,
}

/// A fault, and the requests that it is for; without a restriction it is for all.
///
/// The first rule that fits a request decides. A request counts for a rule when it fits, also while it is skipped.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(super) fault: Fault,
    route: Option<Route>,
    method: Option<Method>,
    path: Option<String>,
    skip: usize,
    times: Option<usize>,
    /// The first cursor that [`Fault::RepeatedCursor`] saw.
    pub(super) cursor: Option<http::HeaderValue>,
}

impl Rule {
    /// This fault for every request.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self { fault, route: None, method: None, path: None, skip: 0, times: None, cursor: None }
    }

    /// Only for requests of this route.
    #[must_use]
    pub fn with_route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// Only for requests of this method.
    #[must_use]
    pub fn with_method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Only for requests of this path, without its query; `*` stands for anything, also for nothing.
    #[must_use]
    pub fn with_path(mut self, pattern: impl Into<String>) -> Self {
        self.path = Some(pattern.into());
        self
    }

    /// Lets the first requests that fit pass on to the rules behind.
    #[must_use]
    pub fn skip(mut self, requests: usize) -> Self {
        self.skip = requests;
        self
    }

    /// Is used up after so many requests; default never.
    #[must_use]
    pub fn times(mut self, requests: usize) -> Self {
        self.times = Some(requests);
        self
    }

    /// Tells whether the rule decides about this request, and counts it.
    pub(super) fn takes(&mut self, route: Route, method: &Method, path: &str) -> bool {
        let fits = self.route.is_none_or(|only| only == route)
            && self.method.as_ref().is_none_or(|only| only == method)
            && self.path.as_deref().is_none_or(|pattern| matches(pattern, path));
        if !fits || self.times == Some(0) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

/// Tells whether a text is of a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, fits) in [
            ("/sandboxes", "/sandboxes", true),
            ("/sandboxes", "/sandboxes/x", false),
            ("/sandboxes/*", "/sandboxes/", true),
            ("/sandboxes/*/pause", "/sandboxes/abc/pause", true),
            ("/sandboxes/*/pause", "/sandboxes/abc/connect", false),
            ("*/connect", "/v2/sandboxes/é/connect", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_skips_then_counts_down() {
        let mut rule = Rule::new(Fault::Pass).with_route(Route::Create).skip(1).times(2);
        let mut asked = |route| rule.takes(route, &Method::POST, "/v2/sandboxes");
        assert_eq!([asked(Route::Create), asked(Route::List), asked(Route::Create)], [false, false, true]);
        assert_eq!([asked(Route::Create), asked(Route::Create)], [true, false]);
    }
}
