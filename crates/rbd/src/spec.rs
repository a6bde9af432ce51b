//! How an image is written in one word: `[POOL/[NAMESPACE/]]IMAGE[@SNAPSHOT]`, as the program `rbd` has it.

use std::fmt;
use std::str::FromStr;

/// The pool of those who name none.
pub(crate) const POOL: &str = "rbd";

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its pool.
    pub pool: String,
    /// The namespace in the pool.
    pub namespace: Option<String>,
    /// Its name.
    pub image: String,
    /// One of its snapshots.
    pub snapshot: Option<String>,
}

/// `{0}` is no image: write POOL/IMAGE, POOL/NAMESPACE/IMAGE or POOL/IMAGE@SNAPSHOT
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct SpecError(String);

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let (place, snapshot) = match text.split_once('@') {
            Some((place, snapshot)) => (place, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [image] => (POOL, None, image),
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(SpecError(text.escape_debug().to_string())),
        };
        if [Some(pool), namespace, Some(image), snapshot].into_iter().flatten().any(|part| !is_name(part)) {
            return Err(SpecError(text.escape_debug().to_string()));
        }
        Ok(Spec {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

/// Whether something can be the name of an image or of where it is.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|character: char| matches!(character, '/' | '@') || character.is_control())
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_written_as_it_is_read() {
        for text in ["p/i", "p/n/i", "p/i@s", "p/n/i@2026-11-29 09:00"] {
            assert_eq!(text.parse::<Spec>().unwrap().to_string(), text);
        }
        assert_eq!("i".parse::<Spec>().unwrap().to_string(), "rbd/i");
        let full: Spec = "p/n/i@s".parse().unwrap();
        assert_eq!((full.namespace.as_deref(), full.snapshot.as_deref()), (Some("n"), Some("s")));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        for text in ["", "/", "p/", "/i", "p//i", "a/b/c/d", "i@", "@s", "i@s@t", "p/i@s/t", "p/i\n", "p/\x1b[1m"] {
            let error = text.parse::<Spec>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{}` is no image: ", text.escape_debug())), "{error}");
        }
    }
}
