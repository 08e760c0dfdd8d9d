//! Tells the linker that Node.js itself has the functions of Node-API.

fn main() {
    napi_build::setup();
}
