//! Reading the credentials that a configuration names, from nowhere else than the variables that it names.

use sandhold_core::{Error, ErrorKind, Result};

/// What holds them: the environment, or a store of secrets of the host.
pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

/// Which of two kinds of credential there is.
#[cfg(any(feature = "gcs", feature = "azure"))]
pub(super) enum Either {
    One(String),
    Other(String),
}

impl Variables<'_> {
    pub(super) fn get(&self, name: &str) -> Result<Option<String>> {
        let first = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
        let fits = name.starts_with(first)
            && name.len() <= 128
            && name.chars().all(|letter| first(letter) || letter.is_ascii_digit());
        if !fits {
            // It may be the secret itself, put there by mistake.
            return Err(Error::invalid_argument(
                "what names the variable of a credential is no name of a variable; a credential itself does not belong there",
            )
            .with_reason("credential"));
        }
        Ok((self.0)(name).filter(|value| !value.is_empty()))
    }

    /// The credential of the first kind, else of the second one.
    #[cfg(any(feature = "gcs", feature = "azure"))]
    pub(super) fn either(&self, one: &str, other: &str) -> Result<Either> {
        let (first, second) = (self.get(one)?, self.get(other)?);
        first.map(Either::One).or(second.map(Either::Other)).ok_or_else(|| missing(&[one, other], " or "))
    }

    /// Both halves of a credential.
    #[cfg(feature = "s3")]
    pub(super) fn pair(&self, one: &str, other: &str) -> Result<(String, String)> {
        match (self.get(one)?, self.get(other)?) {
            (Some(key), Some(secret)) => Ok((key, secret)),
            (None, Some(_)) => Err(missing(&[one], "")),
            (Some(_), None) => Err(missing(&[other], "")),
            (None, None) => Err(missing(&[one, other], " and ")),
        }
    }
}

fn missing(names: &[&str], between: &str) -> Error {
    Error::new(
        ErrorKind::Unauthenticated,
        format!(
            "the mirror needs {}, which this process has not; nothing else, such as a profile or a metadata service, is asked",
            names.join(between)
        ),
    )
    .with_reason("credential")
}

#[cfg(all(test, feature = "s3", feature = "gcs"))]
mod tests {
    use super::*;

    #[test]
    fn half_a_credential_names_the_half_that_is_missing_and_no_value_is_ever_shown() {
        let lookup = |name: &str| (name == "HAS").then(|| "s3cr3t".to_owned());
        let variables = Variables(&lookup);
        let refused = variables.pair("HAS", "HAS_NOT").unwrap_err();
        assert!(refused.to_string().contains("HAS_NOT,"), "{refused}");
        assert!(!refused.to_string().contains("HAS and"), "{refused}");
        assert!(!refused.to_string().contains("s3cr3t"));
        let refused = variables.pair("NONE", "NEITHER").unwrap_err();
        assert!(refused.to_string().contains("NONE and NEITHER"), "{refused}");
        let refused = variables.either("abc/DEF+secret=", "HAS").err().unwrap();
        assert!(!refused.to_string().contains("DEF"), "{refused}");
        let refused = variables.either("NONE", "NEITHER").err().unwrap();
        assert!(refused.to_string().contains("NONE or NEITHER"), "{refused}");
        assert!(
            matches!(variables.either("NONE", "HAS").unwrap(), Either::Other(value) if value == "s3cr3t")
        );
        assert!(matches!(variables.either("HAS", "HAS").unwrap(), Either::One(_)));
    }
}
