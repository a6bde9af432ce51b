//! Certificates for tests, in directories as QEMU's `tls-creds-x509` has them, and a client's side of TLS.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// The name of every server.
pub const SERVER_NAME: &str = "localhost";

/// Which end of a connection a certificate is for, by the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `server-cert.pem`, `server-key.pem`.
    Server,
    /// `client-cert.pem`, `client-key.pem`.
    Client,
}

/// Years in which a certificate holds.
pub type Years = (i32, i32);

/// Years that last as long as any test.
pub const ALWAYS: Years = (2020, 2200);

/// Who signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// One of this name.
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, ALWAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Makes its certificate, and one for each end, in `directory`.
    pub fn fill(&self, directory: &Path) {
        self.authorize(directory);
        self.issue(directory, End::Server, 1, ALWAYS);
        self.issue(directory, End::Client, 2, ALWAYS);
    }

    /// Puts its own certificate into `directory`, as `ca-cert.pem`.
    pub fn authorize(&self, directory: &Path) {
        fs::write(directory.join("ca-cert.pem"), &self.pem).unwrap();
    }

    /// Makes a certificate with this number and its key in `directory`.
    pub fn issue(&self, directory: &Path, end: End, serial: u64, years: Years) {
        let (name, usage) = match end {
            End::Server => ("server", ExtendedKeyUsagePurpose::ServerAuth),
            End::Client => ("client", ExtendedKeyUsagePurpose::ClientAuth),
        };
        let key = KeyPair::generate().unwrap();
        let mut params = params(name, years);
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(directory.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        let file = directory.join(format!("{name}-key.pem"));
        fs::write(&file, key.serialize_pem()).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }

    /// Says in `directory`, by `ca-crl.pem`, that certificates with these numbers hold no more.
    pub fn revoke(&self, directory: &Path, serials: &[u64]) {
        self.revoke_until(directory, serials, ALWAYS.1);
    }

    /// As [`revoke`](Self::revoke), by a list that holds until this year.
    pub fn revoke_until(&self, directory: &Path, serials: &[u64], year: i32) {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        fs::write(directory.join("ca-crl.pem"), list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
    }
}

fn params(name: &str, (from, to): Years) -> CertificateParams {
    let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
    params
}

/// What a client with the files of `directory` says and accepts; `shows` whether it shows its certificate. All versions where none are
/// named.
pub fn client(directory: &Path, shows: bool, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let read = |name: &str| fs::read(directory.join(name)).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&read("ca-cert.pem")).unwrap()).unwrap();
    let versions = if versions.is_empty() { rustls::DEFAULT_VERSIONS } else { versions };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
    Arc::new(if shows {
        let chain = vec![CertificateDer::from_pem_slice(&read("client-cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&read("client-key.pem")).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    })
}
