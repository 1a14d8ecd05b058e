// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Noise handshake of two sides that have a key: `Noise_NNpsk0_25519`, by the crate snow, with the primitives of ring and
//! sha2. It knows neither sockets nor what its messages say.

use super::seal::{Cipher, Half, KEY, Seal, TAG};
use crate::error::{Error, Result, errno};
use crate::sys::process;
use ring::aead::{Aad, LessSafeKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use sha2::{Digest, Sha256};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{self, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use std::sync::Mutex;

/// Bytes of an ephemeral key, with which each message begins.
pub const EPHEMERAL: usize = 32;
/// Bytes by which a message is longer than what it says.
pub const LONGER: usize = EPHEMERAL + TAG;

/// One side of a handshake.
pub struct Noise {
    state: HandshakeState,
    cipher: Cipher,
    is_dialer: bool,
}

/// What a message of the peer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong;

#[cold]
fn failed(e: snow::Error) -> Error {
    Error::new(errno::EIO, format!("the handshake's cryptography failed: {e}"))
}

impl Noise {
    /// `psk`: what both sides know; `prologue`: what both have seen, or the handshake fails.
    pub fn new(psk: &[u8; KEY], cipher: Cipher, prologue: &[u8], is_dialer: bool) -> Result<Noise> {
        let name = match cipher {
            Cipher::ChaCha => "Noise_NNpsk0_25519_ChaChaPoly_SHA256",
            Cipher::Aes => "Noise_NNpsk0_25519_AESGCM_SHA256",
        };
        let build = || {
            let builder = Builder::with_resolver(name.parse()?, Box::new(Primitives)).prologue(prologue)?.psk(0, psk)?;
            if is_dialer { builder.build_initiator() } else { builder.build_responder() }
        };
        Ok(Noise { state: build().map_err(failed)?, cipher, is_dialer })
    }

    /// This side's message, with its ephemeral key first.
    pub fn write(&mut self, says: &[u8]) -> Result<Vec<u8>> {
        let mut message = vec![0; says.len() + LONGER];
        let n = self.state.write_message(says, &mut message).map_err(failed)?;
        message.truncate(n);
        Ok(message)
    }

    /// What the peer's message says; `Wrong`: the peer does not know the key, or has seen something else.
    pub fn read(&mut self, message: &[u8]) -> std::result::Result<Vec<u8>, Wrong> {
        let mut says = vec![0; message.len()];
        let n = self.state.read_message(message, &mut says).map_err(|_| Wrong)?;
        says.truncate(n);
        Ok(says)
    }

    /// The session's keys, once both messages were said.
    pub fn split(mut self) -> Result<Seal> {
        if !self.state.is_handshake_finished() {
            return Err(Error::fixed(errno::EIO, "the handshake is not over"));
        }
        let (dialers, listeners) = self.state.dangerously_get_raw_split();
        let (out, come) = if self.is_dialer { (dialers, listeners) } else { (listeners, dialers) };
        Ok(Seal { out: Half::new(self.cipher, &out)?, come: Half::new(self.cipher, &come)? })
    }
}

/// Where snow gets its primitives.
struct Primitives;

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Kernel))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(Ephemeral::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha(Sha256::new())) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn types::Cipher>> {
        let cipher = match choice {
            CipherChoice::AESGCM => Cipher::Aes,
            CipherChoice::ChaChaPoly => Cipher::ChaCha,
        };
        Some(Box::new(Keyed { cipher, key: cipher.key(&[0; KEY])? }))
    }
}

struct Kernel;

impl Random for Kernel {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> std::result::Result<(), snow::Error> {
        process::random(into).map_err(|_| snow::Error::Rng)
    }
}

/// A key of X25519 that is made for one handshake and used once, which is all that NN does with one.
#[derive(Default)]
struct Ephemeral {
    own: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; EPHEMERAL],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        EPHEMERAL
    }

    fn priv_len(&self) -> usize {
        KEY
    }

    /// No pattern of ours has static keys.
    fn set(&mut self, _: &[u8]) {}

    fn generate(&mut self, _: &mut dyn Random) -> std::result::Result<(), snow::Error> {
        let own = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| snow::Error::Rng)?;
        let public = own.compute_public_key().map_err(|_| snow::Error::Rng)?;
        self.public = public.as_ref().try_into().map_err(|_| snow::Error::Rng)?;
        self.own = Mutex::new(Some(own));
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    /// ring gives it to nobody.
    fn privkey(&self) -> &[u8] {
        &[]
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> std::result::Result<(), snow::Error> {
        let own = self.own.lock().ok().and_then(|mut own| own.take()).ok_or(snow::Error::Dh)?;
        let theirs = theirs.get(..EPHEMERAL).ok_or(snow::Error::Dh)?;
        agree_ephemeral(own, &UnparsedPublicKey::new(&X25519, theirs), |shared| match out.get_mut(..shared.len()) {
            Some(place) => {
                place.copy_from_slice(shared);
                Ok(())
            }
            None => Err(snow::Error::Dh),
        })
        .map_err(|_| snow::Error::Dh)?
    }
}

