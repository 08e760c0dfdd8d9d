//! The daemon as a program of its own, for containers and machines that have no other way to start it.

fn main() {}
