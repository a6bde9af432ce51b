//! What may be chosen about an image.

use crate::error::RbdError;
use crate::ffi::{Cluster, Library};
use crate::open::{client, keyrings};
use crate::served::RbdStorage;
use crate::spec::{self, Spec};
use crate::was::Was;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use storage::{Access, Description, Handed, Kind, Look, Need, OpenError, Opened, READ_ONLY, Storage, check_migratable};
use utoipa::ToSchema;
use values::{FieldError, OnLost};

/// What a migratable image cannot be.
const SNAPSHOT: &str = "a snapshot, which any number of daemons share";
/// A guest that is to go elsewhere stops first.
const WAITS: &str = "`on_lost = \"wait\"`, which would keep a guest from stopping";

/// An image of a Ceph cluster (RBD).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RbdStorage)]
pub struct RbdOptions {
    /// The pool; `rbd` when left out.
    #[serde(default = "RbdOptions::pool_default")]
    pub pool: String,
    /// The namespace in the pool; none when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Serve the image as it was at this snapshot, which nobody writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Refuse writes, and take no lock; true for a snapshot, false for an image when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Another daemon may have it while no guest runs here: its lock is taken when one begins, and given up when it has stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub migratable: bool,
    /// What becomes of requests when the image is lost to its guest (its lock was taken away, or somebody else had it): `error` when left out.
    #[serde(default, skip_serializing_if = "OnLost::is_default")]
    pub on_lost: OnLost,
    /// The cluster's name for this client, without `client.`; `admin` when left out.
    #[serde(default = "RbdOptions::user_default")]
    pub user: String,
    /// Path of the cluster's configuration, which names monitors and keyring; /etc/ceph/ceph.conf when left out.
    #[serde(default = "RbdOptions::conf_default")]
    #[schema(value_type = String)]
    pub conf: PathBuf,
}

impl RbdOptions {
    /// This image, with every other field at its default.
    pub fn new(spec: Spec) -> RbdOptions {
        let Spec { pool, namespace, image, snapshot } = spec;
        let (user, conf, on_lost) = (RbdOptions::user_default(), RbdOptions::conf_default(), OnLost::default());
        RbdOptions { pool, namespace, image, snapshot, read_only: None, migratable: false, on_lost, user, conf }
    }

    fn pool_default() -> String {
        spec::POOL.to_owned()
    }

    fn user_default() -> String {
        "admin".to_owned()
    }

    fn conf_default() -> PathBuf {
        PathBuf::from("/etc/ceph/ceph.conf")
    }

    /// Where it is, in one word.
    pub fn spec(&self) -> Spec {
        Spec {
            pool: self.pool.clone(),
            namespace: self.namespace.clone(),
            image: self.image.clone(),
            snapshot: self.snapshot.clone(),
        }
    }

    fn was(&self, again: &str) -> Result<Was, RbdError> {
        Was::read(again).map_err(|source| RbdError::Foreign { spec: self.spec().to_string(), source })
    }

    /// The client that the options name, as far as it comes without a cluster.
    fn client(&self) -> Result<Cluster, RbdError> {
        client(Library::get()?, self)
    }
}

impl Kind for RbdOptions {
    fn check(&self, _block_size_bytes: u32) -> Result<(), FieldError> {
        let names = [
            ("storage.pool", Some(&self.pool)),
            ("storage.namespace", self.namespace.as_ref()),
            ("storage.image", Some(&self.image)),
            ("storage.snapshot", self.snapshot.as_ref()),
        ];
        for (field, name) in names {
            if name.is_some_and(|name| !spec::is_name(name)) {
                return Err(FieldError::new(
                    field,
                    "is no name: it has a character at least, and neither `/` nor `@` nor control characters",
                ));
            }
        }
        if self.snapshot.is_some() && self.read_only == Some(false) {
            let message =
                "is read and never written: leave `read_only = false` out, or serve a clone of it (`rbd clone`)";
            return Err(FieldError::new("storage.snapshot", message));
        }
        if self.snapshot.is_some() && self.on_lost == OnLost::Wait {
            let message = "does not go with a snapshot, which is lost when it was removed: leave one of the two out";
            return Err(FieldError::new("storage.on_lost", message));
        }
        check_migratable(
            self,
            &[
                (self.snapshot.is_some(), SNAPSHOT),
                (self.read_only(), READ_ONLY),
                (self.on_lost == OnLost::Wait, WAITS),
            ],
        )?;
        if self.user.is_empty() || self.user.starts_with("client.") || self.user.contains(char::is_control) {
            let message = "is no name of a user: give it without `client.` and control characters, as in `admin`";
            return Err(FieldError::new("storage.user", message));
        }
        if self.conf.as_os_str().is_empty() {
            return Err(FieldError::new("storage.conf", "is empty: give the path of the cluster's ceph.conf"));
        }
        Ok(())
    }

