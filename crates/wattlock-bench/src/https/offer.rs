//! What a client offers, as rustls has it: no signature verified, no certificate looked at, key exchanges that cost next to
//! nothing (see `groups`).
//!
//! Such a client trusts everybody. It is for measuring servers on loopback and for nothing else.

use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme,
    SupportedCipherSuite, SupportedProtocolVersion,
};

use super::groups::Group;

/// What a client offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The one version.
    pub version: &'static SupportedProtocolVersion,
    /// Groups in order of preference.
    pub groups: &'a [Group],
    /// The one suite; none: AES-256-GCM. One with CBC goes without encrypt-then-MAC, which rustls never offers.
    pub suite: Option<CipherSuite>,
    /// Whether it knows signatures by ECDSA, too, and prefers them to RSA's.
    pub ecdsa: bool,
    /// Whether it keeps sessions and resumes them.
    pub resumes: bool,
}

impl<'a> Offer<'a> {
    /// AES-256-GCM, any signature, and nothing is resumed.
    pub fn new(version: &'static SupportedProtocolVersion, groups: &'a [Group]) -> Offer<'a> {
        Offer { version, groups, suite: None, ecdsa: true, resumes: false }
    }

    /// The same as rustls has it. Sessions are this value's own.
    ///
    /// # Errors
    /// A version without a cipher suite, or an unknown suite.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        let suites = self.suite.map_or_else(|| Ok(default_suites()), known)?;
        self.of(&[self.version], suites)
    }

    /// As a browser offers it: TLS 1.3 and 1.2, and each suite of AES-GCM and ChaCha20 that rustls has. Versions and suite
    /// of this value do not count.
    ///
    /// # Errors
    /// None that rustls knows.
    pub fn browser(&self) -> Result<Arc<ClientConfig>> {
        self.of(&[&TLS13, &TLS12], aws_lc_rs::default_provider().cipher_suites)
    }

    fn of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        cipher_suites: Vec<SupportedCipherSuite>,
    ) -> Result<Arc<ClientConfig>> {
        let kx_groups = self.groups.iter().map(|group| group.fixed()).collect();
        let provider = CryptoProvider { kx_groups, cipher_suites, ..aws_lc_rs::default_provider() };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustsEverybody { ecdsa: self.ecdsa }))
            .with_no_client_auth();
        config.resumption = match self.resumes {
            true => Resumption::store(Arc::new(Sessions(ClientSessionMemoryCache::new(16)))),
            false => Resumption::disabled(),
        };
        Ok(Arc::new(config))
    }
}

/// Says yes to every certificate and every signature.
#[derive(Debug)]
struct TrustsEverybody {
    /// Whether it says to know ECDSA. It prefers that: a server with both certificates shows this one.
    ecdsa: bool,
}

impl ServerCertVerifier for TrustsEverybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let schemes = [
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::RSA_PKCS1_SHA384,
        ];
        schemes[if self.ecdsa { 0 } else { 2 }..].to_vec()
    }
}

/// Sessions, and no memory of the group that a server took: a client offers the same shares however often it comes, as
/// browsers do.
#[derive(Debug)]
struct Sessions(ClientSessionMemoryCache);

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, server: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.0.set_tls12_session(server, session);
    }

    fn tls12_session(&self, server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(server)
    }

    fn remove_tls12_session(&self, server: &ServerName<'static>) {
        self.0.remove_tls12_session(server);
    }

    fn insert_tls13_ticket(&self, server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(server, ticket);
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(server)
    }
}

fn known(suite: CipherSuite) -> Result<Vec<SupportedCipherSuite>> {
    let mut of_rustls = aws_lc_rs::ALL_CIPHER_SUITES.iter().copied();
    let suite = super::cbc::suite(suite).or_else(|| of_rustls.find(|one| one.suite() == suite));
    Ok(vec![suite.context("no such cipher suite here")?])
}

fn default_suites() -> Vec<SupportedCipherSuite> {
    let mut provider: CryptoProvider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| {
        matches!(
            suite.suite(),
            CipherSuite::TLS13_AES_256_GCM_SHA384
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        )
    });
    provider.cipher_suites
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_offers_the_same_shares_however_often_it_comes() {
        let sessions = Sessions(ClientSessionMemoryCache::new(16));
        let server = ServerName::try_from("localhost").unwrap();
        sessions.set_kx_hint(server.clone(), NamedGroup::X25519);
        assert_eq!(sessions.kx_hint(&server), None);
    }

    #[test]
    fn every_version_has_a_suite_and_takes_any_key_of_a_server() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = Offer::new(version, &[Group::P384]).config().unwrap();
            assert!(!config.crypto_provider().cipher_suites.is_empty());
            assert_eq!(config.crypto_provider().kx_groups[0].name(), rustls::NamedGroup::secp384r1);
        }
    }
}
