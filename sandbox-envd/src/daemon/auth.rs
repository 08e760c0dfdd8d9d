//! Who asks: the access token and the user.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Response, StatusCode};

use crate::daemon::http::{Body, json_error};
use crate::daemon::state::State;

/// The header that carries the access token.
pub(crate) const ACCESS_TOKEN: &str = "x-access-token";

/// The message of the 401 answer to a request without the right token.
pub const UNAUTHORIZED_MESSAGE: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// Says whether a request may do what needs the token: it carries it, or none is set.
pub(crate) fn token_matches(state: &State, headers: &HeaderMap) -> bool {
    let given = headers.get(ACCESS_TOKEN).map(|value| value.as_bytes());
    state.session(|session| match &session.access_token {
        Some(token) => given.is_some_and(|given| same_secret(given, token.as_bytes())),
        None => true,
    })
}

/// Compares in a time that tells nothing but the length.
pub(crate) fn same_secret(given: &[u8], secret: &[u8]) -> bool {
    given.len() == secret.len()
        && given.iter().zip(secret).fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b))) == 0
}

/// The answer to a request without the right token.
pub(crate) fn unauthorized() -> Response<Body> {
    json_error(StatusCode::UNAUTHORIZED, UNAUTHORIZED_MESSAGE)
}

/// Returns the user named in `Authorization: Basic`, whose password is ignored; an empty name is none.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, _password) = decoded.split_once(':')?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn user_of(value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        basic_user(&headers)
    }

    #[test]
    fn the_user_is_the_name_in_basic_authorization() {
        assert_eq!(user_of("Basic dXNlcjo=").as_deref(), Some("user"));
        assert_eq!(user_of("basic cm9vdDpwYXNz").as_deref(), Some("root"));
        for none in ["Bearer dXNlcjo=", "Basic Og==", "Basic dXNlcg==", "Basic ?", "Basic"] {
            assert_eq!(user_of(none), None, "{none}");
        }
    }

    #[test]
    fn secrets_are_the_same_only_when_every_byte_is() {
        assert!(same_secret(b"token", b"token"));
        for other in [&b"tokem"[..], b"Token", b"token1", b"toke", b""] {
            assert!(!same_secret(other, b"token"));
        }
    }
}
