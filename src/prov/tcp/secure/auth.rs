// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keys of connections: their sources, the checks of a key file, and the transcript that a handshake with a key is bound to.

use super::known;
use super::known::KnownHosts;
use super::noise::{Noise, Proof};
use super::seal::{Cipher, KEY};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::info::{Info, Secret};
use crate::prov::tcp::wire::address::Host;
use crate::prov::tcp::wire::hello::{HELLO_LEN, Hello, Id, NOISE_SINCE, STATIC_SINCE};
use crate::sys::process;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use zeroize::Zeroizing;

const FILE: &str = "GDRFAB_TCP_KEY_FILE";
const MODE: &str = "GDRFAB_TCP_SECURITY";

/// The content of a key file, or a program's `auth_key`.
pub enum Keys {
    /// One secret that all peers share.
    Shared(Secret),
    /// A key pair for each host.
    Hosts(KnownHosts),
}

/// The key of an object opened with `info`: the program's own, else that of the key file, else none.
pub fn key(info: &Info) -> Result<Option<Key>> {
    let keys = match &info.auth_key {
        Some(own) => Some(Keys::Shared(own.clone())),
        None => of_file()?,
    };
    with(config::get().tcp.security.as_deref(), keys)
}

/// The key for a value of `GDRFAB_TCP_SECURITY`. Fails if the value demands a key that is missing, or forbids one that is set.
fn with(mode: Option<&str>, keys: Option<Keys>) -> Result<Option<Key>> {
    match (mode, keys) {
        (Some("none"), Some(_)) => Err(Error::invalid(format!("{MODE}=none, but a key is set (auth_key, {FILE})"))),
        (Some(mode @ ("greeting" | "sealed")), None) => Err(Error::invalid(format!("{MODE}={mode} needs a key (auth_key, {FILE})"))),
        (mode, keys) => keys.map(|keys| Key::of(keys, mode != Some("greeting"))).transpose(),
    }
}

/// The content of the file that `GDRFAB_TCP_KEY_FILE` names, if it names one.
pub fn of_file() -> Result<Option<Keys>> {
    config::get().tcp.key_file.as_deref().map(read).transpose()
}