struct Sha(Sha256);

impl Hash for Sha {
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

struct Keyed {
    cipher: Cipher,
    key: LessSafeKey,
}

impl types::Cipher for Keyed {
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

    /// Nothing, if there is no room: a message without its end is no message.
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
    use crate::prov::tcp::seal::{LENGTH, REKEY, Sealer};

    const CIPHERS: [Cipher; 2] = [Cipher::ChaCha, Cipher::Aes];

    fn meet(cipher: Cipher) -> (Noise, Noise) {
        let mut dialer = Noise::new(&[3; KEY], cipher, b"seen", true).unwrap();
        let mut listener = Noise::new(&[3; KEY], cipher, b"seen", false).unwrap();
        let first = dialer.write(b"hello").unwrap();
        assert_eq!(first.len(), 5 + LONGER);
        assert_eq!(listener.read(&first).unwrap(), b"hello");
        let second = listener.write(b"").unwrap();
        assert_eq!(second.len(), LONGER);
        assert_eq!(dialer.read(&second).unwrap(), b"");
        (dialer, listener)
    }

    #[test]
    fn two_that_have_the_key_meet_and_each_direction_has_its_own() {
        for cipher in CIPHERS {
            let (one, two) = meet(cipher);
            let (one, two) = (one.split().unwrap(), two.split().unwrap());
            for (from, to) in [(one.out, two.come), (two.out, one.come)] {
                let (mut sealer, mut opener) = (Sealer::new(from), super::super::seal::Opener::new(to));
                let mut buf = vec![4; 200];
                sealer.seal(&mut buf, 100).unwrap();
                opener.came(sealer.rest(&buf).len());
                let (from, to) = opener.open(&mut buf, (0, 0)).unwrap().unwrap();
                assert_eq!(buf[from..to], [4; 100]);
            }
        }
    }

    /// snow itself opens what ours seals, over a change of keys.
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
        let first = Noise::new(&[3; KEY], Cipher::Aes, b"seen", true).unwrap().write(b"hello").unwrap();
        for (psk, cipher, seen) in [(4, Cipher::Aes, b"seen"), (3, Cipher::Aes, b"Seen"), (3, Cipher::ChaCha, b"seen")] {
            assert_eq!(Noise::new(&[psk; KEY], cipher, seen, false).unwrap().read(&first), Err(Wrong));
        }
        for at in 0..first.len() {
            let mut bad = first.clone();
            bad[at] ^= 1;
            assert_eq!(Noise::new(&[3; KEY], Cipher::Aes, b"seen", false).unwrap().read(&bad), Err(Wrong), "{at}");
            assert_eq!(Noise::new(&[3; KEY], Cipher::Aes, b"seen", false).unwrap().read(&first[..at]), Err(Wrong), "{at}");
        }
    }

    #[test]
    fn an_answer_is_for_one_question() {
        let new = |is_dialer| Noise::new(&[3; KEY], Cipher::Aes, b"seen", is_dialer).unwrap();
        let (mut one, mut other, mut listener) = (new(true), new(true), new(false));
        let first = one.write(b"hello").unwrap();
        other.write(b"hello").unwrap();
        listener.read(&first).unwrap();
        let answer = listener.write(b"welcome").unwrap();
        assert_eq!(other.read(&answer), Err(Wrong));
        let mut bad = answer.clone();
        bad[40] ^= 1;
        let mut third = new(true);
        third.write(b"hello").unwrap();
        assert_eq!(third.read(&bad), Err(Wrong));
        assert!(third.split().is_err());
        assert_eq!(one.read(&answer).unwrap(), b"welcome");
        assert!(one.split().is_ok() && listener.split().is_ok());
    }
}
