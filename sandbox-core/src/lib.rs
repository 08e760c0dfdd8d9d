//! sandhold-core
