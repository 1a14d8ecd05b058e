// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sealed records: a stream of bytes is encrypted and authenticated in records, which only the two ends of a handshake
//! can make and open. Everything here happens in memory; `sealed` has the sockets. `docs/tcp-wire.md` has the layout.

use crate::error::{Code, Error, Result, errno};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Bytes of a key.
pub const KEY: usize = 32;
/// Bytes of the tag at the end of a record.
pub const TAG: usize = 16;
/// Bytes of the length in front of a record.
pub const LENGTH: usize = 2;
/// Most bytes of a record behind its length.
pub const RECORD_MAX: usize = u16::MAX as usize;
/// Most plain text of a record.
pub const PLAIN_MAX: usize = RECORD_MAX - TAG;
/// Most plain text that the sender puts into a record: whole blocks of the cipher.
pub const FILL: usize = PLAIN_MAX & !15;
/// Number of records after which the key is changed.
pub const REKEY: u64 = 1 << 16;

/// The cipher of a connection, which the handshake chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// ChaCha20-Poly1305.
    ChaCha,
    /// AES-256-GCM.
    Aes,
}

impl Cipher {
    /// True if this CPU has instructions for AES and for GCM's multiplication.
    pub fn is_aes_fast() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        false
    }

    pub fn key(self, raw: &[u8; KEY]) -> Option<LessSafeKey> {
        let algorithm = match self {
            Cipher::ChaCha => &CHACHA20_POLY1305,
            Cipher::Aes => &AES_256_GCM,
        };
        UnboundKey::new(algorithm, raw).ok().map(LessSafeKey::new)
    }

    /// The nonce as Noise specifies it: four zeros, then the number in the cipher's byte order.
    pub fn nonce(self, number: u64) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&match self {
            Cipher::ChaCha => number.to_le_bytes(),
            Cipher::Aes => number.to_be_bytes(),
        });
        Nonce::assume_unique_for_key(bytes)
    }
}

/// One direction's key, and the number of its next record. Each number is used once, and records come in order.
pub struct CipherState {
    cipher: Cipher,
    key: LessSafeKey,
    number: u64,
}

/// The ciphers of both directions.
pub struct Seal {
    pub out: CipherState,
    pub incoming: CipherState,
}

#[cold]
fn useless() -> Error {
    Error::fixed(errno::EIO, "internal error: the encryption of the connection cannot be used")
}

#[cold]
fn broken_seal(words: &'static str) -> Error {
    Error::coded(errno::EPROTO, Code::PeerBroke, format!("{words}: the sealed connection was tampered with, or the peer is faulty"))
}

impl CipherState {
    pub fn new(cipher: Cipher, raw: &[u8; KEY]) -> Result<CipherState> {
        Ok(CipherState { cipher, key: cipher.key(raw).ok_or_else(useless)?, number: 0 })
    }

    /// The nonce of the next record. After every `REKEY` records the key is changed first, by Noise's Rekey.
    #[inline]
    fn next(&mut self) -> Result<Nonce> {
        if self.number != 0 && self.number.is_multiple_of(REKEY) {
            let mut fresh = [0; KEY];
            let nonce = self.cipher.nonce(u64::MAX);
            let _tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut fresh).map_err(|_| useless())?;
            self.key = self.cipher.key(&fresh).ok_or_else(useless)?;
        }
        let nonce = self.cipher.nonce(self.number);
        self.number += 1;
        Ok(nonce)
    }

    /// Encrypts `record` in place; its last `TAG` bytes become the tag.
    #[inline]
    fn seal(&mut self, record: &mut [u8]) -> Result<()> {
        let nonce = self.next()?;
        let (plain, place) = record.split_last_chunk_mut::<TAG>().ok_or_else(useless)?;
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), plain).map_err(|_| useless())?;
        place.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts `record` in place; its plain text is all but the last `TAG` bytes.
    #[inline]
    fn open(&mut self, record: &mut [u8]) -> Result<()> {
        let nonce = self.next()?;
        match self.key.open_in_place(nonce, Aad::empty(), record) {
            Ok(_) => Ok(()),
            Err(_) => Err(broken_seal("an encrypted record cannot be authenticated")),
        }
    }
}

/// Makes records in the writer's buffer, one at a time: a record must have left before the next one is made.
pub struct Sealer {
    half: CipherState,
    /// Number of the record's bytes that were sent, the length in front included.
    sent: usize,
    /// Number of all bytes of the record, the length in front included.
    end: usize,
}

/// Bytes of the buffer that a `Sealer` needs.
pub const OUT: usize = LENGTH + FILL + TAG;

impl Sealer {
    pub fn new(half: CipherState) -> Sealer {
        Sealer { half, sent: 0, end: 0 }
    }

