//! sandhold-local