/// Reads a key file. A file that others can read holds no secret, and a file that others can write does not decide who
/// may connect, so both are refused.
fn read(path: &str) -> Result<Keys> {
    let io = |e: std::io::Error| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("{FILE}={path}: {e}"));
    let refuse = |why: String| Error::new(errno::EACCES, format!("{FILE}={path}: {why}"));
    // O_NONBLOCK: opening a pipe must not block.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).map_err(io)?;
    let facts = file.metadata().map_err(io)?;
    if !facts.is_file() {
        return Err(refuse("is not a regular file".into()));
    }
    // Root as the owner is permitted, because root can read any file anyway; any other owner could have chosen the key.
    if facts.uid() != 0 && facts.uid() != process::euid() {
        return Err(refuse(format!(
            "belongs to user {}; a key file must belong to the user of this process ({}) or to root",
            facts.uid(),
            process::euid()
        )));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(refuse(format!("the group or other users have access to it (mode {:03o}); run chmod 600", facts.mode() & 0o777)));
    }
    // With enough capacity from the start the vector is never moved, which would leave a copy of the key in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(facts.len().min(known::FILE_MAX as u64) as usize + 64));
    file.take(known::FILE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if KnownHosts::has(&bytes) {
        let keys = if bytes.len() > known::FILE_MAX { Err(Error::invalid("is too long")) } else { KnownHosts::parse(&bytes) };
        return keys.map(Keys::Hosts).map_err(|e| e.context(format_args!("{FILE}={path}")));
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    match bytes.len() {
        n if n < Secret::MIN => Err(refuse(format!("has {n} bytes; a key must have {} to {}", Secret::MIN, Secret::MAX))),
        n if n > Secret::MAX => {
            Err(refuse(format!("has more than {} bytes; a key must have {} to {}", Secret::MAX, Secret::MIN, Secret::MAX)))
        }
        _ => Secret::new(&bytes).map(Keys::Shared),
    }
}

#[derive(Clone)]
enum KeyKind {
    /// A key that was derived from the secret that all peers share.
    Shared(Zeroizing<[u8; KEY]>),
    /// A key pair for each host.
    Hosts(KnownHosts),
}

/// The key that both sides of a connection must prove.
#[derive(Clone)]
pub struct Key {
    kind: KeyKind,
    /// True if the frames are sealed after the handshake.
    pub seal: bool,
}

impl Key {
    pub fn of(keys: Keys, seal: bool) -> Result<Key> {
        let kind = match keys {
            Keys::Hosts(known) => KeyKind::Hosts(known),
            Keys::Shared(secret) => {
                let mut mac = keyed(secret.bytes())?;
                mac.update(b"gdrfab tcp 3 psk");
                KeyKind::Shared(Zeroizing::new(mac.finalize().into_bytes().into()))
            }
        };
        Ok(Key { kind, seal })
    }

    /// The first version of the format that supports this kind of key.
    pub fn since(&self) -> u16 {
        if self.id().is_some() { STATIC_SINCE } else { NOISE_SINCE }
    }

    /// The id of this host's own public key, if the host has a key pair of its own.
    pub fn id(&self) -> Option<Id> {
        match &self.kind {
            KeyKind::Shared(_) => None,
            KeyKind::Hosts(known) => Some(known.id()),
        }
    }

    /// The key for a connection to the peer at `at`, which the caller named `to`. For `KeyKind::Hosts` the result has
    /// only the peer of this address or name.
    pub fn for_address(&self, to: &Host, at: SocketAddr) -> Result<Key> {
        let kind = match &self.kind {
            KeyKind::Shared(_) => self.kind.clone(),
            KeyKind::Hosts(known) => KeyKind::Hosts(known.for_address(to, at).map_err(|e| e.context(FILE))?),
        };
        Ok(Key { kind, seal: self.seal })
    }

    /// The key for a connection from a caller whose HELLO has the id `peer`. `None`: the caller may not connect.
    pub fn for_peer(&self, peer: Option<Id>) -> Option<Key> {
        let kind = match (&self.kind, peer) {
            (KeyKind::Shared(_), None) => self.kind.clone(),
            (KeyKind::Hosts(known), Some(id)) => KeyKind::Hosts(known.for_peer(&id)?),
            _ => return None,
        };
        Some(Key { kind, seal: self.seal })
    }
}

/// HELLO and CHALLENGE, which both sides send before any proof. Their nonces are fresh for each connection.
#[derive(Clone, Copy)]
pub struct Transcript {
    pub hello: [u8; HELLO_LEN],
    pub challenge: [u8; HELLO_LEN],
}

impl Transcript {
    /// The prologue of the Noise handshake, which fails unless both sides have the same: HELLO, CHALLENGE, and both
    /// sides' addresses as each side sees them. The prologue has the addresses so that nobody can relay between two
    /// hosts that trust each other.
    pub fn prologue(&self, dialer: SocketAddr, listener: SocketAddr) -> Vec<u8> {
        let mut seen = b"gdrfab tcp 3".to_vec();
        seen.extend_from_slice(&self.hello);
        seen.extend_from_slice(&self.challenge);
        for at in [dialer, listener] {
            let ip = match at.ip().to_canonical() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            seen.extend_from_slice(&ip.octets());
            seen.extend_from_slice(&at.port().to_le_bytes());
        }
        seen
    }

    /// Begins the Noise handshake. CHALLENGE must be in the transcript already.
    pub fn noise(&self, key: &Key, dialer: SocketAddr, listener: SocketAddr, is_dialer: bool) -> Result<Noise> {
        let challenge = Hello::decode(&self.challenge)?;
        let proof = match &key.kind {
            KeyKind::Shared(psk) => Proof::Shared(psk),
            KeyKind::Hosts(known) => {
                let peer = if is_dialer { challenge.id } else { Hello::decode(&self.hello)?.id };
                let pair = peer.and_then(|id| known.pair(&id));
                let (private, peer) = pair.ok_or(Error::fixed(
                    errno::EKEYREJECTED,
                    "the peer's key is not the one that this side's GDRFAB_TCP_KEY_FILE has for its host",
                ))?;
                Proof::Own { private, peer }
            }
        };
        let cipher = if challenge.aes { Cipher::Aes } else { Cipher::ChaCha };
        Noise::new(proof, cipher, &self.prologue(dialer, listener), is_dialer)
    }
}

/// HMAC-SHA256 with this key.
fn keyed(key: &[u8]) -> Result<Hmac<Sha256>> {
    Hmac::new_from_slice(key).map_err(|_| Error::invalid("auth_key: not a usable key"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_code_is_that_of_rfc_4231() {
        // Test cases 2 and 6 of the RFC.
        let mac = |key: &[u8], data: &[u8]| {
            let mut mac = keyed(key).unwrap();
            mac.update(data);
            hex(&mac.finalize().into_bytes())
        };
        assert_eq!(mac(b"Jefe", b"what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(
            mac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn the_prologue_has_every_byte_and_both_addresses() {
        let t = Transcript { hello: [2; 64], challenge: [3; 64] };
        let (dialer, listener) = ("192.0.2.1:7471".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap());
        let seen = t.prologue(dialer, listener);
        assert_eq!(hex(&seen[..12]), hex(b"gdrfab tcp 3"));
        assert_eq!(seen[12..140], [[2; 64], [3; 64]].concat());
        assert_eq!(
            hex(&seen[140..]),
            "00000000000000000000ffffc0000201".to_string() + "2f1d" + "20010db8000000000000000000000001" + "0100"
        );
        assert_eq!(t.prologue("[::ffff:192.0.2.1]:7471".parse().unwrap(), listener), seen);
        assert_ne!(t.prologue(listener, dialer), seen);
    }

    #[test]
    fn a_mode_and_a_key_must_fit() {
        let secret = || Some(Keys::Shared(Secret::new(&[1; 16]).unwrap()));
        let seal = |mode: Option<&str>, secret| with(mode, secret).map(|key| key.map(|key| key.seal));
        assert!(matches!((seal(None, None), seal(Some("none"), None)), (Ok(None), Ok(None))));
        assert!(matches!(seal(None, secret()), Ok(Some(true))) && matches!(seal(Some("sealed"), secret()), Ok(Some(true))));
        assert!(matches!(seal(Some("greeting"), secret()), Ok(Some(false))));
        for (mode, secret) in [("none", secret()), ("greeting", None), ("sealed", None)] {
            let e = seal(Some(mode), secret).unwrap_err();
            assert!(e.errno == errno::EINVAL && e.words.contains(mode) && e.words.contains(MODE), "{e}");
        }
    }

    #[test]
    fn a_key_file_must_be_a_secret_of_the_right_size() {
        let path = std::env::temp_dir().join(format!("gdrfab-key-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let with = |bytes: &[u8], mode: u32| -> Result<Secret> {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match read(name)? {
                Keys::Shared(secret) => Ok(secret),
                Keys::Hosts(_) => panic!("{bytes:?} is a shared key"),
            }
        };
        assert_eq!(with(b"0123456789abcdef\n", 0o600).unwrap().bytes(), b"0123456789abcdef");
        assert_eq!(with(&[9; 1024], 0o400).unwrap().bytes().len(), 1024);
        assert_eq!(with(&[&[9; 1024][..], b"\n"].concat(), 0o400).unwrap().bytes().len(), 1024);
        for (bytes, mode, words) in [
            (&b"0123456789abcde\n"[..], 0o600, "15 bytes"),
            (b"", 0o600, "0 bytes"),
            (&[9; 1025], 0o600, "more than 1024"),
            (&[9; 5000], 0o600, "more than 1024"),
            (b"0123456789abcdef", 0o640, "640"),
            (b"0123456789abcdef", 0o604, "604"),
        ] {
            let e = with(bytes, mode).unwrap_err();
            assert!(e.errno == errno::EACCES && e.words.contains(words) && e.words.contains(name), "{e}");
        }
        // The same for files with keys of hosts; the error names file and line.
        for (file, mode, errno, words) in [
            (b"private 00\n".to_vec(), 0o600, errno::EINVAL, "line 1"),
            (b"private 00\n".to_vec(), 0o644, errno::EACCES, "644"),
            (b"peer \n".repeat(known::FILE_MAX / 6 + 1), 0o600, errno::EINVAL, "too long"),
        ] {
            let e = with(&file, mode).unwrap_err();
            assert!(e.errno == errno && e.words.contains(words) && e.words.contains(name), "{e}");
        }
        // Only root can create a file that belongs to somebody else.
        if process::euid() == 0 {
            with(b"0123456789abcdef", 0o600).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let e = read(name).err().unwrap();
            assert!(e.errno == errno::EACCES && e.words.contains("user 12345"), "{e}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(name).err().unwrap().errno, errno::ENOENT);
        assert!(read("/").is_err());
    }
}
