//! What people choose about TLS.

use crate::FieldError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// TLS for the clients of an address: those who do not begin it are told that they must, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Path of a directory with `server-cert.pem`, `server-key.pem`, `ca-cert.pem` and, if there is one, `ca-crl.pem`, as QEMU's
    /// `tls-creds-x509` has them. Files that are replaced hold for clients that connect from then on.
    #[schema(value_type = String)]
    pub certificates: PathBuf,
    /// Serve clients without a certificate, too: `ca-cert.pem` is not asked for, and whoever reaches the address has the disk. False when
    /// left out: a client needs a certificate that `ca-cert.pem` has signed.
    #[serde(default)]
    pub clients_may_be_anonymous: bool,
}

impl Tls {
    /// The field that names the directory, behind that of the whole.
    pub const CERTIFICATES: &str = "tls.certificates";

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// A path that is none.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.certificates.as_os_str().is_empty() {
            let message = "is empty: give the path of a directory with server-cert.pem and server-key.pem";
            return Err(FieldError::new(Self::CERTIFICATES, message));
        }
        Ok(())
    }
}
