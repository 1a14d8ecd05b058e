// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may connect: where the shared key comes from, and the proofs that a side knows it.

use super::hello::{HEAD_PROVEN, HELLO_LEN, PROOF_LEN};
use crate::config;
use crate::error::{Error, Result, errno};
use crate::prov::info::{Info, Secret};
use crate::sys::process;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

const FILE: &str = "GDRFAB_TCP_KEY_FILE";

/// The key that an object opened with `info` uses: the program's own, else that of the file, else none.
pub fn key(info: &Info) -> Result<Option<Secret>> {
    match &info.auth_key {
        Some(own) => Ok(Some(own.clone())),
        None => of_file(),
    }
}

/// The key of `GDRFAB_TCP_KEY_FILE`; none where that is unset.
pub fn of_file() -> Result<Option<Secret>> {
    config::get().tcp.key_file.as_deref().map(read).transpose()
}

/// Reads a key. A file that others may read is no secret.
fn read(path: &str) -> Result<Secret> {
    let io = |e: std::io::Error| Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("{FILE}={path}: {e}"));
    let refuse = |why: String| Error::new(errno::EACCES, format!("{FILE}={path}: {why}"));
    // A pipe under that name must not make the open wait.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).map_err(io)?;
    let facts = file.metadata().map_err(io)?;
    if !facts.is_file() {
        return Err(refuse("is no regular file".into()));
    }
    // Root could have read it anyhow; anybody else who owns it chose the key.
    if facts.uid() != 0 && facts.uid() != process::euid() {
        return Err(refuse(format!(
            "belongs to user {}; a key's file belongs to who uses it ({}), or to root",
            facts.uid(),
            process::euid()
        )));
    }
    if facts.mode() & 0o077 != 0 {
        return Err(refuse(format!("group or others have rights to it (mode {:03o}); chmod 600", facts.mode() & 0o777)));
    }
    let mut bytes = Vec::with_capacity(Secret::MAX + 2);
    file.take(Secret::MAX as u64 + 2).read_to_end(&mut bytes).map_err(io)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    match bytes.len() {
        n if n < Secret::MIN => Err(refuse(format!("has {n} bytes; a key has {} to {}", Secret::MIN, Secret::MAX))),
        n if n > Secret::MAX => Err(refuse(format!("has more than {} bytes; a key has {} to {}", Secret::MAX, Secret::MIN, Secret::MAX))),
        _ => Secret::new(&bytes),
    }
}

/// Which side proves something: what one says is of no use to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Dialer,
    Listener,
}

impl Side {
    fn label(self) -> &'static [u8] {
        match self {
            Side::Dialer => b"gdrfab tcp 1 dialer",
            Side::Listener => b"gdrfab tcp 1 listener",
        }
    }
}

/// What both sides of a connection have said before they prove anything; the nonces in it are this connection's alone.
#[derive(Clone, Copy)]
pub struct Transcript {
    pub hello: [u8; HELLO_LEN],
    pub challenge: [u8; HELLO_LEN],
}

impl Transcript {
    fn mac(&self, key: &Secret, side: Side, head: &[u8; HEAD_PROVEN], body: &[u8]) -> Result<Hmac<Sha256>> {
        let mut mac = keyed(key.bytes())?;
        for part in [side.label(), &self.hello, &self.challenge, head, body] {
            mac.update(part);
        }
        Ok(mac)
    }

    /// The proof that `side` knows the key, bound to this connection and to what it says.
    pub fn proof(&self, key: &Secret, side: Side, head: &[u8; HEAD_PROVEN], body: &[u8]) -> Result<[u8; PROOF_LEN]> {
        Ok(self.mac(key, side, head, body)?.finalize().into_bytes().into())
    }

    /// Whether that is `side`'s proof. Takes as long for any wrong one.
    pub fn is_proven(&self, key: &Secret, side: Side, head: &[u8; HEAD_PROVEN], body: &[u8], proof: &[u8; PROOF_LEN]) -> Result<bool> {
        Ok(self.mac(key, side, head, body)?.verify_slice(proof).is_ok())
    }
}

fn keyed(key: &[u8]) -> Result<Hmac<Sha256>> {
    Hmac::new_from_slice(key).map_err(|_| Error::invalid("auth_key: of no use as a key"))
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
    fn a_proof_covers_its_label_and_every_byte() {
        let key = Secret::new(&[1; 16]).unwrap();
        let t = Transcript { hello: [2; 64], challenge: [3; 64] };
        let (head, body) = ([4; 16], [5; 40]);
        let mut plain = keyed(key.bytes()).unwrap();
        plain.update(b"gdrfab tcp 1 dialer");
        plain.update(&[[2; 64], [3; 64]].concat());
        plain.update(&[4; 16]);
        plain.update(&[5; 40]);
        let proof = t.proof(&key, Side::Dialer, &head, &body).unwrap();
        assert_eq!(hex(&proof), hex(&plain.finalize().into_bytes()));
        let good = |t: &Transcript, key: &Secret, side, head: &[u8; 16], body: &[u8], proof: &[u8; 32]| {
            t.is_proven(key, side, head, body, proof).unwrap()
        };
        assert!(good(&t, &key, Side::Dialer, &head, &body, &proof));
        assert!(!good(&t, &key, Side::Listener, &head, &body, &proof));
        assert!(!good(&t, &Secret::new(&[1; 17]).unwrap(), Side::Dialer, &head, &body, &proof));
        assert!(!good(&t, &key, Side::Dialer, &head, &body, &[0; 32]));
        assert!(!good(&t, &key, Side::Dialer, &head, &body[..39], &proof));
        for i in 0..64 {
            let (mut a, mut b) = (t, t);
            a.hello[i] ^= 1;
            b.challenge[i] ^= 0x80;
            assert!(!good(&a, &key, Side::Dialer, &head, &body, &proof) && !good(&b, &key, Side::Dialer, &head, &body, &proof));
        }
        let mut other = head;
        other[15] ^= 1;
        assert!(!good(&t, &key, Side::Dialer, &other, &body, &proof));
    }

    #[test]
    fn a_key_file_must_be_a_secret_of_the_right_size() {
        let path = std::env::temp_dir().join(format!("gdrfab-key-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let with = |bytes: &[u8], mode: u32| {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(name)
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
        // Only root can make a file that is another's.
        if process::euid() == 0 {
            with(b"0123456789abcdef", 0o600).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            let e = read(name).unwrap_err();
            assert!(e.errno == errno::EACCES && e.words.contains("user 12345"), "{e}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(name).unwrap_err().errno, errno::ENOENT);
        assert!(read("/").is_err());
    }
}
