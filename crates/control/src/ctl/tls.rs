//! The options of TLS: the same wherever NBD clients connect.

use crate::model::Tls;
use std::path::PathBuf;

/// TLS for NBD clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct TlsFlags {
    /// Have NBD clients begin TLS, with the certificates in this directory: server-cert.pem, server-key.pem, ca-cert.pem, and
    /// ca-crl.pem if there is one. A client needs a certificate that ca-cert.pem has signed. Replaced files hold for the next client
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Serve clients without a certificate, too: whoever reaches the address has the disk
    #[arg(long, requires = "tls_certificates")]
    pub tls_clients_may_be_anonymous: bool,
}

impl TlsFlags {
    /// What was asked for, if anything was.
    pub fn tls(&self) -> Option<Tls> {
        let certificates = self.tls_certificates.clone()?;
        Some(Tls { certificates, clients_may_be_anonymous: self.tls_clients_may_be_anonymous })
    }
}
