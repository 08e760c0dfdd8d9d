//! Tokens of sandboxes: derived from the server's secret and the sandbox's id, so that none has to be kept.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Length of the server's secret, in bytes.
pub(crate) const SECRET_BYTES: usize = 32;

/// Derives tokens.
pub(crate) struct Tokens {
    keyed: Hmac<Sha256>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    pub(crate) fn new(secret: &[u8; SECRET_BYTES]) -> Self {
        // The secret is shorter than a block, which the array type would not show to `new_from_slice`.
        let mut block = [0; 64];
        block[..SECRET_BYTES].copy_from_slice(secret);
        Self { keyed: <Hmac<Sha256> as hmac::digest::KeyInit>::new(&block.into()) }
    }

    /// The token that opens a sandbox's daemon.
    pub(crate) fn access(&self, sandbox: &str) -> String {
        self.token("envd", sandbox)
    }

    /// The token that opens a sandbox's other ports where they are not public.
    pub(crate) fn traffic(&self, sandbox: &str) -> String {
        self.token("traffic", sandbox)
    }

    fn token(&self, purpose: &str, of: &str) -> String {
        URL_SAFE_NO_PAD.encode(self.derive(purpose, of))
    }

    /// Derives 32 bytes for one purpose; no purpose holds a zero byte.
    pub(crate) fn derive(&self, purpose: &str, of: &str) -> [u8; 32] {
        let mut keyed = self.keyed.clone();
        keyed.update(purpose.as_bytes());
        keyed.update(&[0]);
        keyed.update(of.as_bytes());
        keyed.finalize().into_bytes().into()
    }
}

/// Compares in a time that tells nothing but the length.
pub(crate) fn same_secret(given: &[u8], secret: &[u8]) -> bool {
    given.len() == secret.len()
        && given.iter().zip(secret).fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_by_secret_purpose_and_sandbox_and_stay_the_same() {
        let (one, other) = (Tokens::new(&[1; 32]), Tokens::new(&[2; 32]));
        let token = one.access("i1");
        assert_eq!(token, Tokens::new(&[1; 32]).access("i1"));
        for different in [other.access("i1"), one.traffic("i1"), one.access("i2")] {
            assert_ne!(token, different);
        }
    }
}
