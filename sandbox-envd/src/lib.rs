//! sandhold-envd
