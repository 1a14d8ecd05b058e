// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Noise handshake, by the crate `snow` with primitives of ring, sha2 and curve25519-dalek: `NNpsk0` for a shared
//! key, `KK` for hosts that have their own key pairs. Everything here happens in memory; `handshake` has the sockets
//! and the meaning of the messages.

use super::seal::{Cipher, CipherState, KEY, Seal, TAG};
use crate::error::{Error, Result, errno};
use crate::prov::tcp::wire::hello::EPHEMERAL;
use crate::sys::process;
use curve25519_dalek::constants::X25519_BASEPOINT;
use curve25519_dalek::montgomery::MontgomeryPoint;
use curve25519_dalek::traits::IsIdentity;
use ring::aead::{Aad, LessSafeKey};
use sha2::{Digest, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{self, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

/// Bytes that a message has beyond its payload.
pub const OVERHEAD: usize = EPHEMERAL + TAG;

/// The public key of a private key.
pub fn public_of(private: &[u8; KEY]) -> [u8; KEY] {
    X25519_BASEPOINT.mul_clamped(*private).to_bytes()
}

/// The X25519 shared secret of a private and a public key. `None` for a public key of low order, with which everybody would get the
/// same secret.
pub fn shared_secret(private: &[u8; KEY], public: &[u8; KEY]) -> Option<[u8; KEY]> {
    let shared = MontgomeryPoint(*public).mul_clamped(*private);
    (!shared.is_identity()).then(|| shared.to_bytes())
}

/// The proof that a side gives, and demands from its peer.
#[derive(Clone, Copy)]
pub enum Proof<'a> {
    /// Each side proves that it knows this shared key.
    Shared(&'a [u8; KEY]),
    /// This side proves that it has the private key `private`. The peer proves that it has the private key of the
    /// public key `peer`.
    Own { private: &'a [u8; KEY], peer: &'a [u8; KEY] },
}

/// One side of a handshake.
pub struct Noise {
    state: HandshakeState,
    cipher: Cipher,
    is_dialer: bool,
}

/// The peer's message does not decrypt: the peer has another key, or has seen another transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeMismatch;

#[cold]
fn failed(e: snow::Error) -> Error {
    Error::new(errno::EIO, format!("the handshake's cryptography failed: {e}"))
}

impl Noise {
    /// `prologue`: the data of which both sides must have the same bytes, or the handshake fails.
    pub fn new(proof: Proof<'_>, cipher: Cipher, prologue: &[u8], is_dialer: bool) -> Result<Noise> {
        let name = match (proof, cipher) {
            (Proof::Shared(_), Cipher::ChaCha) => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
            (Proof::Shared(_), Cipher::Aes) => "Noise_NNpsk0_25519_AESGCM_SHA256",
            (Proof::Own { .. }, Cipher::ChaCha) => "Noise_KK_25519_ChaChaPoly_SHA256",
            (Proof::Own { .. }, Cipher::Aes) => "Noise_KK_25519_AESGCM_SHA256",
        };
        let build = || {
            let builder = Builder::with_resolver(name.parse()?, Box::new(Primitives)).prologue(prologue)?;
            let builder = match proof {
                Proof::Shared(psk) => builder.psk(0, psk)?,
                Proof::Own { private, peer } => builder.local_private_key(private)?.remote_public_key(peer)?,
            };
            if is_dialer { builder.build_initiator() } else { builder.build_responder() }
        };
        Ok(Noise { state: build().map_err(failed)?, cipher, is_dialer })
    }

    /// Encrypts `says`, this side's message. The result begins with this side's ephemeral key.
    pub fn write(&mut self, says: &[u8]) -> Result<Vec<u8>> {
        let mut message = vec![0; says.len() + OVERHEAD];
        let n = self.state.write_message(says, &mut message).map_err(failed)?;
        message.truncate(n);
        Ok(message)
    }

    /// Decrypts the peer's message, which begins with the peer's ephemeral key.
    pub fn read(&mut self, message: &[u8]) -> std::result::Result<Vec<u8>, HandshakeMismatch> {
        let mut says = vec![0; message.len()];
        let n = self.state.read_message(message, &mut says).map_err(|_| HandshakeMismatch)?;
        says.truncate(n);
        Ok(says)
    }

    /// The ciphers of the connection. Both messages must have been exchanged.
    pub fn split(mut self) -> Result<Seal> {
        if !self.state.is_handshake_finished() {
            return Err(Error::fixed(errno::EIO, "the handshake is not over"));
        }
        let (dialers, listeners) = self.state.dangerously_get_raw_split();
        let (out, incoming) = if self.is_dialer { (dialers, listeners) } else { (listeners, dialers) };
        Ok(Seal { out: CipherState::new(self.cipher, &out)?, incoming: CipherState::new(self.cipher, &incoming)? })
    }
}

/// The cryptographic primitives that snow calls.
struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(KernelRandom))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(KeyPair::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(NoiseSha256(Sha256::new())) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn types::Cipher>> {
        let cipher = match choice {
            CipherChoice::AESGCM => Cipher::Aes,
            CipherChoice::ChaChaPoly => Cipher::ChaCha,
        };
        Some(Box::new(NoiseCipher { cipher, key: cipher.key(&[0; KEY])? }))
    }
}

struct KernelRandom;

impl Random for KernelRandom {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> std::result::Result<(), snow::Error> {
        process::random(into).map_err(|_| snow::Error::Rng)
    }
}

/// An X25519 key pair: a host's own, or an ephemeral one.
#[derive(Default)]
struct KeyPair {
    private: Zeroizing<[u8; KEY]>,
    public: [u8; KEY],
}

impl Dh for KeyPair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        EPHEMERAL
    }

    fn priv_len(&self) -> usize {
        KEY
    }

    fn set(&mut self, private: &[u8]) {
        if let Some(private) = private.first_chunk() {
            (*self.private, self.public) = (*private, public_of(private));
        }
    }

    fn generate(&mut self, from: &mut dyn Random) -> std::result::Result<(), snow::Error> {
        let mut private = Zeroizing::new([0; KEY]);
        from.try_fill_bytes(&mut *private)?;
        self.set(&*private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private[..]
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> std::result::Result<(), snow::Error> {
        let shared = theirs.first_chunk().and_then(|theirs| shared_secret(&self.private, theirs)).ok_or(snow::Error::Dh)?;
        out.get_mut(..KEY).ok_or(snow::Error::Dh)?.copy_from_slice(&shared);
        Ok(())
    }
}

struct NoiseSha256(Sha256);

impl Hash for NoiseSha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        self.0 = Sha256::new();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        if let Some(place) = out.get_mut(..32) {
            place.copy_from_slice(&std::mem::take(&mut self.0).finalize());
        }
    }
}

