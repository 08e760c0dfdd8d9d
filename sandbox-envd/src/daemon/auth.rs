//! Who asks: the access token and the user.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

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
