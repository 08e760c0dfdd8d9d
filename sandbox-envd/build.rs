//! Generates messages and service traits from the committed descriptor set, so that a build needs no protoc.

use std::error::Error;

use buffa_codegen::BytesRepr;
use connectrpc_build::{CodeGenConfig, Config};

fn main() -> Result<(), Box<dyn Error>> {
    let mut messages = CodeGenConfig::default();
    messages.generate_json = true;
    messages.preserve_unknown_fields = false;
    messages.emit_register_fn = false;
    // Output chunks are cut out of the buffer they arrived in instead of being copied.
    messages.bytes_fields = vec![(".".to_owned(), BytesRepr::Bytes)];
    Config::new()
        .buffa_config(messages)
        .descriptor_set("proto/envd.binpb")
        .files(&["process.proto", "filesystem.proto"])
        .gate_client_feature(true)
        .include_file("_envd.rs")
        .compile()?;
    Ok(())
}
