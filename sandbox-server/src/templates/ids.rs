//! Random ids in E2B's forms.

use sandhold_core::{Error, ErrorKind, Result};

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the system gave no random bytes").with_source(error.to_string())
    })?;
    Ok(bytes)
}

/// Draws an id of 20 letters and digits, as templates, volumes and secrets have.
pub(crate) fn template() -> Result<String> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // The remainder favours some letters by a hundredth; 20 of them still hold 100 bits.
    Ok(random::<20>()?.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

/// Draws a UUID of version 4, as builds have.
pub(crate) fn build() -> Result<String> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut out = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    Ok(out)
}
