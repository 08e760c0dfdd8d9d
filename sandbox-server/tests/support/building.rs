//! Builds of templates, as they stand on the wire.

#![allow(dead_code, reason = "not every test program needs all of it")]

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::http::{Answer, Box, Request, until};

/// A build of a template.
#[derive(Debug)]
pub(crate) struct Building {
    pub(crate) template: String,
    pub(crate) build: String,
}

pub(crate) fn ask(at: SocketAddr, name: &str) -> Building {
    let answer = Request::new("POST", "/v3/templates").key().json(&json!({ "name": name })).send(at);
    assert_eq!(answer.status, 202, "{answer:?}");
    let text = |field: &str| answer.json()[field].as_str().unwrap().to_owned();
    Building { template: text("templateID"), build: text("buildID") }
}

impl Building {
    pub(crate) fn path(&self) -> String {
        format!("/templates/{}/builds/{}", self.template, self.build)
    }

    pub(crate) fn start(&self, at: SocketAddr, body: &Value) -> Answer {
        Request::new("POST", &format!("/v2{}", self.path())).key().json(body).send(at)
    }

    pub(crate) fn status(&self, at: SocketAddr) -> Value {
        let answer = Request::new("GET", &format!("{}/status", self.path())).key().send(at);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Waits for the end and returns it.
    pub(crate) fn end(&self, at: SocketAddr) -> Value {
        let mut last = Value::Null;
        until("the build ends", || {
            last = self.status(at);
            matches!(last["status"].as_str(), Some("ready" | "error"))
        });
        last
    }
}

/// Builds a template and returns how it ended.
pub(crate) fn built(at: SocketAddr, name: &str, body: &Value) -> (Building, Value) {
    let building = ask(at, name);
    let started = building.start(at, body);
    assert_eq!(started.status, 202, "{started:?}");
    let end = building.end(at);
    (building, end)
}

pub(crate) fn run(command: &str) -> Value {
    json!({ "type": "RUN", "args": [command] })
}

pub(crate) fn sandbox(at: SocketAddr, template: &str) -> Box {
    let answer =
        Request::new("POST", "/v2/sandboxes").key().json(&json!({ "templateID": template })).send(at);
    assert_eq!(answer.status, 201, "{answer:?}");
    Box::of(at, answer.json())
}
