//! Signals by their numbers.
#![expect(unsafe_code, reason = "there is no safe way to name a real-time signal")]

use rustix::process::Signal;

/// The real-time signals of the kernel but those that every C library keeps for itself.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// Returns the signal of a number; `None` when nobody can send it to a program.
pub(crate) fn by_number(number: i32) -> Option<Signal> {
    if REAL_TIME.contains(&number) {
        // SAFETY: It is a signal of the kernel, which means nothing to the C library of this process. This
        // process sends it to others and never handles, blocks or waits for it.
        return Some(unsafe { Signal::from_raw_unchecked(number) });
    }
    Signal::from_named_raw(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_that_a_program_can_get_has_its_number() {
        let sendable: Vec<i32> = (-1..=66)
            .filter(|number| by_number(*number).is_some_and(|signal| signal.as_raw() == *number))
            .collect();
        assert_eq!(sendable, (1..=31).chain(34..=64).collect::<Vec<i32>>());
    }
}
