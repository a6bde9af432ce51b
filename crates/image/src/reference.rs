//! Names of other files: backing files and external data files.
//!
//! A relative name is relative to the directory of the image that has it. Of QEMU's `json:` names the plain ones are understood:
//! a file, with or without a format over it. Whatever else a name could ask for is refused.

use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file that an image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where it is.
    pub path: PathBuf,
    /// Its format, if the name says it.
    pub format: Option<String>,
}

/// Why a name cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum ReferenceError {
    /// the name {0:?} has a zero byte
    Zero(String),
    /// {name:?} is not a file (protocol `{protocol}`): only files on this host can be used; copy it here, and name it with `vringd image rebase --unsafe`
    Protocol {
        /// As it is written.
        name: String,
        /// What it asks for.
        protocol: String,
    },
    /// {name:?} is no name that this program understands: {why}; use `json:{{"driver": FORMAT, "file": {{"driver": "file", "filename": PATH}}}}` or a path
    Json {
        /// As it is written.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// Reads the name that the image at `image` has for another file.
///
/// # Errors
/// A name that asks for something else than a file.
pub fn read(name: &[u8], image: &Path) -> Result<Reference, ReferenceError> {
    let text = String::from_utf8_lossy(name).into_owned();
    if name.contains(&0) {
        return Err(ReferenceError::Zero(text));
    }
    let within = |path: &[u8]| image.parent().unwrap_or(Path::new("")).join(OsStr::from_bytes(path));
    if let Some(json) = name.strip_prefix(b"json:") {
        let wrong = |why: String| ReferenceError::Json { name: text.clone(), why };
        let value: Map<String, Value> = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        let (file, format) = plain(&value).map_err(wrong)?;
        return Ok(Reference { path: within(file.as_bytes()), format });
    }
    if let Some(path) = name.strip_prefix(b"file:") {
        return Ok(Reference { path: within(path), format: None });
    }
    // As QEMU sees it: a colon before any slash is a protocol.
    let first = name.iter().position(|byte| matches!(byte, b':' | b'/')).filter(|at| name[*at] == b':');
    match first {
        Some(at) => {
            let protocol = String::from_utf8_lossy(&name[..at]).into_owned();
            Err(ReferenceError::Protocol { name: text, protocol })
        }
        None => Ok(Reference { path: within(name), format: None }),
    }
}

/// The file and the format of the plain forms.
fn plain(value: &Map<String, Value>) -> Result<(String, Option<String>), String> {
    let driver = value.get("driver").map(|driver| driver.as_str().ok_or("`driver` is no string")).transpose()?;
    let only = |known: &[&str]| match value.keys().find(|key| !known.contains(&key.as_str())) {
        Some(other) => Err(format!("it has `{other}`")),
        None => Ok(()),
    };
    if let Some(file) = value.get("filename").filter(|_| driver.is_none_or(|driver| driver == "file")) {
        only(&["driver", "filename"])?;
        return Ok((file.as_str().ok_or("`filename` is no string")?.to_owned(), None));
    }
    let format = driver.map(str::to_owned);
    if let Some(Value::Object(file)) = value.get("file") {
        only(&["driver", "file"])?;
        let (path, below) = plain(file)?;
        return if below.is_none() { Ok((path, format)) } else { Err("there is a format over a format".to_owned()) };
    }
    if let Some(file) = value.get("file.filename").and_then(Value::as_str) {
        only(&["driver", "file.driver", "file.filename"])?;
        return match value.get("file.driver").is_none_or(|driver| driver == "file") {
            true => Ok((file.to_owned(), format)),
            false => Err("`file.driver` is not `file`".to_owned()),
        };
    }
    Err("it names no file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<(String, Option<String>), String> {
        let found = read(name.as_bytes(), Path::new("/images/top.qcow2")).map_err(|error| error.to_string())?;
        Ok((found.path.display().to_string(), found.format))
    }

    #[test]
    fn names_are_relative_to_their_image() {
        let file = |path: &str| Ok((path.to_owned(), None));
        assert_eq!(named("base.raw"), file("/images/base.raw"));
        assert_eq!(named("/base.raw"), file("/base.raw"));
        assert_eq!(named("a/b:c"), file("/images/a/b:c"));
        assert_eq!(named("file:x"), file("/images/x"));
        assert_eq!(named("json:{\"driver\":\"file\",\"filename\":\"x\"}"), file("/images/x"));
        let formatted = Ok(("/images/x".to_owned(), Some("qcow2".to_owned())));
        assert_eq!(named(r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"x"}}"#), formatted);
        assert_eq!(named(r#"json:{"driver":"qcow2","file.driver":"file","file.filename":"x"}"#), formatted);
        assert_eq!(read(b"x", Path::new("top")).unwrap().path, Path::new("x"));
    }

    #[test]
    fn whatever_is_no_file_is_refused() {
        for (name, expected) in [
            ("nbd:localhost:10809", "protocol `nbd`"),
            ("json:{", "EOF"),
            ("json:{\"driver\":\"nbd\",\"host\":\"x\"}", "names no file"),
            (r#"json:{"driver":"qcow2","file":{"driver":"nbd","filename":"x"}}"#, "names no file"),
            (r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"x","locking":"off"}}"#, "it has `locking`"),
            ("a\0b", "zero byte"),
        ] {
            let error = named(name).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
