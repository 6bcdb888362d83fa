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
    let key = PrivateKeyDer::from_pem_file(&settings.key)
        .with_context(|| format!("cannot read a private key from {}", settings.key.display()))?;
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