    /// Loads the libraries, and looks whether configuration and keyring are there. A connection has threads, and is made when the storage
    /// is started.
    fn open(&self) -> Result<Opened, OpenError> {
        self.client()?;
        let options = self.clone();
        Ok(Opened::new(self, move || Ok(Arc::new(RbdStorage::open(&options)?))))
    }

    /// What librbd has of an image ends with the program: it is opened again, for which requests wait.
    fn adopt(&self, handed: Handed) -> Result<Arc<dyn Storage>, OpenError> {
        let was = self.was(&handed.again.ok_or(OpenError::NothingHanded)?)?;
        Ok(Arc::new(RbdStorage::adopt(self, was)?))
    }

    fn check_again(&self, again: &str) -> Result<(), OpenError> {
        self.was(again).map(drop).map_err(OpenError::from)
    }

    fn needs(&self) -> Vec<Need> {
        let need = |path| Need { field: "storage.conf", path, access: Access::Read };
        // Where keyrings are only the configuration says; what is wrong with it is for `open` to say.
        let keyrings = self.client().ok().and_then(|client| keyrings(&client).ok()).unwrap_or_default();
        let keyrings = keyrings.into_iter().filter(|path| path.is_file());
        std::iter::once(self.conf.clone()).chain(keyrings).map(need).collect()
    }

    fn read_only(&self) -> bool {
        self.read_only.unwrap_or(self.snapshot.is_some())
    }

    fn migratable(&self) -> Option<&dyn Look> {
        self.migratable.then_some(self)
    }

    fn paths(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        vec![("storage.conf", &mut self.conf)]
    }
}

impl Look for RbdOptions {
    /// As a reader, who takes no lock.
    fn look(&self) -> Result<(Description, u64), OpenError> {
        let reader = RbdOptions { read_only: Some(true), ..self.clone() };
        let storage = RbdStorage::open(&reader)?;
        let about = Description { read_only: false, discard: true, write_zeroes: true, ..storage.describe() };
        Ok((about, storage.capacity_bytes()))
    }

    /// A connection has threads.
    fn look_before(&self) -> Result<(), OpenError> {
        self.client()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &str) -> RbdOptions {
        serde_json::from_str(table).unwrap()
    }

    #[test]
    fn what_is_left_out_has_the_cluster_s_usual_names() {
        let options = read(r#"{"image": "i"}"#);
        assert_eq!(options, RbdOptions::new("rbd/i".parse().unwrap()));
        assert_eq!((options.user.as_str(), options.conf.to_str()), ("admin", Some("/etc/ceph/ceph.conf")));
        options.check(512).unwrap();
        assert!(!options.read_only());
    }

    #[test]
    fn a_snapshot_is_read_and_not_written() {
        let options = RbdOptions::new("p/i@s".parse().unwrap());
        options.check(512).unwrap();
        assert!(options.read_only());
        let written = RbdOptions { read_only: Some(false), ..options.clone() };
        assert_eq!(written.check(512).unwrap_err().field, "storage.snapshot");
        let waits = RbdOptions { on_lost: OnLost::Wait, ..options };
        assert_eq!(waits.check(512).unwrap_err().field, "storage.on_lost");
    }

    #[test]
    fn what_nobody_writes_does_not_change_hands() {
        let image = RbdOptions { migratable: true, ..RbdOptions::new("p/i".parse().unwrap()) };
        image.check(512).unwrap();
        let read = RbdOptions { read_only: Some(true), ..image.clone() };
        let waits = RbdOptions { on_lost: OnLost::Wait, ..image.clone() };
        let snapshot = RbdOptions { snapshot: Some("s".to_owned()), ..image };
        for (options, words) in [(read, "`read_only`"), (waits, "`on_lost = \"wait\"`"), (snapshot, "a snapshot")] {
            let refusal = options.check(512).unwrap_err();
            assert!(refusal.field == "storage.migratable" && refusal.message.contains(words), "{}", refusal.message);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_by_its_field() {
        for (table, field) in [
            (r#"{"image": ""}"#, "storage.image"),
            (r#"{"image": "a/b"}"#, "storage.image"),
            (r#"{"image": "i", "pool": ""}"#, "storage.pool"),
            (r#"{"image": "i", "namespace": "a@b"}"#, "storage.namespace"),
            (r#"{"image": "i", "snapshot": ""}"#, "storage.snapshot"),
            (r#"{"image": "i", "user": "client.admin"}"#, "storage.user"),
            (r#"{"image": "i\nj"}"#, "storage.image"),
            (r#"{"image": "i", "snapshot": "s\u007f"}"#, "storage.snapshot"),
            (r#"{"image": "i", "user": "a\nb"}"#, "storage.user"),
            (r#"{"image": "i", "conf": ""}"#, "storage.conf"),
        ] {
            assert_eq!(read(table).check(512).unwrap_err().field, field, "{table}");
        }
    }
}