    /// The bytes of the record that are still to be sent.
    #[inline]
    pub fn rest<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        buf.get(self.sent..self.end).unwrap_or(&[])
    }

    /// True if the last record has left completely.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.sent == self.end
    }

    /// Counts `n` more bytes of the record as sent.
    #[inline]
    pub fn left(&mut self, n: usize) {
        self.sent = (self.sent + n).min(self.end);
    }

    /// Makes a record of the `n` bytes, 1 to `FILL`, that begin at `LENGTH` in the buffer. The last record must have left.
    #[inline]
    pub fn seal(&mut self, buf: &mut [u8], n: usize) -> Result<()> {
        let len = n + TAG;
        let Some(record) = buf.get_mut(..LENGTH + len).filter(|_| self.is_out() && (1..=FILL).contains(&n)) else { return Err(useless()) };
        record[..LENGTH].copy_from_slice(&(len as u16).to_le_bytes());
        self.half.seal(&mut record[LENGTH..])?;
        (self.sent, self.end) = (0, LENGTH + len);
        Ok(())
    }
}

/// Bytes of the buffer that an `Opener` needs: the longest record, and as much again, so that bytes are moved rarely.
pub const BUFFER: usize = 2 * (LENGTH + RECORD_MAX);

/// Opens records in the reader's buffer. The opened bytes are a window in the buffer, and the reader takes them from
/// its beginning. The bytes of records that are not opened yet follow the window.
pub struct Opener {
    half: CipherState,
    /// Position in the buffer where the unopened bytes begin.
    next: usize,
    /// Position in the buffer where the received bytes end.
    end: usize,
    /// The first failure; nothing is opened afterwards.
    failed: Option<Error>,
}

/// The opened bytes of a buffer: positions of the first byte and of the end.
pub type Window = (usize, usize);

impl Opener {
    pub fn new(half: CipherState) -> Opener {
        Opener { half, next: 0, end: 0, failed: None }
    }

    /// The length of the next record, once its two bytes are in the buffer. An invalid length is an error.
    fn length(&self, buf: &[u8]) -> Result<Option<usize>> {
        let Some(bytes) = buf.get(self.next..self.end).and_then(|have| have.first_chunk::<LENGTH>()) else { return Ok(None) };
        match usize::from(u16::from_le_bytes(*bytes)) {
            n if n <= TAG => Err(broken_seal("an encrypted record is empty")),
            n => Ok(Some(n)),
        }
    }

    /// True if the buffer holds a complete record, which no socket announces, or an error to report.
    pub fn holds_record(&self, buf: &[u8]) -> bool {
        let have = self.end - self.next;
        self.failed.is_some() || self.length(buf).map_or(true, |n| n.is_some_and(|n| have >= LENGTH + n))
    }

    /// True if the buffer holds bytes that are not opened yet.
    pub fn is_amid(&self) -> bool {
        self.next < self.end
    }

    /// Opens the next record if it is complete. Returns the new window: the bytes that were left in the old window,
    /// then the record's. After a failure every call fails.
    pub fn open(&mut self, buf: &mut [u8], window: Window) -> Result<Option<Window>> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let opened = self.try_open(buf, window);
        self.failed = opened.as_ref().err().cloned();
        opened
    }

    fn try_open(&mut self, buf: &mut [u8], (from, to): Window) -> Result<Option<Window>> {
        let Some(len) = self.length(buf)? else { return Ok(None) };
        let begin = self.next + LENGTH;
        if self.end < begin + len {
            return Ok(None);
        }
        let record = buf.get_mut(begin..begin + len).ok_or_else(useless)?;
        self.half.open(record)?;
        self.next = begin + len;
        let rest = to.saturating_sub(from);
        if rest > 0 {
            // The bytes that are left in the window move up to the record. The bytes fit, because everything else in
            // front of the record was taken, or is a tag or a length.
            buf.copy_within(from..to, begin - rest);
        }
        Ok(Some((begin - rest, begin + len - TAG)))
    }

    /// The space behind the received bytes, for more of them, and the window, which has moved if bytes had to move.
    pub fn room<'a>(&mut self, buf: &'a mut [u8], window: Window) -> (&'a mut [u8], Window) {
        let (mut from, mut to) = window;
        if from >= to {
            // No opened bytes are left, so only the unopened bytes have to be kept.
            (from, to) = (self.next, self.next);
        }
        let needed = LENGTH + RECORD_MAX;
        // The kept bytes move to the front if there are none, which costs nothing, or if the longest record would not
        // fit otherwise.
        if from > 0 && (from == self.end || buf.len() - self.next < needed) {
            buf.copy_within(from..self.end, 0);
            self.next -= from;
            self.end -= from;
            to -= from;
            from = 0;
        }
        let window = if from < to { (from, to) } else { (0, 0) };
        (buf.get_mut(self.end..).unwrap_or(&mut []), window)
    }

    /// Counts `n` bytes that were received into the space that `room` returned.
    pub fn came(&mut self, n: usize) {
        self.end += n;
    }
}

#[cfg(test)]
#[path = "seal/tests.rs"]
mod tests;