struct NoiseCipher {
    cipher: Cipher,
    key: LessSafeKey,
}

impl types::Cipher for NoiseCipher {
    fn name(&self) -> &'static str {
        match self.cipher {
            Cipher::ChaCha => "ChaChaPoly",
            Cipher::Aes => "AESGCM",
        }
    }

    fn set(&mut self, raw: &[u8; KEY]) {
        if let Some(key) = self.cipher.key(raw) {
            self.key = key;
        }
    }

    /// Returns 0 if `out` is too short: a part of a message is of no use.
    fn encrypt(&self, number: u64, seen: &[u8], says: &[u8], out: &mut [u8]) -> usize {
        let Some((text, rest)) = out.split_at_mut_checked(says.len()) else { return 0 };
        let Some(place) = rest.first_chunk_mut::<TAG>() else { return 0 };
        text.copy_from_slice(says);
        match self.key.seal_in_place_separate_tag(self.cipher.nonce(number), Aad::from(seen), text) {
            Ok(tag) => {
                place.copy_from_slice(tag.as_ref());
                says.len() + TAG
            }
            Err(_) => {
                text.fill(0);
                0
            }
        }
    }

    fn decrypt(&self, number: u64, seen: &[u8], sealed: &[u8], out: &mut [u8]) -> std::result::Result<usize, snow::Error> {
        let mut text = sealed.to_vec();
        let opened = self.key.open_in_place(self.cipher.nonce(number), Aad::from(seen), &mut text);
        let opened = opened.map_err(|_| snow::Error::Decrypt)?;
        out.get_mut(..opened.len()).ok_or(snow::Error::Decrypt)?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::tcp::secure::seal::{LENGTH, REKEY, Sealer};

    const CIPHERS: [Cipher; 2] = [Cipher::ChaCha, Cipher::Aes];

    fn meet(cipher: Cipher) -> (Noise, Noise) {
        let mut dialer = Noise::new(Proof::Shared(&[3; KEY]), cipher, b"seen", true).unwrap();
        let mut listener = Noise::new(Proof::Shared(&[3; KEY]), cipher, b"seen", false).unwrap();
        let first = dialer.write(b"hello").unwrap();
        assert_eq!(first.len(), 5 + OVERHEAD);
        assert_eq!(listener.read(&first).unwrap(), b"hello");
        let second = listener.write(b"").unwrap();
        assert_eq!(second.len(), OVERHEAD);
        assert_eq!(dialer.read(&second).unwrap(), b"");
        (dialer, listener)
    }

    #[test]
    fn two_that_have_the_key_meet_and_each_direction_has_its_own() {
        for cipher in CIPHERS {
            let (one, two) = meet(cipher);
            let (one, two) = (one.split().unwrap(), two.split().unwrap());
            for (from, to) in [(one.out, two.incoming), (two.out, one.incoming)] {
                let (mut sealer, mut opener) = (Sealer::new(from), crate::prov::tcp::secure::seal::Opener::new(to));
                let mut buf = vec![4; 200];
                sealer.seal(&mut buf, 100).unwrap();
                opener.came(sealer.rest(&buf).len());
                let (from, to) = opener.open(&mut buf, (0, 0)).unwrap().unwrap();
                assert_eq!(buf[from..to], [4; 100]);
            }
        }
    }

    /// snow itself opens records that `seal` makes, over a change of keys.
    #[test]
    fn a_record_is_a_transport_message_of_noise() {
        for cipher in CIPHERS {
            let (one, two) = meet(cipher);
            let (mut sealer, mut theirs) = (Sealer::new(one.split().unwrap().out), two.state.into_transport_mode().unwrap());
            let mut buf = vec![0; 64];
            for number in 0..REKEY + 3 {
                buf[LENGTH..LENGTH + 8].copy_from_slice(&number.to_le_bytes());
                sealer.seal(&mut buf, 8).unwrap();
                let (len, mut says) = (sealer.rest(&buf).len(), [0; 64]);
                if number == REKEY {
                    theirs.rekey_incoming();
                }
                assert_eq!(theirs.read_message(&buf[LENGTH..len], &mut says).unwrap(), 8);
                assert_eq!(says[..8], number.to_le_bytes());
                sealer.left(len);
            }
        }
    }

    #[test]
    fn another_key_prologue_or_cipher_is_wrong() {
        let first = Noise::new(Proof::Shared(&[3; KEY]), Cipher::Aes, b"seen", true).unwrap().write(b"hello").unwrap();
        for (psk, cipher, seen) in [(4, Cipher::Aes, b"seen"), (3, Cipher::Aes, b"Seen"), (3, Cipher::ChaCha, b"seen")] {
            assert_eq!(Noise::new(Proof::Shared(&[psk; KEY]), cipher, seen, false).unwrap().read(&first), Err(HandshakeMismatch));
        }
        for at in 0..first.len() {
            let mut bad = first.clone();
            bad[at] ^= 1;
            assert_eq!(
                Noise::new(Proof::Shared(&[3; KEY]), Cipher::Aes, b"seen", false).unwrap().read(&bad),
                Err(HandshakeMismatch),
                "{at}"
            );
            assert_eq!(
                Noise::new(Proof::Shared(&[3; KEY]), Cipher::Aes, b"seen", false).unwrap().read(&first[..at]),
                Err(HandshakeMismatch),
                "{at}"
            );
        }
    }

    /// A dialer or listener with one private key that expects the peer to have another.
    fn own(private: u8, peer: u8, is_dialer: bool) -> Noise {
        Noise::new(Proof::Own { private: &[private; KEY], peer: &public_of(&[peer; KEY]) }, Cipher::Aes, b"seen", is_dialer).unwrap()
    }

    #[test]
    fn two_that_know_each_others_public_key_meet_and_nobody_else() {
        let (mut dialer, mut listener) = (own(1, 2, true), own(2, 1, false));
        let first = dialer.write(b"hello").unwrap();
        assert_eq!((first.len(), listener.read(&first).unwrap()), (5 + OVERHEAD, b"hello".to_vec()));
        let second = listener.write(b"").unwrap();
        assert_eq!((second.len(), dialer.read(&second).unwrap()), (OVERHEAD, Vec::new()));
        assert!(dialer.split().is_ok() && listener.split().is_ok());
        // Another private key, another expected key, or a shared key: neither message is accepted.
        assert_eq!(own(2, 3, false).read(&first), Err(HandshakeMismatch));
        assert_eq!(own(3, 1, false).read(&first), Err(HandshakeMismatch));
        assert_eq!(
            Noise::new(Proof::Shared(&public_of(&[1; KEY])), Cipher::Aes, b"seen", false).unwrap().read(&first),
            Err(HandshakeMismatch)
        );
        let mut dialer = own(1, 2, true);
        let (first, mut other) = (dialer.write(b"").unwrap(), own(3, 1, false));
        // `other` gets a dialer's ephemeral key and knows all public keys, but has not the private key that `dialer` expects.
        other.read(&own(1, 3, true).write(b"").unwrap()).unwrap();
        assert_eq!(dialer.read(&other.write(b"").unwrap()), Err(HandshakeMismatch));
        for len in 0..first.len() {
            assert_eq!(own(2, 1, false).read(&first[..len]), Err(HandshakeMismatch), "{len}");
            let mut bent = first.clone();
            bent[len] ^= 1;
            assert_eq!(own(2, 1, false).read(&bent), Err(HandshakeMismatch), "{len}");
        }
    }

    /// With a public key of low order, everybody would get the same secret.
    #[test]
    fn a_key_that_proves_nothing_is_refused() {
        let mut eight = [0; KEY];
        for (place, byte) in eight.iter_mut().zip("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800".as_bytes().chunks(2)) {
            *place = u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 16).unwrap();
        }
        let mut one = [0; KEY];
        one[0] = 1;
        for weak in [[0; KEY], one, eight] {
            assert_eq!(shared_secret(&[7; KEY], &weak), None);
            let mut listener = own(2, 1, false);
            assert_eq!(listener.read(&[&weak[..], &[0; TAG]].concat()), Err(HandshakeMismatch));
            let proof = Proof::Own { private: &[1; KEY], peer: &weak };
            assert!(Noise::new(proof, Cipher::Aes, b"", true).unwrap().write(b"").is_err());
        }
        assert_eq!(shared_secret(&[7; KEY], &public_of(&[8; KEY])), shared_secret(&[8; KEY], &public_of(&[7; KEY])));
    }

    /// Noise_KK_25519_*_SHA256 of cacophony's test vectors.
    #[test]
    fn kk_is_the_published_one() {
        let hex =
            |text: &str| -> Vec<u8> { (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect() };
        let keys = [
            "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
            "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
            "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
            "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        ];
        let [dialers, listeners, ephemeral, answers] = keys.map(|key| <[u8; KEY]>::try_from(hex(key)).unwrap());
        assert_eq!(public_of(&dialers).to_vec(), hex("6bc3822a2aa7f4e6981d6538692b3cdf3e6df9eea6ed269eb41d93c22757b75a"));
        let vectors = [
            (
                "Noise_KK_25519_AESGCM_SHA256",
                Cipher::Aes,
                [
                    "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79448564738a841228e693caeec4c497a8bd562231c3e51a1f03c4fd45dfe3a67870",
                    "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843b94504c4d83506f5dd2568b68490eba8ed6f9cf2cca194a273c56d7ae3c558",
                    "6a5c10a201d4e3a08f79f64949e55731f774913a4d949bda3fcebf",
                ],
            ),
            (
                "Noise_KK_25519_ChaChaPoly_SHA256",
                Cipher::ChaCha,
                [
                    "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79440177015efc1fe7a37c629af7120a96274e6ab7afcc9261901d0e09ae32a5bb96",
                    "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843b274d3429adc47ca093ba63ef90f8da89fda108db471dccfa4894aa7b00003",
                    "966b05bc69ec01b8454d3160a214e6f24a3d884eb31ec2408af63f",
                ],
            ),
        ];
        for (name, cipher, messages) in vectors {
            let side = |private: &[u8; KEY], peer: &[u8; KEY], once: &[u8; KEY], is_dialer: bool| {
                let peer = public_of(peer);
                let builder = Builder::with_resolver(name.parse().unwrap(), Box::new(Primitives)).prologue(b"John Galt").unwrap();
                let builder = builder.local_private_key(private).unwrap().remote_public_key(&peer).unwrap();
                let builder = builder.fixed_ephemeral_key_for_testing_only(once);
                let state = if is_dialer { builder.build_initiator() } else { builder.build_responder() };
                Noise { state: state.unwrap(), cipher, is_dialer }
            };
            let (mut dialer, mut listener) = (side(&dialers, &listeners, &ephemeral, true), side(&listeners, &dialers, &answers, false));
            assert_eq!(dialer.write(b"Ludwig von Mises").unwrap(), hex(messages[0]));
            assert_eq!(listener.read(&hex(messages[0])).unwrap(), b"Ludwig von Mises");
            assert_eq!(listener.write(b"Murray Rothbard").unwrap(), hex(messages[1]));
            assert_eq!(dialer.read(&hex(messages[1])).unwrap(), b"Murray Rothbard");
            let (mut sealer, mut buf) = (Sealer::new(dialer.split().unwrap().out), vec![0; 64]);
            buf[LENGTH..LENGTH + 11].copy_from_slice(b"F. A. Hayek");
            sealer.seal(&mut buf, 11).unwrap();
            assert_eq!(sealer.rest(&buf)[LENGTH..], hex(messages[2]));
        }
    }

    #[test]
    fn an_answer_is_for_one_question() {
        let new = |is_dialer| Noise::new(Proof::Shared(&[3; KEY]), Cipher::Aes, b"seen", is_dialer).unwrap();
        let (mut one, mut other, mut listener) = (new(true), new(true), new(false));
        let first = one.write(b"hello").unwrap();
        other.write(b"hello").unwrap();
        listener.read(&first).unwrap();
        let answer = listener.write(b"welcome").unwrap();
        assert_eq!(other.read(&answer), Err(HandshakeMismatch));
        let mut bad = answer.clone();
        bad[40] ^= 1;
        let mut third = new(true);
        third.write(b"hello").unwrap();
        assert_eq!(third.read(&bad), Err(HandshakeMismatch));
        assert!(third.split().is_err());
        assert_eq!(one.read(&answer).unwrap(), b"welcome");
        assert!(one.split().is_ok() && listener.split().is_ok());
    }
}
