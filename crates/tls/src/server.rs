//! From the bytes of the files to what a server says and accepts.

use crate::TlsError;
use crate::files::{Files, Places};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore, ServerConfig, SupportedCipherSuite};
use std::path::Path;
use std::sync::Arc;
use webpki::{BorrowedCertRevocationList, CertRevocationList};

/// Seconds of a day.
const DAY: u64 = 24 * 3600;

/// What a server with these files says and accepts.
///
/// # Errors
/// What is wrong with one of them.
pub(crate) fn server(files: &Files, places: &Places) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider());
    let chain = certificates(&files.chain, &places.chain)?;
    let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey { path: places.key.clone() },
        error => damaged(&places.key)(error.to_string()),
    })?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| damaged(&places.chain)(error.to_string()))?;
    let builder = match &files.authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority, &places.authority)? {
                roots.add(certificate).map_err(|error| damaged(&places.authority)(error.to_string()))?;
            }
            let revoked = files.revoked.iter().flat_map(|list| CertificateRevocationListDer::pem_slice_iter(list));
            let revoked = revoked.collect::<Result<Vec<_>, _>>();
            let revoked = revoked.map_err(|error| damaged(&places.revoked)(error.to_string()))?;
            if revoked.is_empty() && files.revoked.is_some() {
                return Err(damaged(&places.revoked)("it has no list in PEM form".to_owned()));
            }
            check_lists(&revoked, &places.revoked)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            // As in QEMU: what an authority has no list for is not revoked. Where there is one it decides, and once its successor is due
            // (`nextUpdate`) it admits nobody: who is revoked by that may keep it from us.
            let verifier = verifier.with_crls(revoked).allow_unknown_revocation_status();
            let verifier = verifier.enforce_revocation_expiration().build();
            builder.with_client_cert_verifier(verifier.map_err(|error| match error {
                VerifierBuilderError::InvalidCrl(error) => damaged(&places.revoked)(format!("{error:?}")),
                error => damaged(&places.authority)(error.to_string()),
            })?)
        }
    };
    warn_of_age(&chain, &places.chain, &provider);
    let mut server = builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => TlsError::Mismatch { key: places.key.clone(), chain: places.chain.clone() },
        Error::InvalidCertificate(why) => damaged(&places.chain)(why.to_string()),
        error => damaged(&places.key)(error.to_string()),
    })?;
    // Each connection shows its certificate anew, which may have been revoked meanwhile.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

/// The cipher suites and key exchanges of rustls, but for AES-GCM of TLS 1.2: a key of it seals 2^24 records and no more (rustls keeps to
/// that; RFC 8446, 5.5 has the reason), which are 256 GiB at most and minutes of short replies, and 1.2 has no way to another key but
/// another connection. In 1.3 keys are renewed while the session goes on, and ChaCha20-Poly1305 has no such bound.
pub(crate) fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| match suite {
        SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit == u64::MAX,
        SupportedCipherSuite::Tls13(_) => true,
    });
    provider
}

/// Refuses two lists of one authority: the first that speaks of a certificate would decide, whatever the other one says. What speaks of
/// a part of them each (`issuingDistributionPoint`) may stand beside each other.
fn check_lists(lists: &[CertificateRevocationListDer<'_>], path: &Path) -> Result<(), TlsError> {
    let parsed = lists.iter().map(|list| BorrowedCertRevocationList::from_der(list).map(CertRevocationList::from));
    let parsed = parsed.collect::<Result<Vec<_>, _>>().map_err(|error| damaged(path)(error.to_string()))?;
    let overlap = |one: &CertRevocationList<'_>, other: &CertRevocationList<'_>| {
        let (part, of_other) = (one.issuing_distribution_point(), other.issuing_distribution_point());
        one.issuer() == other.issuer() && (part == of_other || part.is_none() || of_other.is_none())
    };
    let twice = parsed.iter().enumerate().any(|(at, one)| parsed.iter().skip(at + 1).any(|other| overlap(one, other)));
    if twice { Err(TlsError::TwoLists { path: path.to_owned() }) } else { Ok(()) }
}

fn damaged(path: &Path) -> impl FnOnce(String) -> TlsError + use<> {
    let path = path.to_owned();
    move |why| TlsError::Damaged { path, why }
}

fn certificates(bytes: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| damaged(path)(error.to_string()))?;
    if all.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(all)
}

/// How a certificate stands to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// It holds, or nobody can tell.
    Fine,
    /// Since so many seconds it does not hold any more.
    Expired(u64),
    /// In so many seconds it will hold.
    Early(u64),
}

impl Age {
    /// Of the first certificate of a chain. What has no authority is looked at no further than for this, which comes first.
    pub(crate) fn of(chain: &[CertificateDer<'_>], now: UnixTime, provider: &CryptoProvider) -> Age {
        let Some(parsed) = chain.first().and_then(|first| ParsedCertificate::try_from(first).ok()) else {
            return Age::Fine;
        };
        let (nobody, all) = (RootCertStore::empty(), provider.signature_verification_algorithms.all);
        match verify_server_cert_signed_by_trust_anchor(&parsed, &nobody, &[], now, all) {
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
                Age::Expired(time.as_secs().saturating_sub(not_after.as_secs()))
            }
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
                Age::Early(not_before.as_secs().saturating_sub(time.as_secs()))
            }
            _ => Age::Fine,
        }
    }
}

/// Clients refuse what has expired, and it is they who tell: the log says so before.
fn warn_of_age(chain: &[CertificateDer<'_>], path: &Path, provider: &CryptoProvider) {
    let path = path.display();
    match Age::of(chain, UnixTime::now(), provider) {
        Age::Fine => {}
        Age::Expired(seconds) => {
            let days = seconds / DAY;
            tracing::warn!("{path}: has expired {days} day(s) ago, and clients will refuse it: renew it");
        }
        Age::Early(seconds) => {
            let days = seconds.div_ceil(DAY);
            tracing::warn!("{path}: holds in {days} day(s) only, and clients will refuse it until then");
        }
    }
}
