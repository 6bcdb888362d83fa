//! The server's certificate, and the requirements for client certificates.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::settings::TlsSettings;

/// Reads certificate, key and authorities. `mutual` listeners require client certificates whatever the mode says.
///
/// # Errors
/// A file cannot be read, or they do not fit together.
pub fn load(settings: &TlsSettings, mutual: bool) -> Result<Arc<ServerConfig>> {
    let chain = certificates(&settings.chain)?;
    anyhow::ensure!(
        !is_version_1(&chain[0]),
        "the certificate {} has X.509 version 1, and TLS here needs version 3; issue it again with an extension, as \
         with openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {} -extfile FILE, where \
         FILE has the line subjectAltName=DNS:NAME",
        settings.chain.display(),
        settings.chain.display()
    );
    let key = private_key(&settings.key)?;
    let versions: &[&rustls::SupportedProtocolVersion] = if settings.only_1_3 {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS12, &rustls::version::TLS13]
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions)?;
    let builder = match verifier(settings, mutual, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key).with_context(|| {
        format!(
            "the certificate {} and the key {} do not fit",
            settings.chain.display(),
            settings.key.display()
        )
    })?;
    Ok(Arc::new(config))
}

/// Reads a private key. Its content decides on its format, because OpenSSL also accepts PKCS#8 labelled RSA.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let cannot_read = || format!("cannot read a private key from {}", path.display());
    let labelled = PrivateKeyDer::from_pem_file(path).with_context(cannot_read)?;
    let key = PrivateKeyDer::try_from(labelled.secret_der()).map_err(anyhow::Error::msg);
    Ok(key.with_context(cannot_read)?.clone_key())
}

fn verifier(
    settings: &TlsSettings,
    mutual: bool,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>> {
    if !mutual && settings.verify_mode == 0 {
        return Ok(None);
    }
    let path = settings.authorities.as_deref().context("client certificates need -o ssl_ca_cert=FILE")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .with_context(|| format!("an authority in {} is not usable", path.display()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if mutual || settings.verify_mode >= 2 { builder } else { builder.allow_unauthenticated() };
    Ok(Some(builder.build()?))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.with_context(|| format!("cannot read certificates from {}", path.display()))?;
    anyhow::ensure!(!found.is_empty(), "{} holds no certificate", path.display());
    Ok(found)
}

/// Returns whether a DER certificate has X.509 version 1, which is encoded by leaving the version out.
fn is_version_1(certificate: &[u8]) -> bool {
    const EXPLICIT_VERSION: u8 = 0xa0;
    const SEQUENCE: u8 = 0x30;
    fn inside(der: &[u8]) -> Option<&[u8]> {
        let [SEQUENCE, length, ..] = *der else { return None };
        let long = if length < 0x80 { 0 } else { usize::from(length - 0x80) };
        der.get(2 + long..)
    }
    let first = inside(certificate).and_then(inside).and_then(|inner| inner.first());
    first.is_some_and(|tag| *tag != EXPLICIT_VERSION)
}
