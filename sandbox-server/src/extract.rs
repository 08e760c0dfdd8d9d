//! What routes read from requests, with errors in E2B's form.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// Largest JSON body that is read: metadata, variables and build steps fit many times over.
const MAX_BODY: usize = 4 << 20;

/// The JSON body of a request, whatever its content type says; an absent one is `{}`.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read(request).await?;
        parse(&bytes).map(Self)
    }
}

/// Reads a whole JSON body into memory.
pub(crate) async fn read(request: Request) -> Result<Bytes, ApiError> {
    match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the request body is larger than {MAX_BODY} bytes");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(error) => Err(ApiError::bad_request(format!("the request body did not arrive whole: {error}"))),
    }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    // Serde would take the members of an array for the fields in order.
    if text.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::bad_request("the request body is not a JSON object"));
    }
    serde_json::from_slice(text)
        .map_err(|error| ApiError::bad_request(format!("the request body is not valid: {error}")))
}

/// The query of a request: its pairs, decoded once, in order.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query as it stands in the request.
    pub(crate) fn decode(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// Returns the first value of this name; an empty one is none.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns every value of this name that is not empty.
    pub(crate) fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        let named = self.0.iter().filter(move |(key, value)| key == name && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    /// Returns the first value of this name as a number, or a 400 that names both.
    pub(crate) fn number<N: std::str::FromStr>(&self, name: &str) -> Result<Option<N>, ApiError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                let shown: String = text.chars().take(32).collect();
                ApiError::bad_request(format!("the query parameter {name:?} is not a number: {shown:?}"))
            })
        };
        self.get(name).map(parse).transpose()
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::decode(parts.uri.query().unwrap_or_default()))
    }
}

/// One decoded part of the path.
#[derive(Debug)]
pub(crate) struct Segment(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0))
            .map_err(|_| ApiError::bad_request("the path is not valid").into_response())
    }
}
