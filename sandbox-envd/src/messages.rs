//! Generated messages and service traits; the source is `proto/*.proto`.
#![allow(
    clippy::all,
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    unused_imports,
    reason = "the generator decides how its code looks"
)]
#![allow(dead_code, reason = "a build with one side of the protocol leaves the other side's types unused")]

include!(concat!(env!("OUT_DIR"), "/_envd.rs"));
